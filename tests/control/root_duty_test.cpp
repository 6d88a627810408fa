#include <gmock/gmock.h>

#include <functional>

#include "control/duty.h"
#include "control/duty_testing.h"
#include "mentions.h"

namespace lockstep::control {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST_F(Root, AsksTheOthersBeforeItReportsALoss) {
  all_beat(10, 0);
  duty.closed(2, "its connection closed", at(400));
  EXPECT_EQ(decide(400), "none");
  EXPECT_EQ(notes_of(duty), (Notes{{1, FrameType::ask}, {3, FrameType::ask}}));
  EXPECT_TRUE(duty.urgent());
  EXPECT_TRUE(duty.take_heartbeat_request());  // its own
  duty.heard(1, answer(11), at(410));
  duty.heard(3, heartbeat(11), at(410));  // was on its way already
  EXPECT_EQ(decide(410), "none");
  duty.heard(3, answer(12), at(420));
  EXPECT_EQ(decide(420), "lost 2 code 200");
  // The step that rank 3 has completed is the newest one: the lost rank took part in the next.
  EXPECT_THAT(decision->printed, Mentions("rank 2 ... 4 ... 102 ... step 13"));
  EXPECT_EQ(decision->printed, decision->report);
  EXPECT_EQ(notes_of(duty),
            (Notes{{1, FrameType::decision}, {2, FrameType::decision}, {3, FrameType::decision}}));
}

TEST_F(Root, WaitsForFreshHeartbeatsOnlySoLong) {
  all_beat(10, 0);
  duty.closed(2, "its connection closed", at(400));
  EXPECT_EQ(decide(400), "none");
  EXPECT_EQ(decide(699), "none");
  EXPECT_EQ(decide(700), "lost 2 code 200");
}

TEST_F(Root, WaitsForNobodyElseWhereAllOthersAreLost) {
  all_beat(10, 0);
  for (int rank = 1; rank < 4; ++rank) duty.closed(rank, "its connection closed", at(400 + rank));
  EXPECT_EQ(decide(410), "none");  // but for its own state
  EXPECT_EQ(decide(411), "lost 1 code 200");
}

TEST_F(Root, AFarewellMakesAClosedConnectionHarmless) {
  all_beat(10, 0);
  duty.heard(2, {FrameType::farewell, ""}, at(100));
  duty.closed(2, "its connection closed", at(110));
  all_beat(10, 200);
  EXPECT_EQ(decide(200), "none");
}

TEST_F(Root, NobodyIsLostOnceRankZeroHasLeft) {
  duty.leave();
  EXPECT_EQ(notes_of(duty),
            (Notes{{1, FrameType::farewell}, {2, FrameType::farewell}, {3, FrameType::farewell}}));
  duty.closed(2, "its connection closed", at(100));
  EXPECT_EQ(decide(60000), "none");
  EXPECT_TRUE(duty.leaving());
}

TEST_F(Root, AnyBytesAreASignOfLife) {
  for (int ms = 0; ms <= 30000; ms += 1000) {
    duty.observe({1, {}}, at(ms));
    for (int rank = 1; rank < 4; ++rank) duty.alive(rank, at(ms));
    EXPECT_EQ(decide(ms), "none");
  }
}

TEST_F(Root, NamesASilentRank) {
  for (int ms = 0; ms <= 15000; ms += 500) {
    duty.observe({1, {}}, at(ms));
    for (const int rank : {1, 3}) duty.heard(rank, heartbeat(1), at(ms));
    EXPECT_EQ(decide(ms), "none") << ms;
  }
  duty.observe({1, {}}, at(15001));
  EXPECT_EQ(decide(15001), "silent 2 code 201");
}

TEST_F(Root, TimeThatItWasHeldUpIsNoSilenceOfOthers) {
  all_beat(1, 0);
  duty.observe({1, {}}, at(20000));
  duty.forgive(seconds(20));  // this process was stopped
  EXPECT_EQ(decide(20000), "none");
  // What was silence before still is.
  for (const int rank : {1, 3}) duty.heard(rank, heartbeat(1), at(34000));
  duty.observe({1, {}}, at(34000));
  EXPECT_EQ(decide(35000), "none");
  EXPECT_EQ(decide(35001), "silent 2 code 201");
}

/// Rank 0 does not run for the last 1.3 of every 4 seconds.
class HeldUpRoot : public Root {
 protected:
  /// The time at which it reaches a decision, where rank 2 says `slots(seconds since the start)`; -1: not
  /// within two minutes.
  int decision_at(const std::function<std::optional<SlotState>(double)>& rank_two, SlotState others) {
    for (int ms = 0; ms < 120000; ms += 100) {
      if (ms % 4000 > 2700) continue;
      if (ms % 4000 == 0 && ms > 0) duty.forgive(milliseconds(1300));
      others.seconds = 0.001 * (ms - 1300 * (ms / 4000));
      duty.observe({1, {others}}, at(ms));
      others.seconds = 0.001 * ms;
      for (const int rank : {1, 3})
        duty.heard(rank, {FrameType::heartbeat, encode_heartbeat({1, {others}})}, at(ms));
      if (const auto slot = rank_two(0.001 * ms))
        duty.heard(2, {FrameType::heartbeat, encode_heartbeat({1, {*slot}})}, at(ms));
      if (decide(ms) != "none") return ms;
    }
    return -1;
  }
};

TEST_F(HeldUpRoot, FindsASilentRank) {
  // 15 s of its own running time: five rounds of 2.7 s and 1.5 s.
  EXPECT_EQ(decision_at([](double) { return std::nullopt; }, {0, Activity::idle, 0, ""}), 5 * 4000 + 1600);
  EXPECT_EQ(text(decision), "silent 2 code 201");
}

TEST_F(HeldUpRoot, FindsAStuckRankAsSoonAsItSaysSo) {
  options.compute_deadline = seconds(5);
  const auto stuck = [](double time) { return SlotState{0, Activity::compute, time, "a place"}; };
  EXPECT_EQ(decision_at(stuck, {0, Activity::waiting, 0, "a place"}), 5100);
  EXPECT_EQ(text(decision), "stuck 2 code 201");
}

TEST_F(HeldUpRoot, FindsADeadlock) {
  options.communication_deadline = seconds(10);
  const auto waits = [](double time) { return SlotState{0, Activity::waiting, time, "a place"}; };
  // The last that has waited for 10 s is rank 0 itself: three rounds of 2.7 s and 1.9 s.
  EXPECT_EQ(decision_at(waits, waits(0)), 3 * 4000 + 2000);
  EXPECT_THAT(text(decision), StartsWith("deadlock"));
}

TEST_F(Root, ARankThatFailedEndsTheJobAtOnceWithItsCode) {
  all_beat(10, 0);
  duty.heard(3, abort_frame(65, "a shard is damaged"), at(100));
  EXPECT_EQ(decide(100), "failed 3 code 65");
  EXPECT_EQ(decision->printed, "lockstep: the job ends with exit code 65 (failed: rank 3 on b)\n");
  EXPECT_THAT(decision->report, HasSubstr("a shard is damaged"));
}

TEST_F(Root, ItsOwnFailureEndsTheJob) {
  duty.fail({74, "no space"}, at(100));
  EXPECT_EQ(decide(100), "failed 0 code 74");
  EXPECT_EQ(notes_of(duty).size(), 3U);
}

TEST_F(Root, TheFirstFailureCounts) {
  duty.heard(3, abort_frame(65), at(100));
  duty.heard(1, abort_frame(70), at(101));
  EXPECT_EQ(decide(102), "failed 3 code 65");
}

TEST_F(Root, ALostPeerIsTheCauseOfWhatOthersSayOfLostPeers) {
  all_beat(10, 0);
  duty.heard(1, abort_frame(200, "rank 2 does not answer"), at(100));
  EXPECT_EQ(decide(100), "none");
  duty.closed(1, "its connection closed", at(110));  // rank 1 has ended, as it said
  duty.closed(2, "its connection closed", at(150));
  EXPECT_EQ(decide(150), "none");
  duty.heard(3, answer(10), at(160));
  EXPECT_EQ(decide(160), "lost 2 code 200");
}

TEST_F(Root, AFailureThatNothingElseExplainsIsReportedAfterAMoment) {
  all_beat(10, 0);
  duty.heard(1, abort_frame(201), at(100));
  EXPECT_EQ(decide(399), "none");
  EXPECT_EQ(decide(400), "failed 1 code 201");
}

TEST_F(Root, WaitsForALossWhenItIsToldToEnd) {
  all_beat(10, 0);
  duty.terminate(at(100));
  EXPECT_EQ(decide(100), "none");
  duty.terminate(at(300));
  EXPECT_EQ(decide(599), "none");
  EXPECT_EQ(decide(600), "terminated 0 code 143");
  EXPECT_EQ(decision->printed,
            "lockstep: was told to end (SIGTERM); nothing was saved; use SIGUSR1 or lockstep-run to stop "
            "with a checkpoint\n");
  EXPECT_EQ(notes_of(duty).size(), 3U);  // so that nobody takes it for lost
}

TEST_F(Root, GoesOnWhereItWasNotMeantToEndAfterAll) {
  all_beat(10, 0);
  duty.terminate(at(100));
  duty.go_on();
  EXPECT_EQ(decide(700), "none");
  duty.terminate(at(800));
  EXPECT_EQ(decide(1200), "none");
}

TEST_F(Root, ALossExplainsWhyItWasToldToEnd) {
  all_beat(10, 0);
  duty.terminate(at(100));
  duty.closed(2, "its connection closed", at(450));
  EXPECT_EQ(decide(450), "none");
  EXPECT_EQ(decide(749), "none");
  EXPECT_EQ(decide(750), "lost 2 code 200");
}

TEST_F(Root, ARankThatWasToldToEndIsNotLost) {
  all_beat(10, 0);
  duty.heard(2, abort_frame(143), at(100));
  duty.closed(2, "its connection closed", at(101));
  EXPECT_EQ(decide(101), "terminated 2 code 143");
}

TEST_F(Root, RefusesWhatMakesNoSense) {
  EXPECT_FALSE(duty.heard(1, {FrameType::heartbeat, "x"}, at(0)));
  EXPECT_FALSE(duty.heard(1, {FrameType::abort, ""}, at(0)));
  EXPECT_FALSE(duty.heard(1, {FrameType::decision, encode_decision({})}, at(0)));
  EXPECT_FALSE(duty.heard(1, {FrameType::ask, ""}, at(0)));
}

}  // namespace
}  // namespace lockstep::control
