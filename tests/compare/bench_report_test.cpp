#include "compare/bench_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/error.h"
#include "mentions.h"

namespace lockstep::compare {
namespace {

using testing::HasSubstr;

/// Three ranks, of which the last two are on other hosts than the first.
BenchReport report() {
  return {.hosts = {0, 0, 1},
          .pairs = {{.peer = 1, .latency = 1e-6, .one_way_per_byte = 1e-10, .both_ways_per_byte = 2e-10},
                    {.peer = 2, .latency = 5e-6, .one_way_per_byte = 8e-9, .both_ways_per_byte = 8e-9}},
          .sums = {{.bytes = 8, .seconds = 1e-5}, {.bytes = 1008, .seconds = 2e-5}},
          .addition_per_byte = 1e-10};
}

TEST(BenchReport, IsReadAsItWasWritten) {
  BenchReport found = report();
  EXPECT_EQ(bench_report_from(to_json(found)), found);
  found.shared_sums = found.sums;
  found.arithmetic = {.instruction_set = "AVX2", .peak = 5e9, .products = 4e9, .attention = 3e9};
  EXPECT_EQ(bench_report_from(to_json(found)), found);
  EXPECT_THROW(bench_report_from(nlohmann::ordered_json::object()), DataError);
}

TEST(BenchReport, FiguresTellPairsOfOneHostFromOthers) {
  BenchReport found = report();
  plan::MachineFigures figures = found.figures();
  EXPECT_EQ(figures.within_host.both_ways_per_byte, 2e-10);
  EXPECT_EQ(figures.between_hosts.latency, 5e-6);
  EXPECT_EQ(figures.shared_ranks, 0);
  found.shared_sums = {{.bytes = 8, .seconds = 1e-6}, {.bytes = 1008, .seconds = 3e-6}};
  figures = found.figures();
  EXPECT_EQ(figures.shared_ranks, 3);
  EXPECT_EQ(figures.shared_meeting, 1e-6);
  EXPECT_NEAR(figures.shared_sum_per_byte, 2e-9, 1e-15);
}

TEST(BenchReport, TableHasEveryPairAndSize) {
  const std::string table = report().table();
  for (const char* said : {"0, 1  same", "0, 2  other", "5 us", "119.21 MiB/s", "1008 B", "by messages"})
    EXPECT_THAT(table, HasSubstr(said));
  EXPECT_THAT(table, testing::Not(HasSubstr("shared memory")));
  EXPECT_THAT(table, testing::Not(HasSubstr("arithmetic")));
  EXPECT_THAT((BenchReport{.hosts = {0}, .addition_per_byte = 1e-10}.table()), HasSubstr("one process"));
}

TEST(BenchReport, WarnsOfWhatReachesLessThanHalfOfThePeak) {
  BenchReport fast = report();
  fast.arithmetic = {.instruction_set = "AVX2", .peak = 5e9, .products = 4e9, .attention = 3e9};
  EXPECT_THAT(fast.table(),
              HasSubstr("AVX2, at most 5 GFLOP/s of a core: products reach 80 %, attention 60 %"));
  EXPECT_THAT(fast.table(), testing::Not(HasSubstr("warning")));
  fast.arithmetic->attention = 2e9;
  EXPECT_THAT(fast.table(), Mentions("warning: ... attention"));
}

}  // namespace
}  // namespace lockstep::compare
