#include "run/lane_positions.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace lockstep::run {
namespace {

/// Two lanes: 0 load, 1 forward after it on compute; 2 a sum on reduce after 1; 3 an update on compute
/// after 2.
program::Program program() {
  program::Program program;
  const int compute = program.add_lane("compute", program::LaneKind::compute),
            reduce = program.add_lane("reduce", program::LaneKind::comm);
  program.instructions = {{.kind = program::InstructionKind::load,
                           .lane = compute,
                           .after = {{3, 1}},
                           .deadline = program::DeadlineClass::input},
                          {.kind = program::InstructionKind::forward, .lane = compute},
                          {.kind = program::InstructionKind::all_reduce,
                           .lane = reduce,
                           .after = {{1}},
                           .deadline = program::DeadlineClass::communication},
                          {.kind = program::InstructionKind::update, .lane = compute, .after = {{2}}}};
  return program;
}

class LanePositionsTest : public ::testing::Test {
 protected:
  void look(int issued) {
    positions_.look(
        issued, [this](int i) { return done_.contains(i); },
        [this](int i) { return left_done_.contains(i); });
  }
  /// What the two lanes say: an instruction, with a w if it waits for peers, or "-".
  std::string told() const {
    std::string text;
    for (const int lane : {0, 1}) {
      const auto entry = progress_.at(control::Progress::lane_slot(lane));
      text += lane == 0 ? "" : " ";
      text += entry.activity == control::Activity::idle ? "-" : std::to_string(entry.instruction);
      if (entry.activity == control::Activity::waiting) text += "w";
    }
    return text;
  }

  program::Program program_ = program();
  control::Progress progress_;
  LanePositions positions_{program_, progress_, 1};
  std::set<int> done_, left_done_;
};

TEST_F(LanePositionsTest, FollowsWhatIsDoneThroughDependencies) {
  positions_.begin();
  look(4);
  EXPECT_EQ(told(), "0 -");
  done_ = {0};
  look(4);
  EXPECT_EQ(told(), "1 -");
  done_ = {0, 1};
  look(4);
  EXPECT_EQ(told(), "- 2w") << "the update depends on the sum: nobody may blame this lane";
  done_ = {0, 1, 2};
  look(4);
  EXPECT_EQ(told(), "3 -");
  done_ = {0, 1, 2, 3};
  look(4);
  EXPECT_EQ(told(), "- -");
}

TEST_F(LanePositionsTest, WhatIsNotIssuedIsNeitherDoneNorUnderWay) {
  done_ = {0, 1, 2, 3};  // events of two iterations ago
  positions_.begin();
  look(1);
  EXPECT_EQ(told(), "1 -") << "of which a part may be issued";
  done_ = {0};
  look(2);
  EXPECT_EQ(told(), "1 -");
  done_ = {0, 1};
  look(2);
  EXPECT_EQ(told(), "- 2w");
}

// What is left of an iteration is told first, lane by lane, and holds up what depends on it.
TEST_F(LanePositionsTest, ALaneIsInTheIterationBeforeUntilItIsDoneThere) {
  positions_.begin();
  done_ = {0, 1};
  look(4);
  EXPECT_EQ(told(), "- 2w");
  left_done_ = done_;
  done_ = {};
  positions_.begin(/*goes_on=*/true);
  look(4);
  EXPECT_EQ(told(), "- 2w");
  left_done_ = {0, 1, 2};
  look(4);
  EXPECT_EQ(told(), "3 -") << "the update that is left, which the next load waits for";
  left_done_ = {0, 1, 2, 3};
  look(4);
  EXPECT_EQ(told(), "0 -");
  done_ = {0, 1};
  look(4);
  EXPECT_EQ(told(), "- 2w");
}

TEST_F(LanePositionsTest, AnEntryThatStandsIsNotWrittenAgain) {
  positions_.begin();
  look(4);
  const auto before = progress_.at(control::Progress::lane_slot(0));
  look(4);
  EXPECT_EQ(progress_.at(control::Progress::lane_slot(0)), before)
      << "the watchdog would never find it stuck";
  positions_.hush();
  EXPECT_EQ(told(), "- -");
  positions_.begin();
  look(4);
  EXPECT_EQ(told(), "0 -");
  EXPECT_NE(progress_.at(control::Progress::lane_slot(0)), before) << "another iteration";
}

}  // namespace
}  // namespace lockstep::run
