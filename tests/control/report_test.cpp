#include <fcntl.h>
#include <gmock/gmock.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <numeric>
#include <thread>

#include "control/crash_file.h"
#include "control/failure_report.h"
#include "control/last_words.h"
#include "mentions.h"

namespace lockstep::control {
namespace {

using ::testing::HasSubstr;

RankState reported_state(std::string host, int64_t pid, int64_t step, std::vector<SlotState> slots) {
  return {.who = {std::move(host), pid},
          .told = true,
          .last = {step, std::move(slots)},
          .heard_seconds = 0.1,
          .lost_reason = ""};
}

std::vector<RankState> four_ranks() {
  return {reported_state("a", 121, 1234,
                         {{0, Activity::waiting, 0.31, "step instruction 20 (all_reduce, lane world)"}}),
          reported_state("a", 122, 1234,
                         {{0, Activity::compute, 0.02, "step instruction 18 (backward, lane compute)"},
                          {17, Activity::storage, 2.5, "writing step 1200"}}),
          reported_state("b", 123, 1233,
                         {{0, Activity::compute, 0.4,
                           "step instruction 17 (backward, lane compute, segment 3, micro-batch 1)"}}),
          reported_state("b", 124, 1234, {})};
}

TEST(FailureReport, OfALostRank) {
  auto states = four_ranks();
  states[2].lost = true;
  states[2].lost_seconds = 0.3;
  states[2].heard_seconds = 0.5;
  states[2].lost_reason = "its connection closed";
  EXPECT_EQ(
      failure_report({Fault::lost, 2}, states, {}),
      "lockstep: error: rank 2 of 4 on host b (pid 123) was lost in step 1235: its connection closed "
      "without a farewell\n"
      "  it was last heard from 0.2 s earlier, in step instruction 17 (backward, lane compute, segment 3, "
      "micro-batch 1)\n"
      "  rank 0 on a: after step 1234, waits 0.3 s in step instruction 20 (all_reduce, lane world)\n"
      "  rank 1 on a: after step 1234, computes 0.0 s in step instruction 18 (backward, lane compute); "
      "stores 2.5 s in "
      "writing step 1200\n"
      "  rank 3 on b: after step 1234, idles\n"
      "lockstep: the job ends with exit code 200 (lost: rank 2 on b)\n");
}

TEST(FailureReport, OfASilentRank) {
  auto states = four_ranks();
  states[2].heard_seconds = 15.2;
  states[3].heard_seconds = 9.0;
  EXPECT_EQ(failure_report({Fault::silent, 2}, states, {}),
            "lockstep: error: rank 2 of 4 on host b (pid 123) is silent in step 1235: nothing was heard from "
            "it for 15.2 s "
            "(watchdog.silent_seconds is 15)\n"
            "  then it was in step instruction 17 (backward, lane compute, segment 3, micro-batch 1)\n"
            "  rank 0 on a: after step 1234, waits 0.3 s in step instruction 20 (all_reduce, lane world)\n"
            "  rank 1 on a: after step 1234, computes 0.0 s in step instruction 18 (backward, lane compute); "
            "stores 2.5 s in "
            "writing step 1200\n"
            "  rank 3 on b: not heard from for 9.0 s; after step 1234, idles\n"
            "lockstep: the job ends with exit code 201 (silent: rank 2 on b)\n");
}

TEST(FailureReport, OfAStuckThread) {
  auto states = four_ranks();
  states[1].last.slots[1].seconds = 601.25;
  EXPECT_EQ(failure_report({Fault::stuck, 1, 1}, states, {}),
            "lockstep: error: rank 1 of 4 on host a (pid 122) is stuck in step 1235: it stores for 601.2 s "
            "in writing step "
            "1200 (watchdog.storage_seconds is 600)\n"
            "  it is after step 1234, computes 0.0 s in step instruction 18 (backward, lane compute); stores "
            "601.2 s in "
            "writing step 1200\n"
            "  rank 0 on a: after step 1234, waits 0.3 s in step instruction 20 (all_reduce, lane world)\n"
            "  rank 2 on b: after step 1233, computes 0.4 s in step instruction 17 (backward, lane compute, "
            "segment 3, "
            "micro-batch 1)\n"
            "  rank 3 on b: after step 1234, idles\n"
            "lockstep: the job ends with exit code 201 (stuck: rank 1 on a)\n");
}

TEST(FailureReport, OfADeadlock) {
  const std::vector states{reported_state("a", 1, 8, {{0, Activity::waiting, 121, "x"}}),
                           reported_state("a", 2, 7, {{0, Activity::waiting, 125, "y"}})};
  EXPECT_EQ(
      failure_report({Fault::deadlock, 1}, states, {}),
      "lockstep: error: all ranks wait for each other; rank 1 of 2 on host a (pid 2) is furthest behind, in "
      "step 8: it has waited for 125.0 s, waiting in y (watchdog.communication_seconds is 120)\n"
      "  rank 0 on a: after step 8, waits 121.0 s in x\n"
      "lockstep: the job ends with exit code 201 (deadlock: rank 1 on a)\n");
}

TEST(FailureReport, OfWhatOneRankKnowsOfRankZero) {
  auto states = four_ranks();
  states[0].lost = true;
  states[0].lost_reason = "its connection closed";
  for (size_t rank = 2; rank < 4; ++rank) {
    states[rank].told = false;
    states[rank].last = {};
  }
  const std::string report = failure_report({Fault::lost, 0}, states, {});
  EXPECT_THAT(report, Mentions("rank 0 ... 4 ... 121 ... step 1235"));
  EXPECT_THAT(report, Mentions("0.1 s ... step instruction 20"));
  EXPECT_THAT(report, Mentions("2 ... code 200 ... rank 0"));
}

TEST(FailureReport, SharesLinesWhereRanksAreManyAndAlike) {
  std::vector<RankState> states;
  for (int rank = 0; rank < 512; ++rank)
    states.push_back(
        reported_state("h" + std::to_string(rank / 8), 1000 + rank, 40,
                       {{0, Activity::waiting, 1.0 + 0.001 * rank, "step instruction 9 (all_reduce)"}}));
  states[2].lost = true;
  states[2].lost_reason = "its connection closed";
  states[7].last.step = 39;
  EXPECT_EQ(failure_report({Fault::lost, 2}, states, {}),
            "lockstep: error: rank 2 of 512 on host h0 (pid 1002) was lost in step 41: its connection closed "
            "without a farewell\n"
            "  it was last heard from 0.1 s earlier, waiting in step instruction 9 (all_reduce)\n"
            "  ranks 0-1, 3-6, 8-511: after step 40, wait 1.0 to 1.5 s in step instruction 9 (all_reduce)\n"
            "  rank 7 on h0: after step 39, waits 1.0 s in step instruction 9 (all_reduce)\n"
            "lockstep: the job ends with exit code 200 (lost: rank 2 on h0)\n");
}

TEST(FailureReport, StaysUnderFortyLinesWhateverTheRanksDo) {
  for (const int size : {1, 2, 30, 31, 33, 40, 511}) {
    std::vector<RankState> states;
    for (int rank = 0; rank < size; ++rank) {
      states.push_back(reported_state("h", rank, rank,
                                      {{0, Activity::compute, 1, "instruction " + std::to_string(rank)},
                                       {3, Activity::storage, 700, "a checkpoint"}}));
      states.back().told = rank % 7 != 3;
    }
    const std::string report = failure_report({Fault::stuck, 0, 1}, states, {});
    EXPECT_LT(std::count(report.begin(), report.end(), '\n'), 40) << size;
    EXPECT_TRUE(report.ends_with("lockstep: the job ends with exit code 201 (stuck: rank 0 on h)\n"))
        << report;
  }
}

TEST(FailureReport, WritesRangesOfRanks) {
  EXPECT_EQ(ranks_text({4}), "4");
  EXPECT_EQ(ranks_text({0, 2, 3, 4, 9}), "0, 2-4, 9");
  std::vector<int> even;
  for (int rank = 0; rank < 40; rank += 2) even.push_back(rank);
  EXPECT_EQ(ranks_text(even), "0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, and 8 more");
}

TEST(FailureReport, OfARankThatFailedLeavesTheReasonToIt) {
  EXPECT_EQ(last_line(65, Fault::failed, 3, "b"),
            "lockstep: the job ends with exit code 65 (failed: rank 3 on b)\n");
  EXPECT_EQ(abort_report(3, four_ranks(), 65, "a shard is damaged"),
            "rank 3 of 4 on host b (pid 124) failed: a shard is damaged\n"
            "lockstep: the job ends with exit code 65 (failed: rank 3 on b)\n");
}

TEST(CrashFile, SaysWhoWhereAndWhy) {
  const CrashRecord record{3,
                           {"b", 124},
                           {Fault::lost, 2, 200, "lockstep: error: rank 2 was lost\n", ""},
                           {12, {{0, Activity::waiting, 1.5, "step instruction 4"}}}};
  EXPECT_EQ(
      crash_text(record, "2025-01-31T12:00:00Z"),
      "time: 2025-01-31T12:00:00Z\nhost: b\npid: 124\nrank: 3\nexit code: 200\n"
      "this rank: after step 12, waits 1.5 s in step instruction 4\n\nlockstep: error: rank 2 was lost\n");
}

TEST(CrashFile, IsWrittenIntoAFolderThatIsMadeAndIsSilentWhereItCannotBe) {
  const auto folder = std::filesystem::path(testing::TempDir()) / "lockstep_crash_file_test";
  std::filesystem::remove_all(folder);
  const CrashRecord record{42, {"b", 124}, {Fault::lost, 2, 200, "why\n", ""}, {}};
  write_crash_file((folder / "a" / "b").string(), record);
  std::ifstream file(folder / "a" / "b" / "rank-00042.txt");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  EXPECT_THAT(text, Mentions("42 ... 200 ... step 0"));
  write_crash_file("/proc/no/such/folder", record);
  write_crash_file("", record);
  std::filesystem::remove_all(folder);
}

TEST(LastWords, ArriveWholeThroughAPipeThatTakesLittleAtATime) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
  ASSERT_EQ(::fcntl(ends[0], F_SETFL, 0), 0);  // the reader waits, the writer must
  ASSERT_GT(::fcntl(ends[1], F_SETPIPE_SZ, 4096), 0);
  std::string text(100000, 'x');
  std::iota(text.begin(), text.end(), '\0');
  std::string arrived;
  std::thread reader([&] {
    char chunk[1000];
    while (arrived.size() < text.size()) {
      const auto count = ::read(ends[0], chunk, sizeof(chunk));
      if (count <= 0) return;
      arrived.append(chunk, static_cast<size_t>(count));
    }
  });
  EXPECT_TRUE(write_all(ends[1], text));
  ::close(ends[1]);
  reader.join();
  ::close(ends[0]);
  EXPECT_TRUE(arrived == text) << arrived.size();
}

TEST(LastWords, AreGivenUpWhereNobodyReads) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  ::close(ends[0]);
  bool whole = true;
  // On the thread that says them, which no SIGPIPE ends.
  const bool said = run_at_most(std::chrono::minutes(1), [&] { whole = write_all(ends[1], "text"); });
  ::close(ends[1]);
  EXPECT_TRUE(said);
  EXPECT_FALSE(whole);
}

}  // namespace
}  // namespace lockstep::control
