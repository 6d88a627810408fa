#include <gmock/gmock.h>

#include "control/duty.h"
#include "control/duty_testing.h"
#include "mentions.h"

namespace lockstep::control {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;

/// All ranks are in a section where ranks 2 and 3 can be spared; those are on another host than 0 and 1.
class RootOfSection : public Root {
 protected:
  void SetUp() override {
    all_beat(10, 0);
    duty.enter_section({false, false, true, true});
    for (int rank = 1; rank < 4; ++rank) duty.heard(rank, {FrameType::enter, ""}, at(1));
  }
  void all_leave() {
    duty.leave_section();
    for (int rank = 1; rank < 4; ++rank) duty.heard(rank, {FrameType::leave, ""}, at(1));
  }
};

TEST_F(RootOfSection, GoesOnWithoutWhoCanBeSpared) {
  duty.closed(2, "its connection closed", at(400));
  EXPECT_EQ(decide(400), "none");
  EXPECT_EQ(notes_of(duty), (Notes{{1, FrameType::loss}, {2, FrameType::loss}, {3, FrameType::loss}}));
  const auto losses = duty.take_losses();
  ASSERT_EQ(losses.size(), 1u);
  EXPECT_EQ(losses[0].rank, 2);
  EXPECT_THAT(losses[0].to_end, testing::IsEmpty()) << "that is rank 3's affair";
  EXPECT_EQ(
      losses[0].report,
      "lockstep: warning: rank 2 of 4 on host b (pid 102) was lost in step 11: its connection closed "
      "without a farewell\n  it was last heard from 0.4 s earlier, in a place\n  the others go on without "
      "it\n");
  for (int ms = 500; ms < 60000; ms += 500) {
    duty.observe({11, {}}, at(ms));
    for (const int rank : {1, 3}) duty.heard(rank, heartbeat(11), at(ms));
    ASSERT_EQ(decide(ms), "none") << "nobody waits for it any more";
  }
  EXPECT_FALSE(duty.take_members());
  duty.leave_section();
  duty.heard(1, {FrameType::leave, ""}, at(60000));
  EXPECT_EQ(decide(60000), "none");
  EXPECT_FALSE(duty.take_members());
  duty.heard(3, {FrameType::leave, ""}, at(60001));
  EXPECT_EQ(decide(60001), "none");
  EXPECT_EQ(duty.take_members(), (std::vector<int>{0, 1, 3}));
  EXPECT_EQ(notes_of(duty),
            (Notes{{1, FrameType::members}, {2, FrameType::members}, {3, FrameType::members}}));
}

TEST_F(RootOfSection, SparesSeveral) {
  duty.closed(3, "its connection closed", at(400));
  duty.closed(2, "its connection closed", at(400));
  EXPECT_EQ(decide(400), "none");
  EXPECT_EQ(duty.take_losses().size(), 2u);
  duty.leave_section();
  duty.heard(1, {FrameType::leave, ""}, at(401));
  EXPECT_EQ(decide(401), "none");
  EXPECT_EQ(duty.take_members(), (std::vector<int>{0, 1}));
}

TEST_F(RootOfSection, EndsWithoutWhoCannotBeSpared) {
  duty.closed(1, "its connection closed", at(400));
  EXPECT_EQ(decide(400), "none");  // asks the others
  EXPECT_EQ(decide(700), "lost 1 code 200");
}

TEST_F(RootOfSection, EndsWhereSomebodyIsLostOutsideOfIt) {
  all_leave();
  EXPECT_EQ(decide(1), "none");
  EXPECT_EQ(duty.take_members(), (std::vector<int>{0, 1, 2, 3}));
  // The next one has not begun for all.
  duty.enter_section({false, false, true, true});
  duty.heard(1, {FrameType::enter, ""}, at(2));
  duty.heard(2, {FrameType::enter, ""}, at(2));
  duty.closed(2, "its connection closed", at(3));
  EXPECT_EQ(decide(3), "none");
  EXPECT_EQ(decide(400), "lost 2 code 200");
}

TEST_F(RootOfSection, OneThatWasLostCountsInNoLaterSection) {
  duty.closed(2, "its connection closed", at(400));
  decide(400);
  all_leave();
  decide(401);
  ASSERT_EQ(duty.take_members(), (std::vector<int>{0, 1, 3}));
  duty.enter_section({false, false, true, true});
  for (const int rank : {1, 3}) duty.heard(rank, {FrameType::enter, ""}, at(402));
  duty.closed(3, "its connection closed", at(403));
  EXPECT_EQ(decide(403), "none");
  EXPECT_EQ(notes_of(duty).back(), (std::pair{3, FrameType::loss}));
  // A later failure names both.
  duty.closed(1, "its connection closed", at(500));
  decide(500);
  EXPECT_EQ(decide(800), "lost 1 code 200");
  EXPECT_THAT(decision->report, HasSubstr("rank 2"));
}

TEST_F(RootOfSection, HearsNothingMoreOfWhomItHasSpared) {
  duty.closed(2, "its connection closed", at(400));
  EXPECT_EQ(decide(400), "none");
  EXPECT_TRUE(duty.heard(2, abort_frame(74, "a disk was slow"), at(401)));
  EXPECT_EQ(decide(401), "none");
  EXPECT_EQ(decide(5000), "none");
}

TEST_F(RootOfSection, AsksAnewAfterALossThatWasSparedLate) {
  all_leave();
  decide(1);
  duty.take_notes();
  duty.enter_section({false, false, true, true});
  duty.heard(1, {FrameType::enter, ""}, at(2));
  duty.heard(2, {FrameType::enter, ""}, at(2));
  duty.closed(2, "its connection closed", at(3));
  EXPECT_EQ(decide(3), "none");
  EXPECT_TRUE(duty.urgent());
  duty.heard(3, {FrameType::enter, ""}, at(4));
  EXPECT_EQ(decide(4), "none");
  EXPECT_FALSE(duty.urgent());
  duty.take_notes();
  duty.closed(1, "its connection closed", at(500));
  EXPECT_EQ(decide(500), "none");
  EXPECT_EQ(notes_of(duty), (Notes{{3, FrameType::ask}}));
}

TEST_F(RootOfSection, SparesAStuckRankAndTellsIt) {
  options.compute_deadline = seconds(5);
  duty.heard(3, heartbeat(10, Activity::compute, 6), at(6000));
  for (const int rank : {1, 2}) duty.heard(rank, heartbeat(10), at(6000));
  duty.observe({10, {}}, at(6000));
  EXPECT_EQ(decide(6000), "none");
  EXPECT_EQ(notes_of(duty).front(), (std::pair{3, FrameType::decision}));
  EXPECT_THAT(duty.take_losses().at(0).report, Mentions("rank 3 ... 4 ... 103"));
}

TEST_F(RootOfSection, GoesOnIfAllOthersHaveWaitedForTheRankThatItSpares) {
  options.compute_deadline = seconds(30);
  options.communication_deadline = seconds(5);
  const auto all_wait = [&](int ms, double waited) {
    duty.observe({10, {{0, Activity::waiting, waited, "a place"}}}, at(ms));
    for (const int rank : {1, 2}) duty.heard(rank, heartbeat(10, Activity::waiting, waited), at(ms));
  };
  all_wait(31000, 30.5);
  duty.heard(3, heartbeat(10, Activity::compute, 31), at(31000));
  EXPECT_EQ(decide(31000), "none");
  EXPECT_EQ(duty.take_losses().at(0).rank, 3);
  all_wait(36000, 35.5);
  EXPECT_EQ(decide(36000), "none");
  // Nobody has made progress since.
  all_wait(36500, 36);
  EXPECT_EQ(decide(36500).substr(0, 8), "deadlock");
}

TEST_F(RootOfSection, SparesASilentRankWhoseHostIsHeard) {
  for (int ms = 500; ms <= 15500; ms += 500) {
    duty.observe({10, {}}, at(ms));
    for (const int rank : {1, 3}) duty.heard(rank, heartbeat(10), at(ms));
    ASSERT_EQ(decide(ms), "none");
  }
  EXPECT_EQ(duty.take_losses().at(0).rank, 2);
}

TEST_F(RootOfSection, EndsWhereAWholeHostIsSilent) {
  for (int ms = 500; ms <= 15000; ms += 500) {
    duty.observe({10, {}}, at(ms));
    duty.heard(1, heartbeat(10), at(ms));
    ASSERT_EQ(decide(ms), "none");
  }
  EXPECT_EQ(decide(15500).substr(0, 6), "silent");
}

}  // namespace
}  // namespace lockstep::control
