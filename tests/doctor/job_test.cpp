#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <utility>

#include "doctor/job_facts.h"
#include "doctor/link_trial.h"
#include "mentions.h"

namespace lockstep::doctor {
namespace {

using testing::HasSubstr;

/// Four ranks on two hosts, all alike.
Ranks four() {
  Ranks ranks;
  for (int rank = 0; rank < 4; ++rank)
    ranks.push_back({.host = rank < 2 ? "a" : "b",
                     .host_number = rank / 2,
                     .program = "/opt/lockstep",
                     .binary = "1",
                     .mpi = "Open MPI v4.1.4, package: Debian",
                     .arithmetic = "cpu",
                     .gpu_libraries = "",
                     .clock = 100,
                     .work_rate = 10,
                     .launch_warnings = {},
                     .host_findings = {}});
  return ranks;
}

TEST(JobPairs, EverybodyMeetsEverybodyOnceAndNobodyTwoAtATime) {
  for (int count = 2; count <= 9; ++count) {
    std::set<std::pair<int, int>> met;
    for (int round = 0; round < rounds_of(count); ++round)
      for (int member = 0; member < count; ++member) {
        const int other = opponent(member, count, round);
        if (other < 0) {
          EXPECT_EQ(count % 2, 1);
          continue;
        }
        ASSERT_LT(other, count);
        EXPECT_NE(other, member);
        EXPECT_EQ(opponent(other, count, round), member) << count << " " << round;
        EXPECT_TRUE(met.insert({member, other}).second) << count << " " << round;
      }
    EXPECT_EQ(met.size(), static_cast<size_t>(count * (count - 1))) << count;
  }
}

TEST(JobFacts, TravelUnchanged) {
  RankFacts facts = four()[3];
  facts.gpus = 2;
  facts.launch_warnings = {"slow"};
  facts.host_findings = {{Level::warn, "few files", "ulimit -n 4096", "open_files"}};
  const RankFacts again = decode_rank_facts(encode(facts));
  EXPECT_EQ(encode(again), encode(facts));
  EXPECT_EQ(again.host_findings, facts.host_findings);
  EXPECT_EQ(again.clock, 100);
}

TEST(JobFacts, RanksThatAreAlikeAreFine) {
  const Ranks ranks = four();
  EXPECT_EQ(judge_ranks(ranks), (Finding{Level::ok, "4: 2 on a, 2 on b"}));
  for (const Finding& each : {judge_binding(ranks), judge_programs(ranks), judge_mpi_libraries(ranks),
                              judge_arithmetic(ranks), judge_clocks(ranks), judge_speed(ranks)})
    EXPECT_EQ(each.level, Level::ok) << each.found;
  EXPECT_EQ(judge_gpus_of_ranks(ranks).level, Level::skip);
  EXPECT_EQ(judge_hosts(ranks)[0].level, Level::skip);  // no rank has looked
}

TEST(JobFacts, RanksThatDifferAreNamedWithTheirHost) {
  Ranks ranks = four();
  ranks[3].binary = "2";
  EXPECT_EQ(
      judge_programs(ranks),
      (Finding{Level::fail,
               "rank 3 on b: its lockstep (/opt/lockstep) differs from that of the others (/opt/lockstep)",
               "scp /opt/lockstep b:/opt/lockstep"}));
  ranks[2].binary = "2";  // as many as of rank 0's, which counts
  EXPECT_THAT(judge_programs(ranks).found, HasSubstr("ranks 2, 3 on b:"));
  ranks[2].mpi = "Open MPI v5.0.0, package: other";
  EXPECT_EQ(judge_mpi_libraries(ranks).found, "rank 2 on b: Open MPI v5.0.0; the others: Open MPI v4.1.4");
  ranks[1].arithmetic = "gpu";
  EXPECT_EQ(judge_arithmetic(ranks).level, Level::warn);
  EXPECT_THAT(judge_arithmetic(ranks).found, HasSubstr("rank 1"));
}

TEST(JobFacts, FindingsOfHostsCarryTheHostsName) {
  Ranks ranks = four();
  ranks[0].host_findings = {{Level::ok, "fine", "", "memory"}};
  ranks[2].host_findings = {{Level::ok, "fine", "", "memory"}, {Level::skip, "none", "", "gpus"}};
  ASSERT_EQ(judge_hosts(ranks).size(), 1u);
  EXPECT_THAT(judge_hosts(ranks)[0].found, HasSubstr("2 hosts"));
  ranks[2].host_findings.push_back({Level::warn, "few", "ulimit -n 4096", "open_files"});
  ASSERT_EQ(judge_hosts(ranks).size(), 1u);
  EXPECT_EQ(judge_hosts(ranks)[0], (Finding{Level::warn, "on b, few", "ulimit -n 4096", "open_files"}));
}

TEST(JobFacts, EachRankNeedsAGpuWhereOthersHaveOne) {
  Ranks ranks = four();
  for (auto& each : ranks) each.gpus = 2;
  EXPECT_EQ(judge_gpus_of_ranks(ranks).level, Level::ok);
  for (auto& each : ranks) each.gpus = 1;  // one of its own, as some launchers show it
  EXPECT_EQ(judge_gpus_of_ranks(ranks).level, Level::ok);
  ranks[3].gpus = 0;
  EXPECT_THAT(judge_gpus_of_ranks(ranks).found, Mentions("rank 3 ... 0 GPUs ... 2 ranks"));
  ranks[3].gpus = 1;
  ranks[3].gpu_libraries = "nccl=2";
  EXPECT_EQ(judge_gpus_of_ranks(ranks).level, Level::fail);
}

TEST(JobFacts, ClocksAndSlowRanksAreNamed) {
  Ranks ranks = four();
  ranks[2].clock = 103.5;
  EXPECT_EQ(judge_clocks(ranks).found, "the clock of b is 3.5 s ahead of that of a");
  ranks[1].work_rate = 5;
  EXPECT_EQ(judge_speed(ranks).level, Level::warn);
  EXPECT_THAT(judge_speed(ranks).found, Mentions("rank 1 ... 50"));
  ranks[0].launch_warnings = {"bound"};
  EXPECT_EQ(judge_binding(ranks).found, "rank 0 on a: bound");
}

TEST(JobLinks, TheSlowestPairIsNamed) {
  const Ranks ranks = four();
  EXPECT_EQ(judge_latencies(ranks, {}).level, Level::skip);
  const Finding good = judge_latencies(ranks, {{0, 1, 1e-6}, {0, 2, 50e-6}, {0, 3, 40e-6}});
  EXPECT_EQ(good.level, Level::ok);
  EXPECT_EQ(good.found,
            "3 connected: median latency 40 us, slowest 50 us between rank 0 on a and rank 2 on b");
  EXPECT_EQ(judge_latencies(ranks, {{0, 2, 0.02}}).fix, "ping -c 5 b, from a");
}

TEST(JobLinks, AreHeldAgainstTheirInterfaceAndTheOthers) {
  const Ranks ranks = four();
  EXPECT_EQ(judge_links(ranks, {})[0].level, Level::skip);
  // 10 Gbit/s are 1.25e9 bytes.
  const auto good = judge_links(ranks, {{0, 1, 9e9, "", 0}, {0, 2, 1.1e9, "eth0", 10000}});
  ASSERT_EQ(good.size(), 2u);
  EXPECT_EQ(good[0],
            (Finding{Level::ok,
                     "a to b: 8.8 Gbit/s by eth0, which says 10 Gbit/s (rank 0 to 2); the slowest link"}));
  EXPECT_EQ(good[1], (Finding{Level::ok, "within a: 72 Gbit/s (rank 0 to 1)"}));
  const auto slow = judge_links(ranks, {{2, 0, 1.2e7, "eth0", 10000}});
  EXPECT_EQ(slow[0],
            (Finding{Level::warn,
                     "b to a: 96 Mbit/s by eth0, which says 10 Gbit/s (rank 2 to 0): far less than its speed",
                     "ethtool eth0, on both hosts"}));
  // An interface that says nothing: of three links, one has a third of what the others have.
  const auto odd = judge_links(ranks, {{0, 2, 9e8, "e", 0}, {2, 0, 3e8, "e", 0}, {1, 3, 9e8, "e", 0}});
  EXPECT_EQ(odd[0].level, Level::warn);
  EXPECT_THAT(odd[0].found, Mentions("2.4 Gbit/s ... 2 ... 0 ... 7.2 Gbit/s"));
  EXPECT_EQ(odd[1].level, Level::ok);
}

TEST(JobLinks, OfManyTheSlowAreListed) {
  std::vector<LinkFacts> links(100, LinkFacts{0, 2, 1e9, "e", 0});
  links[70].bytes_per_second = 1e8;
  const auto findings = judge_links(four(), links);
  EXPECT_EQ(findings.size(), 31u);
  EXPECT_EQ(findings.front().level, Level::warn);
  EXPECT_EQ(findings.back().found, "70 more, none of them slow");
}

TEST(JobLinks, SumsSayWhatEachLinkOfARingCarries) {
  const Ranks ranks = four();
  // 2 * 3/4 * 16 MiB in 25.165824 ms is 1e9 bytes a second.
  const AllReduceFacts facts{
      .size_bytes = 16 << 20, .seconds = 0.025165824, .backend = "mpi", .shm_problem = ""};
  EXPECT_EQ(judge_all_reduce(ranks, facts),
            (Finding{Level::ok, "16.00 MiB in 25.2 ms over MPI: 8 Gbit/s by rank"}));
  AllReduceFacts small = facts;
  small.shm_problem = "No space left on device";
  EXPECT_EQ(judge_all_reduce(ranks, small).level, Level::warn);
  EXPECT_EQ(judge_all_reduce({ranks[0]}, facts).level, Level::skip);
}

}  // namespace
}  // namespace lockstep::doctor
