#include "control/duty.h"

#include <gmock/gmock.h>

#include <functional>

#include "control/watchdog.h"

namespace lockstep::control {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::StartsWith;

const Clock::time_point kStart{seconds(1000)};
Clock::time_point at(int ms) { return kStart + milliseconds(ms); }

std::vector<RankIdentity> ranks(int size) {
  std::vector<RankIdentity> all;
  for (int rank = 0; rank < size; ++rank) all.push_back({rank < 2 ? "a" : "b", 100 + rank});
  return all;
}

Frame heartbeat(int64_t step, Activity activity = Activity::compute, double seconds = 0.1) {
  return {FrameType::heartbeat, encode_heartbeat({step, {{0, activity, seconds, "a place"}}})};
}
Frame answer(int64_t step) { return {FrameType::answer, heartbeat(step).payload}; }
Frame abort_frame(int code, const std::string& reason = "reason") {
  return {FrameType::abort, encode_abort({code, reason})};
}

std::string text(const std::optional<JobDecision>& decision) {
  if (!decision) return "none";
  const char* names[] = {"lost", "silent", "stuck", "deadlock", "failed", "terminated"};
  return std::string(names[static_cast<int>(decision->fault)]) + " " + std::to_string(decision->rank) +
         " code " + std::to_string(decision->code);
}

std::vector<std::pair<int, FrameType>> notes_of(Duty& duty) {
  std::vector<std::pair<int, FrameType>> notes;
  for (const auto& note : duty.take_notes()) notes.emplace_back(note.to, note.type);
  return notes;
}
using Notes = std::vector<std::pair<int, FrameType>>;

class Root : public testing::Test {
 protected:
  void all_beat(int64_t step, int ms) {
    duty.observe({step, {}}, at(ms));
    for (int rank = 1; rank < 4; ++rank) duty.heard(rank, heartbeat(step), at(ms));
  }
  std::string decide(int ms) {
    decision = duty.decide(options, at(ms));
    return text(decision);
  }

  WatchdogOptions options;
  RootDuty duty{ranks(4), ControlTimings{}, kStart};
  std::optional<JobDecision> decision;
};

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
  EXPECT_THAT(decision->printed,
              HasSubstr("rank 2 of 4 on host b (pid 102) was lost in step 13: its connection closed"));
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
  EXPECT_EQ(losses[0].report,
            "lockstep: warning: rank 2 of 4 on host b (pid 102) was lost in step 11: its connection closed "
            "without a farewell\n  it was last heard 0.4 s before, in a place\n  the others go on without "
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
  EXPECT_THAT(decision->report, HasSubstr("rank 2 on b: lost before; the job went on"));
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
  EXPECT_THAT(duty.take_losses().at(0).report, HasSubstr("rank 3 of 4 on host b (pid 103) is stuck"));
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

TEST_F(Root, RefusesWhatMakesNoSense) {
  EXPECT_FALSE(duty.heard(1, {FrameType::heartbeat, "x"}, at(0)));
  EXPECT_FALSE(duty.heard(1, {FrameType::abort, ""}, at(0)));
  EXPECT_FALSE(duty.heard(1, {FrameType::decision, encode_decision({})}, at(0)));
  EXPECT_FALSE(duty.heard(1, {FrameType::ask, ""}, at(0)));
}

class Peer : public testing::Test {
 protected:
  std::string decide(int ms) {
    decision = duty.decide(options, at(ms));
    return text(decision);
  }

  WatchdogOptions options;
  PeerDuty duty{2, ranks(4), ControlTimings{}, kStart};  // the lowest rank that is not on rank 0's host
  std::optional<JobDecision> decision;
};

TEST_F(Peer, CarriesOutRankZerosDecisionInSilence) {
  EXPECT_TRUE(duty.heard(
      0, {FrameType::decision, encode_decision({Fault::lost, 3, 200, "rank 3 was lost", "x"})}, at(10)));
  duty.closed(0, "its connection closed", at(11));
  EXPECT_EQ(decide(11), "lost 3 code 200");
  EXPECT_EQ(decision->report, "rank 3 was lost");
  EXPECT_EQ(decision->printed, "");
}

TEST_F(Peer, ReportsThatRankZeroIsLost) {
  duty.heard(0, heartbeat(7, Activity::waiting), at(0));
  duty.observe({7, {}}, at(0));
  duty.closed(0, "its connection closed", at(100));
  EXPECT_EQ(decide(100), "lost 0 code 200");
  EXPECT_THAT(decision->printed,
              StartsWith("lockstep: error: rank 0 of 4 on host a (pid 100) was lost in step 8"));
}

TEST_F(Peer, ReportsThatRankZeroIsSilent) {
  duty.heard(0, heartbeat(7), at(0));
  EXPECT_EQ(decide(15000), "none");
  EXPECT_EQ(decide(15001), "silent 0 code 201");
}

TEST_F(Peer, TellsRankZeroWhatItFoundOfIt) {
  decide(16000);
  ASSERT_EQ(text(decision), "silent 0 code 201");
  const auto notes = duty.take_notes();
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_EQ(notes[0].to, 0);
  EXPECT_EQ(notes[0].type, FrameType::decision);
  // Which wakes up, leaves with the same decision, and leaves the printing to the others.
  RootDuty root{ranks(4), ControlTimings{}, kStart};
  EXPECT_TRUE(root.heard(2, {FrameType::decision, notes[0].payload}, at(17000)));
  root.closed(2, "its connection closed", at(17000));
  const auto own = root.decide(options, at(17000));
  EXPECT_EQ(text(own), "silent 0 code 201");
  EXPECT_EQ(own->printed, "");
  // Whoever prints for rank 0 may hear of it only now.
  for (const auto& note : root.take_notes()) {
    PeerDuty peer{note.to, ranks(4), ControlTimings{}, kStart};
    peer.heard(0, {note.type, note.payload}, at(17000));
    const auto heard = peer.decide(options, at(17000));
    EXPECT_EQ(text(heard), "silent 0 code 201");
    EXPECT_EQ(heard->printed, note.to == 3 ? "" : own->report) << note.to;
  }
}

TEST_F(Peer, TimeThatItWasHeldUpIsNoSilenceOfRankZero) {
  duty.forgive(seconds(20));
  EXPECT_EQ(decide(35000), "none");
  EXPECT_EQ(decide(35001), "silent 0 code 201");
}

TEST_F(Peer, NeverJudgesTheOthersNorItself) {
  options.compute_deadline = seconds(1);
  duty.heard(0, heartbeat(7, Activity::compute, 100), at(9000));
  duty.observe({7, {{0, Activity::compute, 100, "x"}}}, at(9000));
  EXPECT_EQ(decide(16000), "none");
}

TEST_F(Peer, AnswersWhenItIsAsked) {
  EXPECT_FALSE(duty.take_heartbeat_request());
  EXPECT_TRUE(duty.heard(0, {FrameType::ask, ""}, at(1)));
  EXPECT_TRUE(duty.take_heartbeat_request());
  EXPECT_FALSE(duty.take_heartbeat_request());
}

TEST_F(Peer, BeatsWithRankZero) {
  EXPECT_FALSE(duty.take_beat());
  duty.heard(0, heartbeat(7), at(1));
  EXPECT_TRUE(duty.take_beat());
  EXPECT_FALSE(duty.take_beat());
}

TEST_F(Peer, TellsRankZeroThatItFailsAndWaitsForTheDecision) {
  duty.fail({65, "a shard is damaged"}, at(10));
  EXPECT_EQ(duty.take_notes(),
            (std::vector<Duty::Note>{{0, FrameType::abort, encode_abort({65, "a shard is damaged"})}}));
  EXPECT_EQ(decide(10), "none");
}

TEST_F(Peer, NobodyIsLostAfterAFarewellOfEitherSide) {
  duty.leave();
  EXPECT_EQ(notes_of(duty), (Notes{{0, FrameType::farewell}}));
  duty.closed(0, "its connection closed", at(100));
  EXPECT_EQ(decide(60000), "none");
  EXPECT_TRUE(duty.leaving());

  PeerDuty other(1, ranks(4), ControlTimings{}, kStart);
  other.heard(0, {FrameType::farewell, ""}, at(10));
  other.closed(0, "its connection closed", at(20));
  EXPECT_EQ(text(other.decide(options, at(60000))), "none");
  EXPECT_TRUE(other.leaving());  // rank 0 knew that all have come so far
}

TEST_F(Peer, FailsAloneOnceRankZeroHasLeft) {
  duty.heard(0, {FrameType::farewell, ""}, at(10));
  duty.closed(0, "its connection closed", at(20));
  duty.fail({74, "no space"}, at(30));
  EXPECT_EQ(decide(30), "failed 2 code 74");
  EXPECT_EQ(decision->printed, "lockstep: the job ends with exit code 74 (failed: rank 2 on b)\n");
}

TEST_F(Peer, WaitsForADecisionWhenItIsToldToEnd) {
  duty.terminate(at(100));
  EXPECT_EQ(decide(599), "none");
  EXPECT_TRUE(duty.take_notes().empty());
  EXPECT_EQ(decide(600), "none");
  EXPECT_EQ(notes_of(duty), (Notes{{0, FrameType::abort}}));
  EXPECT_EQ(decide(899), "none");
  EXPECT_TRUE(duty.take_notes().empty());
  EXPECT_EQ(decide(900), "terminated 2 code 143");
  EXPECT_EQ(decision->printed, "");
}

TEST_F(Peer, RefusesWhatMakesNoSense) {
  EXPECT_FALSE(duty.heard(0, {FrameType::decision, encode_decision({Fault::lost, 4, 200, "", ""})}, at(0)));
  EXPECT_FALSE(duty.heard(0, {FrameType::decision, "x"}, at(0)));
  EXPECT_FALSE(duty.heard(0, {FrameType::abort, encode_abort({})}, at(0)));
  EXPECT_EQ(decide(0), "none");
}

TEST(ControlDuty, OneRankOnEachSideSpeaksForRankZero) {
  std::vector<RankState> all;
  for (const char* host : {"a", "b", "a", "a", "c", "b"}) all.push_back({.who = {host, 0}});
  const auto who_prints = [&] {
    std::vector<bool> prints;
    for (int rank = 0; rank < 6; ++rank) prints.push_back(prints_instead_of_root(rank, all));
    return prints;
  };
  EXPECT_EQ(who_prints(), (std::vector<bool>{false, true, true, false, false, false}));
  all[2].spared = all[1].spared = true;
  EXPECT_EQ(who_prints(), (std::vector<bool>{false, true, true, true, true, false}));
}

TEST(ControlDuty, ALoopThatCameRoundLateWasHeldUp) {
  WatchdogOptions options;  // silent after 15 s: a second is tolerated
  EXPECT_EQ(held_up(milliseconds(100), milliseconds(1100), options), milliseconds(0));
  EXPECT_EQ(held_up(milliseconds(100), milliseconds(1101), options), milliseconds(1001));
  options.silent_after = milliseconds(2000);
  EXPECT_EQ(held_up(milliseconds(100), milliseconds(600), options), milliseconds(0));
  EXPECT_EQ(held_up(milliseconds(100), milliseconds(601), options), milliseconds(501));
  options.silent_after = milliseconds(100);
  EXPECT_EQ(held_up(milliseconds(10), milliseconds(110), options), milliseconds(0));
  EXPECT_EQ(held_up(milliseconds(10), milliseconds(111), options), milliseconds(101));
}

TEST_F(Peer, EndsWhomOneThatWasLostLaterWasToEnd) {
  PeerDuty last{3, ranks(5), ControlTimings{}, kStart};  // of host b: ranks 2, 3, 4
  last.heard(0, {FrameType::loss, encode_ranks({4})}, at(1));
  EXPECT_THAT(last.take_losses().at(0).to_end, testing::IsEmpty());
  last.heard(0, {FrameType::loss, encode_ranks({2})}, at(2));
  EXPECT_EQ(last.take_losses().at(0).to_end, (std::vector<int>{2, 4}));
}

TEST_F(Peer, TellsOfSections) {
  duty.enter_section({false, true});
  duty.leave_section();
  EXPECT_EQ(notes_of(duty), (Notes{{0, FrameType::enter}, {0, FrameType::leave}}));
  EXPECT_TRUE(duty.heard(0, {FrameType::loss, encode_ranks({3})}, at(1)));
  const auto losses = duty.take_losses();
  ASSERT_EQ(losses.size(), 1u);
  EXPECT_EQ(losses[0].rank, 3);
  EXPECT_EQ(losses[0].to_end, std::vector<int>{3}) << "rank 2 is the first on its host";
  EXPECT_EQ(losses[0].report, "");
  EXPECT_TRUE(duty.heard(0, {FrameType::members, encode_ranks({0, 1, 2})}, at(1)));
  EXPECT_EQ(duty.take_members(), (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(decide(1), "none");
  EXPECT_FALSE(duty.heard(0, {FrameType::loss, encode_ranks({4})}, at(1)));
  EXPECT_FALSE(duty.heard(0, {FrameType::members, encode_ranks({})}, at(1)));
}

}  // namespace
}  // namespace lockstep::control
