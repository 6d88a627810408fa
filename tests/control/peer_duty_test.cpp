#include <gmock/gmock.h>

#include "control/duty.h"
#include "control/duty_testing.h"

namespace lockstep::control {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::StartsWith;

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
