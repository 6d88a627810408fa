#include "plan/timeline_slices.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <utility>

#include "lockstep/error.h"
#include "plan/plan_testing.h"
#include "plan/serving_slices.h"

namespace lockstep::plan {
namespace {

struct Predicted {
  explicit Predicted(const std::string& layout, bool profiled = false) : options(gpt_options(layout, 2)) {
    if (profiled) options.parallel.profile = profile_of(options);
    facts = facts_of(options);
    const compile::CompiledRun run(options, facts);
    for (int rank = 0; rank < facts.world_size; ++rank) programs.push_back(run.compile(rank).step);
    timeline = predict_timeline(run, programs, std::vector<int>(static_cast<size_t>(facts.world_size), 0));
  }
  compile::CompileOptions options;
  compile::CompileFacts facts;
  std::vector<program::Program> programs;
  observe::Timeline timeline;
};

TEST(TimelineSlices, HaveASliceForEachInstructionOfEachRank) {
  const Predicted two("dp=1,pp=2");
  ASSERT_EQ(two.timeline.ranks.size(), 2U);
  for (size_t rank = 0; rank < 2; ++rank) {
    size_t instructions = 0;
    for (const auto& slice : two.timeline.ranks[rank].slices)
      instructions += slice.kind == observe::SliceKind::compute || slice.kind == observe::SliceKind::copy ||
                      slice.kind == observe::SliceKind::communication;
    EXPECT_EQ(instructions, two.programs[rank].instructions.size());
  }
}

TEST(TimelineSlices, EveryMessageOfAPipelineLeavesOnceAndArrivesOnce) {
  const Predicted four("dp=1,pp=4");
  std::map<uint64_t, std::vector<int>> senders, receivers;
  for (const auto& rank : four.timeline.ranks)
    for (const auto& slice : rank.slices) {
      for (const uint64_t message : slice.sends) senders[message].push_back(rank.rank);
      for (const uint64_t message : slice.receives) receivers[message].push_back(rank.rank);
    }
  EXPECT_GE(senders.size(), 6U) << "activations and gradients, between four stages";
  ASSERT_EQ(senders.size(), receivers.size());
  for (const auto& [message, ranks] : senders) {
    EXPECT_EQ(ranks.size(), 1U);
    ASSERT_EQ(receivers[message].size(), 1U);
    EXPECT_NE(receivers[message][0], ranks[0]);
  }
}

TEST(TimelineSlices, MessagesOfTwoIterationsDiffer) {
  const Predicted two("dp=1,pp=2");
  const compile::CompiledRun run(two.options, two.facts);
  const TimelineSlices slices(run, two.programs[0]);
  for (int i = 0; i < static_cast<int>(two.programs[0].instructions.size()); ++i) {
    const auto first = slices.of_instruction(i, 0, 0, 1), second = slices.of_instruction(i, 1, 0, 1);
    if (!first.sends.empty()) EXPECT_NE(first.sends, second.sends);
  }
}

TEST(TimelineSlices, SayBucketMicroBatchAndBytes) {
  const Predicted two("dp=2");
  std::set<std::string> names;
  for (const auto& slice : two.timeline.ranks[0].slices)
    for (const auto& [name, value] : slice.arguments) names.insert(name);
  for (const char* name : {"bucket", "micro_batch", "bytes", "layers", "step", "instruction"})
    EXPECT_TRUE(names.contains(name)) << name;
}

TEST(TimelineSlices, WaitIsTheGapBeforeWhatIsWaitedForEnds) {
  const Predicted two("dp=1,pp=2");
  const compile::CompiledRun run(two.options, two.facts);
  const program::Program& program = two.programs[1];
  const TimelineSlices slices(run, program);
  // One after the other, in program order: nothing waits. With a late message, its reader does.
  std::vector<TimelineSlices::Times> times;
  for (size_t i = 0; i < program.instructions.size(); ++i)
    times.push_back({static_cast<double>(i), static_cast<double>(i + 1)});
  size_t waits = slices.waits_between(times).size();
  EXPECT_GT(waits, 0U) << "the first forward follows a receive that ends after the load";
  for (const auto& wait : slices.waits_between(times)) {
    EXPECT_EQ(wait.kind, observe::SliceKind::wait);
    EXPECT_EQ(wait.row, slices.wait_row());
    EXPECT_LT(wait.begin, wait.end);
  }
}

TEST(TimelineSlices, OfAnEstimateSaySo) {
  EXPECT_EQ(Predicted("dp=1").timeline.notes.size(), 1U);
  EXPECT_TRUE(Predicted("dp=1", true).timeline.notes.empty());
}

TEST(ServingSlices, CountThePushesOfAnIteration) {
  const auto pushes = [](const std::string& layout) {
    const compile::CompileOptions options = gpt_options(layout);
    const compile::CompiledRun run(options, facts_of(options));
    return std::pair(pushes_per_iteration(run), iterations_per_step(run));
  };
  EXPECT_EQ(pushes("dp=4"), std::pair(0, int64_t{1}));
  EXPECT_EQ(pushes("dp=4,sync=ps,mode=stale"), std::pair(4, int64_t{1}));
  EXPECT_EQ(pushes("dp=4,sync=ps,mode=async"), std::pair(1, int64_t{4}));
}

TEST(TimelineSlices, OfSessionsAreRefused) {
  EXPECT_THROW(Predicted("dp=2,sync=ps,mode=async"), ConfigError);
}

}  // namespace
}  // namespace lockstep::plan
