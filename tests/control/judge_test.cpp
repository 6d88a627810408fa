#include "control/judge.h"

#include <gtest/gtest.h>

namespace lockstep::control {
namespace {

using std::chrono::seconds;

constexpr WatchdogOptions kOptions{.enabled = true,
                                   .heartbeat_interval = std::chrono::milliseconds(500),
                                   .silent_after = seconds(15),
                                   .compute_deadline = seconds(30),
                                   .input_deadline = seconds(40),
                                   .storage_deadline = seconds(50),
                                   .communication_deadline = seconds(20)};

RankState judge_state(std::vector<SlotState> slots, int64_t step = 7, double heard_seconds = 0.2) {
  return {.who = {"a", 1},
          .told = true,
          .last = {step, std::move(slots)},
          .heard_seconds = heard_seconds,
          .lost_reason = ""};
}
SlotState slot(Activity activity, double seconds) { return {0, activity, seconds, "somewhere"}; }
RankState working(double seconds = 0.1) { return judge_state({slot(Activity::compute, seconds)}); }
RankState waiting(double seconds, int64_t step = 7) {
  return judge_state({slot(Activity::waiting, seconds)}, step);
}
RankState lost(double since) {
  RankState rank = working();
  rank.lost = true;
  rank.lost_seconds = since;
  return rank;
}
RankState left() {
  RankState rank = judge_state({}, 7, 100);
  rank.left = true;
  return rank;
}

std::string decision(const std::vector<RankState>& states, const WatchdogOptions& options = kOptions) {
  const auto finding = judge(states, options);
  if (!finding) return "nobody";
  const char* names[] = {"lost", "silent", "stuck", "deadlock"};
  return std::string(names[static_cast<int>(finding->fault)]) + " " + std::to_string(finding->rank) +
         (finding->slot < 0 ? "" : " slot " + std::to_string(finding->slot));
}

TEST(Judge, BlamesNobodyInAHealthyJob) {
  EXPECT_EQ(decision({working(), waiting(0.3), working(29.9)}), "nobody");
  EXPECT_EQ(decision({working()}), "nobody");
}

TEST(Judge, NamesTheRankThatWasLostFirst) {
  EXPECT_EQ(decision({working(), lost(0.1), lost(0.25), lost(0.2)}), "lost 2");
}

TEST(Judge, TakesALossBeforeSilenceBeforeAStuckThread) {
  const RankState silent = judge_state({slot(Activity::compute, 0.1)}, 7, 15.1);
  EXPECT_EQ(decision({working(31), silent, lost(0.1)}), "lost 2");
  EXPECT_EQ(decision({working(31), silent, waiting(1)}), "silent 1");
  EXPECT_EQ(decision({working(31), working(), waiting(1)}), "stuck 0 slot 0");
}

TEST(Judge, NamesTheRankThatIsSilentForLongest) {
  EXPECT_EQ(decision({working(), judge_state({}, 7, 15.1), judge_state({}, 7, 15.2)}), "silent 2");
  EXPECT_EQ(decision({working(), judge_state({}, 7, 15.0)}), "nobody");
}

TEST(Judge, MeasuresEachActivityByItsOwnDeadline) {
  EXPECT_EQ(decision({judge_state({slot(Activity::compute, 30.0)})}), "nobody");
  EXPECT_EQ(decision({judge_state({slot(Activity::compute, 30.1)})}), "stuck 0 slot 0");
  EXPECT_EQ(decision({judge_state({slot(Activity::input, 40.0)})}), "nobody");
  EXPECT_EQ(decision({judge_state({slot(Activity::input, 40.1)})}), "stuck 0 slot 0");
  EXPECT_EQ(decision({judge_state({slot(Activity::storage, 50.0)})}), "nobody");
  EXPECT_EQ(decision({judge_state({slot(Activity::storage, 50.1)})}), "stuck 0 slot 0");
}

TEST(Judge, NamesTheThreadThatIsFurthestBeyondItsDeadline) {
  // 5 s beyond 30, 9 s beyond 50.
  EXPECT_EQ(decision({working(35), judge_state({slot(Activity::compute, 1), slot(Activity::storage, 59)})}),
            "stuck 1 slot 1");
}

TEST(Judge, NeverBlamesAWaitingRankWhileAnotherIsSilentOrStuck) {
  EXPECT_EQ(decision({waiting(119), judge_state({slot(Activity::waiting, 100)}, 3, 16)}), "silent 1");
  EXPECT_EQ(decision({waiting(119), working(30.1)}), "stuck 1 slot 0");
}

TEST(Judge, NeverBlamesAWaitingRankWhileAnotherMayBecomeSilentOrStuck) {
  EXPECT_EQ(decision({waiting(119), judge_state({slot(Activity::waiting, 100)}, 3, 7.6)}), "nobody");
  EXPECT_EQ(decision({waiting(119), judge_state({slot(Activity::waiting, 100)}, 3, 7.4)}), "deadlock 1");
  EXPECT_EQ(decision({waiting(119), working(29)}), "nobody");
  EXPECT_EQ(
      decision({waiting(119), judge_state({slot(Activity::waiting, 100), slot(Activity::storage, 49)})}),
      "nobody");
}

TEST(Judge, OfAllThatWaitNamesTheOneWithTheSmallestStepThenTheLongestWait) {
  EXPECT_EQ(decision({waiting(30, 8), waiting(21, 7), waiting(50, 8)}), "deadlock 1");
  EXPECT_EQ(decision({waiting(30), waiting(31), waiting(21)}), "deadlock 1");
  EXPECT_EQ(decision({waiting(30), waiting(30)}), "deadlock 0");
}

TEST(Judge, FindsNoDeadlockWhileAnyThreadGetsOn) {
  EXPECT_EQ(decision({waiting(30), waiting(20)}), "nobody");
  EXPECT_EQ(decision({waiting(30), judge_state({slot(Activity::waiting, 90), slot(Activity::waiting, 0.1)})}),
            "nobody");
}

TEST(Judge, FindsNoDeadlockWhereALongSaveHasJustEnded) {
  // All training threads have waited for their writers for 100 s. Rank 0's writer has ended, and its slot
  // stands until the training thread has noticed.
  const auto saved = [](double main, double writer) {
    return judge_state({slot(Activity::waiting, main), slot(Activity::waiting, writer)});
  };
  EXPECT_EQ(
      decision({judge_state({slot(Activity::waiting, 100), slot(Activity::storage, 30)}), saved(100, 90)}),
      "nobody");
  EXPECT_EQ(decision({saved(100, 0.1), saved(100, 90)}), "nobody");
  EXPECT_EQ(decision({waiting(0.1), saved(100, 90)}), "nobody") << "its training thread goes on";
  EXPECT_EQ(decision({saved(100, 20.1), saved(100, 90)}), "deadlock 1") << "it does not";
}

TEST(Judge, NeverBlamesIdleRanksNorThoseThatWaitForThem) {
  EXPECT_EQ(decision({judge_state({}), waiting(1000)}), "nobody");
  EXPECT_EQ(decision({judge_state({slot(Activity::idle, 1000)})}), "nobody");
}

TEST(Judge, FindsNoDeadlockBeforeEverybodyHasSpoken) {
  RankState unheard = waiting(30);
  unheard.told = false;
  EXPECT_EQ(decision({waiting(30), unheard}), "nobody");
}

TEST(Judge, LeavesOutWhoHasLeft) {
  EXPECT_EQ(decision({working(), left()}), "nobody");
  EXPECT_EQ(decision({waiting(21), left()}), "deadlock 0");
  RankState gone = lost(0.1);
  gone.left = true;
  EXPECT_EQ(decision({working(), gone}), "nobody");
}

TEST(Judge, CountsWaitsFromTheLossOfARankOnThatTheOthersGoOnWithout) {
  // Until rank 1 was found stuck, the others waited for it for longer than all of them may wait.
  const auto spared = [](double seconds) {
    RankState rank = judge_state({slot(Activity::compute, 300)}, 5);
    rank.left = rank.spared = true;
    rank.spared_seconds = seconds;
    return rank;
  };
  EXPECT_EQ(decision({waiting(300), spared(0), waiting(299)}), "nobody");
  EXPECT_EQ(decision({waiting(320), spared(20), waiting(319)}), "nobody");
  EXPECT_EQ(decision({waiting(320.1), spared(20.1), waiting(319.1)}), "deadlock 0");
  EXPECT_EQ(decision({waiting(320.1), spared(20.1), waiting(0.1)}), "nobody");
  EXPECT_EQ(decision({waiting(400), spared(100), waiting(400), spared(19)}), "nobody")
      << "the last loss counts";
}

TEST(Judge, SwitchedOffKnowsLossesAlone) {
  WatchdogOptions off = kOptions;
  off.enabled = false;
  EXPECT_EQ(decision({working(1000), judge_state({}, 7, 1000)}, off), "nobody");
  EXPECT_EQ(decision({waiting(1000), waiting(1000)}, off), "nobody");
  EXPECT_EQ(decision({working(), lost(0.1)}, off), "lost 1");
}

TEST(Judge, SeesOnlyAbsenceInFindAbsent) {
  EXPECT_FALSE(find_absent(std::vector{working(1000)}, kOptions));
  EXPECT_EQ(find_absent(std::vector{judge_state({}, 7, 15.1)}, kOptions), (Finding{Fault::silent, 0}));
}

}  // namespace
}  // namespace lockstep::control
