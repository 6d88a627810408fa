#include "program/lane_schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "program/lane_overlap.h"
#include "program/memory/memory_plan.h"
#include "program/random_programs.h"

namespace lockstep::program {
namespace {

using ::testing::ElementsAre;

/// Lanes compute (0), one (1), two (2) and copy (3), and buffers that are placed.
Program program_of(const std::string& instructions) {
  Program program = program_from_text(
      "program step rank=0 world_size=2 reduction=fast leaves=2 micro_batches_per_leaf=1\n"
      "lane compute compute\n"
      "lane one comm\n"
      "lane two comm\n"
      "lane copy copy\n"
      "group all 0 1\n"
      "group others 0 1\n"
      "buffer a space=gradients category=gradients size=512\n"
      "buffer b space=gradients category=gradients size=512\n"
      "buffer c space=gradients category=gradients size=512\n"
      "buffer d space=gradients category=gradients size=512\n"
      "buffer e space=gradients category=gradients size=512\n"
      "buffer v space=scalars category=workspace size=64\n" +
      instructions);
  plan_memory(program);
  return program;
}

/// The instructions that may start now, of all lanes.
std::vector<int> startable(const LaneSchedule& schedule) {
  std::vector<int> instructions;
  for (int lane = 0; lane < schedule.lane_count(); ++lane)
    if (schedule.may_start(lane)) {
      LaneSchedule copy = schedule;
      instructions.push_back(copy.start(lane).instruction);
    }
  std::ranges::sort(instructions);
  return instructions;
}

void run(LaneSchedule& schedule, int lane) {
  schedule.start(lane);
  schedule.complete(lane);
}

TEST(LaneSchedule, InstructionsWaitForTheirLaneAndTheirDependencies) {
  const Program program = program_of(
      "0 constants @copy writes constants:v\n"
      "1 add @compute reads source:b updates destination:a\n"
      "2 add @compute reads source:b updates destination:a\n"
      "3 all_reduce @one group=all updates data:a after 2\n"
      "4 add @compute reads source:a updates destination:c after 3\n");
  LaneSchedule schedule(program, {});
  EXPECT_THAT(startable(schedule), ElementsAre()) << "nothing has begun";
  EXPECT_TRUE(schedule.is_complete());
  schedule.begin();
  EXPECT_THAT(startable(schedule), ElementsAre(0, 1));
  EXPECT_EQ(schedule.first_on_thread(), 3) << "0, on copy, comes first in program order";
  run(schedule, 3);
  EXPECT_TRUE(schedule.at_end(3));
  EXPECT_EQ(schedule.first_on_thread(), 0);
  EXPECT_EQ(schedule.start(0), (Step{0, 1}));
  EXPECT_THAT(startable(schedule), ElementsAre()) << "its lane is busy";
  EXPECT_EQ(schedule.current(0), (Step{0, 1}));
  schedule.complete(0);
  run(schedule, 0);
  EXPECT_THAT(startable(schedule), ElementsAre(3)) << "4 depends on it";
  EXPECT_EQ(schedule.first_on_thread(), -1) << "it needs no thread";
  run(schedule, 1);
  EXPECT_THAT(startable(schedule), ElementsAre(4));
  EXPECT_FALSE(schedule.is_complete());
  run(schedule, 0);
  EXPECT_TRUE(schedule.is_complete());
}

TEST(LaneSchedule, CommunicationsStartInProgramOrderOnOneThread) {
  const Program program = program_of(
      "0 add @compute reads source:b updates destination:a\n"
      "1 all_reduce @one group=all updates data:a after 0\n"
      "2 all_reduce @two group=others updates data:c\n");
  LaneSchedule in_order(program, {}), on_streams(program, {.communicates_in_order = false});
  in_order.begin();
  on_streams.begin();
  EXPECT_THAT(startable(in_order), ElementsAre(0));
  EXPECT_THAT(startable(on_streams), ElementsAre(0, 2));
  run(in_order, 0);
  EXPECT_THAT(startable(in_order), ElementsAre(1));
  in_order.start(1);
  EXPECT_THAT(startable(in_order), ElementsAre(2)) << "1 has started, though it is not complete";
}

TEST(LaneSchedule, ExchangesStartBehindOthersUpToFour) {
  const Program program = program_of(
      "0 exchange @one group=all reads send:a@1\n"
      "1 exchange @one group=all reads send:b@1\n"
      "2 exchange @one group=all reads send:c@1\n"
      "3 exchange @one group=all reads send:d@1\n"
      "4 exchange @one group=all reads send:e@1\n"
      "5 exchange @one group=all writes receive:e@1\n");
  LaneSchedule schedule(program, {});
  schedule.begin();
  for (int i = 0; i < kMostExchangesUnderWay; ++i) {
    EXPECT_THAT(startable(schedule), ElementsAre(i));
    schedule.start(1);
  }
  EXPECT_THAT(startable(schedule), ElementsAre());
  EXPECT_EQ(schedule.current(1), (Step{0, 0}));
  schedule.complete(1);
  EXPECT_THAT(startable(schedule), ElementsAre(4));
  EXPECT_EQ(schedule.start(1), (Step{0, 4}));
  for (int i = 1; i < 4; ++i) schedule.complete(1);
  EXPECT_THAT(startable(schedule), ElementsAre()) << "5 writes what 4 sends";
  schedule.complete(1);
  EXPECT_THAT(startable(schedule), ElementsAre(5));

  LaneSchedule alone(program, {.overlaps_exchanges = false});
  alone.begin();
  alone.start(1);
  EXPECT_THAT(startable(alone), ElementsAre());
}

TEST(LaneSchedule, AnIterationBeginsWithTheReportAndTheEndOfTheOneBeforeTheLast) {
  const Program program = program_of(
      "0 add @compute reads source:b updates destination:a after 2'\n"
      "1 norm @compute reads gradients:a writes chunks:c verdict:v\n"
      "2 all_reduce @one group=all updates data:a after 0\n");
  LaneSchedule schedule(program, {});
  EXPECT_TRUE(schedule.may_begin());
  schedule.begin();
  EXPECT_FALSE(schedule.may_begin());
  run(schedule, 0);
  EXPECT_FALSE(schedule.is_reported());
  run(schedule, 0);
  EXPECT_TRUE(schedule.is_reported());
  EXPECT_TRUE(schedule.may_begin()) << "2 is left";
  schedule.begin();
  EXPECT_FALSE(schedule.is_reported());
  EXPECT_THAT(startable(schedule), ElementsAre(2)) << "0 waits for it, of the iteration before";
  EXPECT_EQ(schedule.current(1), (Step{0, 2}));
  run(schedule, 1);
  run(schedule, 0);
  run(schedule, 0);
  schedule.begin();
  EXPECT_TRUE(schedule.at_end(0) == false && schedule.current(0) == (Step{2, 0}));
  EXPECT_FALSE(schedule.may_begin());
  // Left of iteration 1: the sum. Nothing may begin beyond the next report before it is complete.
  run(schedule, 1);
  run(schedule, 0);
  run(schedule, 0);
  EXPECT_TRUE(schedule.may_begin());
  EXPECT_FALSE(schedule.is_complete());
}

TEST(LaneSchedule, WhoLooksOnTellsWhatIsComplete) {
  const Program program = program_of(
      "0 add @compute reads source:b updates destination:a\n"
      "1 all_reduce @one group=all updates data:a after 0\n"
      "2 add @compute reads source:a updates destination:c after 1\n");
  LaneSchedule schedule(program, {.communicates_in_order = false, .overlaps_exchanges = false});
  schedule.begin();
  schedule.pass(1);
  EXPECT_THAT(startable(schedule), ElementsAre(0)) << "what 1 depends on was not seen yet";
  schedule.pass(0);
  EXPECT_THAT(startable(schedule), ElementsAre(2));
  schedule.begin();
  schedule.pass_all(1);
  EXPECT_THAT(startable(schedule), ElementsAre(0));
  EXPECT_EQ(schedule.current(0), (Step{1, 0}));
  schedule.start(0);
  schedule.pass_all(2);
  EXPECT_TRUE(schedule.is_complete() && schedule.may_begin());
}

/// What has happened to each node, an instruction of an iteration, and what may happen by the rules as they
/// are told, looked up node by node.
class PlainSchedule {
 public:
  PlainSchedule(const Program& program, const StartRules& rules, int iterations)
      : program_(program),
        rules_(rules),
        independent_(independent_predecessors(program)),
        reports_(report_instructions(program)),
        started_(program.instructions.size() * static_cast<size_t>(iterations)),
        complete_(started_) {}

  int count() const { return static_cast<int>(program_.instructions.size()); }
  const Instruction& of(int node) const { return program_.instruction(node % count()); }

  bool may_begin(int iteration) const {
    if (iteration == 0) return true;
    for (const int report : reports_)
      if (!nth(complete_, (iteration - 1) * count() + report)) return false;
    for (int node = 0; node < (iteration - 1) * count(); ++node)
      if (!nth(complete_, node)) return false;
    return true;
  }

  bool may_start(int node, int begun) const {
    const int iteration = node / count();
    if (iteration >= begun || nth(started_, node)) return false;
    for (const Dependency& needed : of(node).after) {
      const int other = (iteration - needed.distance) * count() + needed.instruction;
      if (other >= 0 && !nth(complete_, other)) return false;
    }
    int behind = rules_.overlaps_exchanges ? nth(independent_, node % count()) : 0;
    for (int earlier = node - 1; earlier >= 0; --earlier) {
      const bool same_lane = of(earlier).lane == of(node).lane;
      const bool may_be_under_way = same_lane && behind-- > 0 && nth(started_, earlier);
      if (same_lane && !may_be_under_way && !nth(complete_, earlier)) return false;
      if (rules_.communicates_in_order && communicates(of(node).kind) && communicates(of(earlier).kind) &&
          !nth(started_, earlier))
        return false;
    }
    return true;
  }

  void start(int node) { nth(started_, node) = true; }
  /// The first node of the lane that is not complete.
  int complete_next(int lane) {
    for (int node = 0;; ++node)
      if (of(node).lane == lane && !nth(complete_, node)) {
        nth(complete_, node) = true;
        return node;
      }
  }
  bool all_complete() const {
    return std::ranges::all_of(complete_, [](bool is) { return is; });
  }

 private:
  const Program& program_;
  StartRules rules_;
  std::vector<int> independent_, reports_;
  std::vector<bool> started_, complete_;
};

/// Every other lane communicates, mostly by exchanges.
Program communicating_program(std::mt19937& random) {
  Program program = random_program(random, {.instructions = 24, .buffers = 16, .operands = 2});
  program.groups = {{"all", {0, 1}}};
  for (size_t lane = 0; lane < program.lanes.size(); ++lane)
    program.lanes[lane].kind = lane % 2 == 1 ? LaneKind::comm
                               : lane == 0   ? LaneKind::compute
                                             : LaneKind::copy;
  for (Instruction& instruction : program.instructions) {
    if (instruction.lane % 2 == 0) continue;
    // Also sums on lanes of communication.
    instruction.kind = random() % 8 == 0   ? InstructionKind::add
                       : random() % 6 == 0 ? InstructionKind::all_reduce
                                           : InstructionKind::exchange;
    instruction.group = 0;
    for (Operand& operand : instruction.operands)
      operand.role = operand.access == Access::read ? Role::send : Role::receive;
  }
  // One or two instructions report.
  for (int i = 0; i < 2; ++i)
    nth(program.instructions, static_cast<int>(random() % program.instructions.size())).kind =
        InstructionKind::digest;
  plan_memory(program);
  return program;
}

TEST(LaneSchedule, AllowsWhatThePlainRulesAllow) {
  constexpr int kIterations = 4;
  int overlaps = 0;
  for (unsigned seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    const Program program = communicating_program(random);
    const StartRules rules{.communicates_in_order = seed % 2 == 0, .overlaps_exchanges = seed % 4 < 2};
    LaneSchedule schedule(program, rules);
    PlainSchedule plain(program, rules, kIterations);
    while (!plain.all_complete()) {
      const auto begun = static_cast<int>(schedule.begun());
      ASSERT_EQ(schedule.may_begin(), plain.may_begin(begun)) << "seed " << seed;
      std::vector<int> may_start, may_complete;  // lanes
      for (int lane = 0; lane < schedule.lane_count(); ++lane) {
        if (schedule.may_start(lane)) may_start.push_back(lane);
        if (schedule.under_way(lane) > 0) may_complete.push_back(lane);
      }
      std::vector<int> lanes_by_plain_rules;
      int first = -1;
      for (int node = 0; node < begun * plain.count(); ++node) {
        if (!plain.may_start(node, begun)) continue;
        const int lane = plain.of(node).lane;
        lanes_by_plain_rules.push_back(lane);
        if (first < 0 && program.lane(lane).kind != LaneKind::comm) first = lane;
      }
      std::ranges::sort(lanes_by_plain_rules);
      ASSERT_EQ(may_start, lanes_by_plain_rules) << "seed " << seed;
      ASSERT_EQ(schedule.first_on_thread(), first) << "seed " << seed;

      if (begun < kIterations && schedule.may_begin() && random() % 3 == 0) {
        schedule.begin();
      } else if (!may_start.empty() && (may_complete.empty() || random() % 2 == 0)) {
        const int lane = nth(may_start, static_cast<int>(random() % may_start.size()));
        const Step step = schedule.start(lane);
        plain.start(static_cast<int>(step.iteration) * plain.count() + step.instruction);
        overlaps += schedule.under_way(lane) > 1 ? 1 : 0;
      } else if (!may_complete.empty()) {
        const int lane = nth(may_complete, static_cast<int>(random() % may_complete.size()));
        const Step step = schedule.current(lane);
        ASSERT_EQ(plain.complete_next(lane),
                  static_cast<int>(step.iteration) * plain.count() + step.instruction);
        schedule.complete(lane);
      } else {
        ASSERT_TRUE(begun < kIterations && schedule.may_begin())
            << "seed " << seed << ": nothing may go on, though program order always may";
        schedule.begin();
      }
    }
    EXPECT_TRUE(schedule.is_complete());
  }
  EXPECT_GT(overlaps, 100) << "too few exchanges were started behind others";
}

}  // namespace
}  // namespace lockstep::program
