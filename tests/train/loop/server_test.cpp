// Synchronous parameter servers train to the same bits as one process.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/error.h"
#include "program/program_traffic.h"
#include "train/loop/divided_models.h"
#include "train/loop/resumed_layouts.h"
#include "train/thread_ranks.h"
#include "train/worker/compile_options.h"

namespace lockstep::train {
namespace {

using ::testing::HasSubstr;

struct Case {
  std::string layout;
  std::vector<int> hosts;  ///< of the ranks; none: one host
};

/// Two and three workers with one to three servers, however they are placed and assigned, on one host and on
/// two, the first of which has several workers; but for what is refused.
std::vector<Case> all_cases() {
  std::vector<Case> cases = {{"dp=1,sync=ps", {}},
                             {"dp=4,sync=ps,servers=3,placement=colocated,assign=whole", {}},
                             {"dp=4,sync=ps,servers=2,aggregate=host", {0, 1, 0, 1, 2, 2}}};
  for (const int dp : {2, 3})
    for (const int servers : {1, 2, 3})
      for (const std::string ownership : {"dedicated", "colocated"})
        for (const std::string assign : {"sharded", "whole"})
          for (const std::string aggregate : {"none", "host"}) {
            const std::string layout =
                fmt::format("dp={},sync=ps,servers={},placement={},assign={},aggregate={}", dp, servers,
                            ownership, assign, aggregate);
            try {
              Case one{layout, std::vector<int>(static_cast<size_t>(processes_of(layout)), 1)};
              // Two workers share a host, with a third one or dedicated servers on another.
              one.hosts[0] = one.hosts[1] = 0;
              if (aggregate == "none") one.hosts.clear();
              cases.push_back(std::move(one));
            } catch (const ConfigError&) {
              // Whole parameters of one server; more servers than workers that are to serve.
            }
          }
  return cases;
}
const std::vector<Case> kCases = all_cases();

compile::CompiledRun compiled(const config::RunConfig& config, const Case& one, bool shared_memory = false) {
  return compile_run(
      with(config, one.layout),
      {.world_size = processes_of(one.layout), .shared_memory = shared_memory, .hosts = one.hosts});
}

constexpr const char* kTiedSegment = R"(
model { gpt { vocabulary: 65 context: 8 layers: 1 heads: 2 width: 64 tied_head: true } }
data { synthetic { samples: 40 eval_samples: 23 classes: 65 context: 8 } }
)";

class Servers : public testing::TestWithParam<ModelCase> {};

TEST_P(Servers, TrainToTheSameBits) {
  const config::RunConfig config = GetParam().config();
  const Trace one = train_on_threads(config, 1);
  for (const auto& [layout, hosts] : kCases)
    EXPECT_EQ(trace_of(config, layout, {.asynchronous = {}, .output_directory = {}, .hosts = hosts}), one)
        << layout;
}

TEST_P(Servers, OfLanesThatRunAtOnceGiveTheSameBits) {
  const config::RunConfig config = GetParam().config();
  const Trace one = train_on_threads(config, 1);
  for (const char* layout : {"dp=2,sync=ps,servers=2", "dp=3,sync=ps,placement=colocated"})
    EXPECT_EQ(trace_of(config, layout,
                       {.asynchronous = device::AsyncCpuOptions{.jitter_seed = 3, .max_jitter_us = 200},
                        .output_directory = {}}),
              one)
        << layout;
}

TEST_P(Servers, AreProven) {
  for (const Case& one : kCases)
    for (const char* reduction : {"parallel.reduction=FAST", "parallel.reduction=REPRODUCIBLE"})
      for (const bool shared_memory : {false, true})
        if (one.hosts.empty() || !shared_memory)
          compiled(GetParam().config({reduction}), one, shared_memory).check();
}

const std::string kSgd = "optimizer.sgd={momentum: 0.9}";
INSTANTIATE_TEST_SUITE_P(
    All, Servers,
    testing::Values(
        ModelCase{"mlp", kMlp, {}}, ModelCase{"mlp_sgd", kMlp, {kSgd}},
        ModelCase{"mlp_float16", kMlp, {"precision.compute=FLOAT16"}},
        ModelCase{"mlp_as_it_lands",
                  kMlp,
                  {"trainer.clip_norm=0", "trainer.nonfinite=IGNORE", "parallel.bucket_bytes=50000"}},
        ModelCase{"gpt_as_it_lands",
                  kGpt,
                  {"trainer.clip_norm=0", "trainer.nonfinite=IGNORE", "parallel.bucket_bytes=50000"}},
        // One segment, in which the embedding is used twice.
        ModelCase{"tied_segment_as_it_lands",
                  kTiedSegment,
                  {"trainer.clip_norm=0", "trainer.nonfinite=IGNORE", "parallel.bucket_bytes=1048576"}},
        ModelCase{"lenet", kLenet, {}}, ModelCase{"lenet_sgd", kLenet, {kSgd}},
        ModelCase{"lenet_float16", kLenet, {"precision.compute=FLOAT16"}}, ModelCase{"gpt", kGpt, {}},
        ModelCase{"gpt_sgd", kGpt, {kSgd}}, ModelCase{"gpt_float16", kGpt, {"precision.compute=FLOAT16"}},
        ModelCase{"gpt_bfloat16", kGpt, {"precision.compute=BFLOAT16"}}),
    [](const auto& info) { return info.param.name; });

TEST(SynchronousServers, InFastModeAreCloseToReproducible) {
  const Trace exact = train_on_threads(config_of(kMlp, {"data.shuffle=false"}), 1);
  for (const auto& [layout, hosts] : kCases) {
    const Trace fast = trace_of(config_of(kMlp, {"data.shuffle=false", "parallel.reduction=FAST"}), layout,
                                {.asynchronous = {}, .output_directory = {}, .hosts = hosts});
    expect_close_losses(fast, exact, layout);
  }
}

TEST(SynchronousServers, SkipTheSameStepsWhereGradientsOverflow) {
  for (const char* model : {kMlp, kLenet, kGpt}) {
    const config::RunConfig config = config_that_overflows(model);
    const Trace one = train_on_threads(config, 1);
    EXPECT_FALSE(std::isfinite(one.norms.front())) << "no step has overflowed";
    for (const Case& other :
         {Case{"dp=2,sync=ps,servers=2", {}}, Case{"dp=3,sync=ps,placement=colocated", {}},
          Case{"dp=2,sync=ps,servers=2,assign=whole", {}},
          Case{"dp=3,sync=ps,servers=2,assign=whole,aggregate=host", {0, 0, 1, 1, 1}},
          Case{"dp=3,sync=ps,placement=colocated,aggregate=host", {0, 0, 1}}})
      EXPECT_EQ(
          trace_of(config, other.layout, {.asynchronous = {}, .output_directory = {}, .hosts = other.hosts}),
          one)
          << model << other.layout;
  }
}

TEST(SynchronousServers, OnAllWorkersAreAShardedOptimizer) {
  const config::RunConfig config = config_of(kGpt);
  const compile::CompiledRun servers =
      compile_run(with(config, "dp=3,sync=ps,servers=3,placement=colocated"), {.world_size = 3});
  const compile::CompiledRun shards = compile_run(with(config, "dp=3,shard=optimizer"), {.world_size = 3});
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(servers.compile(rank).step, shards.compile(rank).step);
}

int64_t bytes_of(const compile::CompiledRun& run, int rank, program::Category category) {
  return run.compile(rank).step_plan.category_bytes[static_cast<size_t>(category)];
}

TEST(SynchronousServers, HoldWhatTheyServeAndWorkersNoState) {
  const config::RunConfig config = config_of(kMlp);
  const compile::CompiledRun one = compile_run(config, {.world_size = 1});
  const compile::CompiledRun run = compile_run(with(config, "dp=2,sync=ps,servers=2"), {.world_size = 4});
  for (int worker = 0; worker < 2; ++worker) {
    EXPECT_EQ(bytes_of(run, worker, program::Category::optimizer_state), 0);
    EXPECT_EQ(bytes_of(run, worker, program::Category::parameters),
              bytes_of(one, 0, program::Category::parameters));
  }
  for (const auto category : {program::Category::optimizer_state, program::Category::parameters})
    EXPECT_NEAR(static_cast<double>(bytes_of(run, 2, category) + bytes_of(run, 3, category)),
                static_cast<double>(bytes_of(one, 0, category)), 256.0 * 20)
        << "rounded to 256 bytes a buffer";
  for (const auto category : {program::Category::activations, program::Category::workspace})
    EXPECT_EQ(bytes_of(run, 2, category), 0);
}

TEST(SynchronousServers, MoveAsManyBytesAsTheFormulaSays) {
  // Every worker sends M bytes and gets M; a server of k gets and sends n M / k, as far as shards are equal.
  const config::RunConfig config = config_of(kMlp, {"trainer.clip_norm=0", "trainer.nonfinite=IGNORE"});
  const compile::CompiledRun run = compile_run(with(config, "dp=3,sync=ps,servers=2"), {.world_size = 5});
  int64_t gradients = 0;
  for (const auto& bucket : run.partition().buckets) gradients += bucket.size_bytes;
  const auto sent = [&](int rank) {
    return static_cast<double>(program::traffic_of(run.compile(rank).step).sent_bytes);
  };
  for (int worker = 0; worker < 3; ++worker)
    EXPECT_NEAR(sent(worker), static_cast<double>(gradients), 0.02 * static_cast<double>(gradients));
  EXPECT_NEAR(sent(3) + sent(4), 3.0 * static_cast<double>(gradients),
              0.02 * 3 * static_cast<double>(gradients));
}

TEST(SynchronousServers, GoOnFromOtherLayoutsAndBack) {
  for (const auto& [name, model] :
       {std::pair("mlp", kMlp), std::pair("lenet", kLenet), std::pair("gpt", kGpt)})
    expect_same_bits_across(
        config_of(model), std::string("servers-") + name,
        {{"dp=2,sync=ps", "dp=3"},
         {"dp=2", "dp=2,sync=ps,servers=3"},
         {"dp=2,sync=ps,servers=2", "dp=3,sync=ps,servers=1"},
         {"dp=3,sync=ps,servers=2,placement=colocated", "dp=2,sync=ps,servers=2,assign=whole"},
         {"dp=2,sync=ps,servers=3", "dp=4,shard=optimizer"}});
}

std::string refusal(const config::RunConfig& config, int processes) {
  try {
    compile_run(config, {.world_size = processes});
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(SynchronousServers, ThatWouldOwnNothingAreRefused) {
  const config::RunConfig config = config_of(kLenet);
  EXPECT_THAT(refusal(with(config, "dp=1,sync=ps,servers=40,assign=whole"), 41), HasSubstr("'dp=1,sync=ps"));
  EXPECT_THAT(refusal(with(config_of(kMlp), "dp=1,sync=ps,servers=40"), 41), HasSubstr("65,536"));
}

TEST(SynchronousServers, CountTheBytesThatTheirProgramsSay) {
  const std::string layout = "dp=2,sync=ps,servers=2";
  const config::RunConfig config = with(config_of(kGpt), layout);
  run_ranks(4, [&](int rank, comm::Communicator& world) {
    Worker worker(config, {.rank = rank, .world_size = 4, .asynchronous = {}});
    worker.connect(world);
    Trainer trainer(worker, world, {}, {.output_directory = {}, .stop_requested = {}});
    trainer.prepare();
    const int64_t steps = trainer.run().steps;
    const program::ProgramTraffic theory = program::traffic_of(worker.programs().step);
    EXPECT_EQ(worker.transferred().sent, steps * theory.exchanged_sent_bytes) << rank;
    EXPECT_EQ(worker.transferred().received, steps * theory.exchanged_received_bytes) << rank;
    EXPECT_GT(theory.exchanged_received_bytes, 0);
  });
}

}  // namespace
}  // namespace lockstep::train
