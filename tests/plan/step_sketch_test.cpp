#include "plan/step_sketch.h"

#include <gtest/gtest.h>

#include <numeric>

#include "base/index.h"
#include "plan/plan_testing.h"

namespace lockstep::plan {
namespace {

struct Sketched {
  explicit Sketched(const std::string& layout, bool apart = true, bool profiled = false) {
    options = gpt_options(layout, 2);
    if (profiled) options.parallel.profile = profile_of(options);
    facts = facts_of(options);
    hosts.resize(static_cast<size_t>(facts.world_size), 0);
    if (apart) std::iota(hosts.begin(), hosts.end(), 0);
    if (apart) facts.hosts = hosts;
    facts.shared_memory = !apart && facts.world_size > 1;
    const compile::CompiledRun run(options, facts);
    for (int rank = 0; rank < facts.world_size; ++rank) programs.push_back(run.compile(rank).step);
    timeline = sketch_step(run, programs, hosts);
  }

  /// Time of a rank's instructions that communicate, or that do not.
  double time(int rank, bool communicating) const {
    double sum = 0;
    for (int i = 0; i < static_cast<int>(nth(programs, rank).instructions.size()); ++i)
      if (program::communicates(nth(programs, rank).instruction(i).kind) == communicating)
        sum += nth(nth(timeline.ranks, rank), i).end - nth(nth(timeline.ranks, rank), i).start;
    return sum;
  }

  compile::CompileOptions options;
  compile::CompileFacts facts;
  std::vector<int> hosts;
  std::vector<program::Program> programs;
  ProgramTimeline timeline;
};

TEST(StepSketch, OfOneProcessIsItsPassesAndWhatMovesBytes) {
  const Sketched one("dp=1");
  double passes = 0;
  for (const model::NodeTime& node : model::estimated_times(*one.options.graph, 2)) passes += node.all();
  EXPECT_EQ(one.time(0, true), 0);
  EXPECT_GT(one.time(0, false), 8 * passes);
  EXPECT_LT(one.time(0, false), 16 * passes);
}

TEST(StepSketch, MessagesBetweenHostsTakeTimeBesideComputing) {
  const Sketched two("dp=2");
  EXPECT_GT(two.time(0, true), 0);
  EXPECT_LT(two.timeline.duration(), two.time(0, false) + two.time(0, true)) << "some of it is hidden";
  EXPECT_GT(two.time(1, true), Sketched("dp=2", false).time(1, true)) << "than through memory";
}

TEST(StepSketch, OfAProfileIsInItsSeconds) {
  const Sketched one("dp=1", true, true);
  const double passes = 16 * 3e-3 * (static_cast<double>(one.options.graph->nodes.size()) + 9);
  EXPECT_GT(one.timeline.duration(), passes);
  EXPECT_LT(one.timeline.duration(), 2 * passes);
}

}  // namespace
}  // namespace lockstep::plan
