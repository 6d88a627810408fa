#include "plan/link_traffic.h"

#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

#include "base/index.h"
#include "plan/plan_testing.h"
#include "plan/program_timeline.h"

namespace lockstep::plan {
namespace {

/// A layout whose every rank is a host of its own.
struct SpreadJob {
  explicit SpreadJob(const std::string& layout)
      : options(options_of(layout)), facts(facts_of(options)), run(options, spread(facts)) {}

  static compile::CompileOptions options_of(const std::string& layout) {
    compile::CompileOptions options = gpt_options(layout, 2);
    // Updates wait for their bucket alone, so that what comes back can pass beside what leaves.
    options.skips_nonfinite = options.clips_gradients = options.compares_replicas = false;
    options.parallel.bucket_bytes = 16 << 10;
    return options;
  }
  static compile::CompileFacts& spread(compile::CompileFacts& facts) {
    facts.hosts.resize(static_cast<size_t>(facts.world_size));
    std::iota(facts.hosts.begin(), facts.hosts.end(), 0);
    facts.shared_memory = false;
    return facts;
  }

  double model_bytes() const { return static_cast<double>(run.graph().parameter_count()) * sizeof(float); }
  double most_bytes() const { return busiest_link_bytes(run, facts.hosts) / model_bytes(); }
  /// Of a step that computes nothing, where a link takes a unit of time for the model's bytes.
  double time() const {
    std::vector<program::Program> programs;
    for (int rank = 0; rank < facts.world_size; ++rank) programs.push_back(run.compile(rank).step);
    const InstructionTimes times{.compute = [](int, const program::Instruction&) { return 0.0; },
                                 .communication = {.link_per_byte = 1 / model_bytes()},
                                 .hosts = facts.hosts,
                                 .one_thread = true};
    const auto steps = replay(programs, times, 4);
    return (steps[3].end - steps[1].end) / 2;
  }

  compile::CompileOptions options;
  compile::CompileFacts facts;
  compile::CompiledRun run;
};

/// Bytes of a step in a host's busier direction, in those of the model: of n workers around a ring, and with
/// servers on all of them, 2(n-1)/n; of n workers and k servers, M for a worker, and nM/k for a server
/// (BytePS, OSDI 2020). Losses, counts and verdicts come on
/// top, which shows on so small a model.
TEST(LinkTraffic, IsThatOfTheFormulas) {
  EXPECT_NEAR(SpreadJob("dp=2").most_bytes(), 1, 0.07);
  EXPECT_NEAR(SpreadJob("dp=4").most_bytes(), 1.5, 0.07);
  EXPECT_NEAR(SpreadJob("dp=1,sync=ps").most_bytes(), 1, 0.07);
  EXPECT_NEAR(SpreadJob("dp=4,sync=ps").most_bytes(), 4, 0.3);
  EXPECT_GE(SpreadJob("dp=4,sync=ps,servers=2").most_bytes(), 1.98);
  EXPECT_EQ(SpreadJob("dp=1").most_bytes(), 0);
  const SpreadJob async("dp=4,sync=ps,mode=async");
  EXPECT_NEAR(async.most_bytes(), 4, 0.3) << "a push of each of the workers";
}

TEST(LinkTraffic, LeavesOutWhatStaysOnAHost) {
  const SpreadJob job("dp=4");
  const std::vector<LinkBytes> links = link_bytes(job.run, {0, 0, 1, 1});
  ASSERT_EQ(links.size(), 2u);
  // One of the two ranks of a host has its neighbour on the other one.
  for (const LinkBytes& link : links) {
    EXPECT_NEAR(link.sent / job.model_bytes(), 1.5, 0.07);
    EXPECT_NEAR(link.sent / link.received, 1, 0.01);
  }
  EXPECT_EQ(busiest_link_bytes(job.run, {0, 0, 0, 0}), 0);
}

/// A host sends and receives the sum once, whatever the number of its workers: 2(H-1)/H of the model between
/// H hosts.
TEST(LinkTraffic, OfSumsWithinHostsIsThatOfHosts) {
  const auto most = [](const std::string& layout, std::vector<int> hosts) {
    const compile::CompileOptions options = SpreadJob::options_of(layout);
    const compile::CompileFacts facts{.world_size = static_cast<int>(hosts.size()), .hosts = hosts};
    const compile::CompiledRun run(options, facts);
    return busiest_link_bytes(run, hosts) /
           (static_cast<double>(run.graph().parameter_count()) * sizeof(float));
  };
  EXPECT_NEAR(most("dp=4,aggregate=host", {0, 0, 1, 1}), 1, 0.07);
  EXPECT_NEAR(most("dp=8,aggregate=host", {0, 0, 1, 1, 2, 2, 3, 3}), 1.5, 0.1);
  EXPECT_NEAR(most("dp=8,aggregate=host", {0, 1, 2, 3, 0, 1, 2, 3}), 1.5, 0.1) << "numbered by turns";
}

/// A replay takes no less than the busiest link, and little more where nothing keeps it waiting.
TEST(LinkTraffic, DecidesReplaysOfStepsThatComputeNothing) {
  for (const char* layout : {"dp=2", "dp=4", "dp=2,sync=ps,servers=2,placement=colocated"}) {
    const SpreadJob job(layout);
    EXPECT_GE(job.time(), 0.999 * job.most_bytes()) << layout;
    EXPECT_LE(job.time(), 1.3 * job.most_bytes()) << layout;
  }
  // The first bucket leaves before anything can come back, and the last comes back after all has left.
  for (const char* layout : {"dp=1,sync=ps", "dp=2,sync=ps", "dp=4,sync=ps,servers=2"}) {
    const SpreadJob job(layout);
    EXPECT_GE(job.time(), 0.999 * job.most_bytes()) << layout;
    EXPECT_LE(job.time(), 2 * job.most_bytes()) << layout;
  }
}

}  // namespace
}  // namespace lockstep::plan
