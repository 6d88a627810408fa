// What passes between replicas of a model with tied parameters: as many bytes as it has parameters, not as
// many as these have uses.

#include <gtest/gtest.h>

#include <string>

#include "compile/compiled_run.h"
#include "model/presets.h"
#include "model/shared_graph.h"

namespace lockstep::compile {
namespace {

struct TiedCase {
  const char* name;
  const char* layout;
  layout::Reduction reduction = layout::Reduction::fast;
  parallel::AllReduceAlgorithm algorithm = parallel::AllReduceAlgorithm::automatic;
  bool shared_memory = false;
  /// Of the gradients that meet, how many times all ranks together send them, parameters' way back included.
  double times = 0;
  bool sums_each_use = false;
};
void PrintTo(const TiedCase& c, std::ostream* out) { *out << c.name; }

class TiedSums : public testing::TestWithParam<TiedCase> {};

TEST_P(TiedSums, SendWhatParametersTake) {
  const TiedCase& c = GetParam();
  // Small buckets: the head is a segment of its own, without a parameter of its own. Large ones: it shares
  // one.
  for (const int64_t bucket_bytes : {int64_t{1}, int64_t{20'000}, int64_t{1} << 20}) {
    CompileOptions options{
        .graph = model::share_graph(model::make_gpt(
            {.vocabulary = 70, .context = 8, .layers = 2, .heads = 2, .width = 16, .tied_head = true})),
        .global_batch = 12,
        .virtual_replicas = 3,
        .parallel = {.reduction = c.reduction, .algorithm = c.algorithm},
        .state_slots = 1};
    options.parallel.layout = layout::parse_layout(c.layout);
    options.parallel.bucket_bytes = bucket_bytes;
    const int ranks = options.parallel.layout.world_size();
    const CompiledRun run(options, {.world_size = ranks, .shared_memory = c.shared_memory});
    run.check();
    int64_t owned = 0, all_uses = 0;
    for (const model::Bucket& bucket : run.partition().buckets) {
      owned += bucket.owned_bytes;
      all_uses += bucket.size_bytes;
    }
    ASSERT_EQ(all_uses - owned, 70 * 16 * 4) << "the embedding is the head, too";
    int64_t bytes = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      const auto programs = run.compile(rank);
      for (const program::Instruction& instruction : programs.step.instructions) {
        if (instruction.kind == program::InstructionKind::agree) continue;
        if (instruction.operands.empty() || instruction.operands.front().dtype != DType::float32) continue;
        const program::ProgramTraffic traffic = program::traffic_of(programs.step, instruction);
        bytes += traffic.sent_bytes + traffic.shared_memory_bytes;
      }
    }
    const double expected = c.times * static_cast<double>(c.sums_each_use ? all_uses : owned);
    // What a library sends is reckoned, and rounded down for each rank and bucket.
    EXPECT_NEAR(static_cast<double>(bytes), expected,
                c.algorithm == parallel::AllReduceAlgorithm::library ? 40 : 0)
        << "buckets of " << bucket_bytes << " bytes";
  }
}

using Algorithm = parallel::AllReduceAlgorithm;
constexpr auto kTree = layout::Reduction::reproducible;
INSTANTIATE_TEST_SUITE_P(
    All, TiedSums,
    testing::Values(
        // n - 1 of n parts of everybody's, and as much back.
        TiedCase{.name = "ring", .layout = "dp=3", .algorithm = Algorithm::ring, .times = 4},
        TiedCase{.name = "library", .layout = "dp=3", .algorithm = Algorithm::library, .times = 4},
        TiedCase{.name = "shared_memory", .layout = "dp=3", .shared_memory = true, .times = 3},
        TiedCase{.name = "sharded", .layout = "dp=3,shard=optimizer", .times = 4},
        // All that workers have, and back.
        TiedCase{.name = "server", .layout = "dp=3,sync=ps,servers=1", .times = 6},
        TiedCase{.name = "servers", .layout = "dp=3,sync=ps,servers=2", .times = 6},
        TiedCase{.name = "workers_serve", .layout = "dp=3,sync=ps,placement=colocated,servers=3", .times = 4},
        TiedCase{.name = "of_a_host", .layout = "dp=3,sync=ps,servers=1,aggregate=host", .times = 6},
        // Along the tree each use by itself: half of what a node has, there and back.
        TiedCase{.name = "along_the_tree",
                 .layout = "dp=3",
                 .reduction = kTree,
                 .shared_memory = true,
                 .times = 3,
                 .sums_each_use = true}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace lockstep::compile
