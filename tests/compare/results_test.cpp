#include "compare/results.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "compare/forecast.h"
#include "compare/page.h"
#include "lockstep/error.h"
#include "mentions.h"
#include "results_examples.h"

namespace lockstep::compare {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

TEST(StandInHosts, HaveHalfOfTheRanksEachInTheirOrder) {
  EXPECT_EQ(stand_in_hosts(2), (std::vector{0, 1}));
  EXPECT_EQ(stand_in_hosts(4), (std::vector{0, 0, 1, 1}));
  EXPECT_EQ(stand_in_hosts(5), (std::vector{0, 0, 0, 1, 1}));
}

TEST(CompareResults, TableHasEfficiencyAndWhatFailed) {
  CompareResults found = results();
  const std::string table = found.table();
  // 60 samples in 12 ms are 5000 a second, in 8 ms 7500 on two workers: three quarters for each.
  EXPECT_THAT(table, HasSubstr("8.00 to 8.10"));
  EXPECT_THAT(table, HasSubstr("  7500.0 "));
  EXPECT_THAT(table, HasSubstr(" 75.0 %"));
  EXPECT_THAT(table, HasSubstr(" 25 %  identical\n"));
  EXPECT_THAT(table, HasSubstr(" 0.50 ")) << "servers beside all-reduce";
  found.rows[1].failure = "out of luck";
  found.rows[2].samples.clear();
  found.rows[2].failure = "out of memory";
  found.rows[2].proof_detail = "differs: step 3";
  EXPECT_THAT(found.table(), Mentions("2 workers ... sync=all_reduce: FAILED ... 3 runs"));
  EXPECT_THAT(found.table(), HasSubstr("FAILED: out of memory\n"));
  EXPECT_THAT(found.table(), HasSubstr("2 workers, sync=ps: differs: step 3\n"));
}

TEST(CompareResults, LinksHaveFirstRowsOfTheirOwn) {
  CompareResults found = over_links();
  EXPECT_EQ(found.efficiency(found.rows[2]), 1) << "relative to the same link";
  const std::string table = found.table();
  EXPECT_THAT(table, HasSubstr("\n none        2  sync=all_reduce"));
  EXPECT_THAT(table, HasSubstr("\n1gbit        2  sync=ps "));
  EXPECT_THAT(table, HasSubstr(" 2.00 ")) << "servers beside all-reduce, over the slow link";
  // 60 samples in 40 ms are a million in 666.7 s: of two hosts at 3.6 for an hour.
  found.price = 3.6;
  EXPECT_NEAR(found.cost(found.rows[2]), 1.3333, 1e-4);
  EXPECT_THAT(found.table(), HasSubstr("1.333  identical"));
  CompareResults other = found;
  other.rows[3].link = "2gbit";
  EXPECT_NE(found.first_difference(other), "");
}

TEST(CompareResults, OverLinksWithRanksThatAlternatedAreAnotherComparison) {
  const auto by_older_build = [](const CompareResults& found) {
    auto json = to_json(found);
    json.erase("ranks");
    return compare_results_from_text(json.dump(), "results.json");
  };
  EXPECT_EQ(over_links().first_difference(by_older_build(over_links())), "the order of ranks on the hosts");
  EXPECT_EQ(results().first_difference(by_older_build(results())), "") << "one host";
}

TEST(CompareResults, PredictionsStandBesideWhatWasMeasured) {
  CompareResults found = predicted();
  // 6 beside 8, and 44 beside 40; the row of three processes on two cores does not count.
  EXPECT_NEAR(*found.prediction_error(), (0.25 + 0.1) / 2, 1e-12);
  EXPECT_THAT(
      found.table(),
      AllOf(HasSubstr(" 6.00 "), HasSubstr(" 1.00* "), HasSubstr(" 44.00 "), Mentions("17.5 % ... *: "),
            Mentions("1gbit ... 8 workers ... sync=ps ... 30.00 ms ... 2000.0 samples/s")));
  EXPECT_THAT(compare_page(found),
              AllOf(HasSubstr(">-25.0 %</td>"), HasSubstr(">+10.0 %</td>"), HasSubstr("extrapolated"),
                    Mentions("1gbit ... sync=ps ... sync=all_reduce ... 3 to 4")));
  EXPECT_EQ(results().prediction_error(), std::nullopt);
}

TEST(CompareResults, TellLossesAgainstSamplesAndTime) {
  CompareResults found = results();
  for (CompareRow& row : found.rows)
    for (int i = 1; i <= 4; ++i) row.losses.push_back({.samples = 600 * i, .loss = 2.0 / i});
  found.target_loss = 1;
  // 1200 samples, at 60 of them in 12, 8 and 16 ms.
  EXPECT_NEAR(*found.rows[0].seconds_to(1), 0.24, 1e-9);
  EXPECT_EQ(found.rows[0].seconds_to(0.4), std::nullopt);
  EXPECT_THAT(found.table(), AllOf(HasSubstr("loss 1 after"), HasSubstr("240 ms"), HasSubstr("320 ms")));
  EXPECT_THAT(compare_page(found), AllOf(HasSubstr("against samples"), HasSubstr("against seconds"),
                                         HasSubstr(">240 ms</td>"), HasSubstr(">0.6667</td>")));
  EXPECT_EQ(to_json(compare_results_from_text(to_json(found).dump(), "r")).dump(), to_json(found).dump());
}

TEST(CompareResults, WithLossesThatAreNotFiniteAreReadAgain) {
  CompareResults found = results();
  found.rows[0].losses = {{.samples = 60, .loss = std::numeric_limits<double>::quiet_NaN()}};
  found.rows[0].samples[0].train_loss = std::numeric_limits<double>::infinity();
  const CompareResults read = compare_results_from_text(to_json(found).dump(), "r");
  EXPECT_TRUE(std::isnan(read.rows[0].losses[0].loss));
  EXPECT_EQ(read.rows[0].seconds_to(1), std::nullopt);
  EXPECT_FALSE(std::isfinite(read.rows[0].samples[0].train_loss));
  EXPECT_THAT(compare_page(read), HasSubstr("nan"));
}

TEST(CompareResults, OfOtherMachinesAndDevicesAreAnotherComparison) {
  const CompareResults found = results();
  const std::pair<std::string CompareResults::*, const char*> fields[] = {
      {&CompareResults::host, "the machine"},
      {&CompareResults::device, "--device"},
      {&CompareResults::hosts_text, "the hosts"},
      {&CompareResults::config_hash, "the config"},
      {&CompareResults::version, "lockstep's version"}};
  for (const auto& [field, name] : fields) {
    CompareResults other = found;
    other.*field = "elsewhere";
    EXPECT_EQ(found.first_difference(other), name);
  }
}

TEST(CompareResults, TellWhatAStragglerLeaves) {
  CompareResults found = results();
  EXPECT_THAT(found.table(), testing::Not(HasSubstr("straggler")));
  found.straggler = "0:2";
  for (CompareRow& row : found.rows)
    for (CompareSample& sample : row.samples) sample.straggler_step_ms = 1.25 * sample.step_ms;
  EXPECT_THAT(found.table(), AllOf(HasSubstr("with straggler"), HasSubstr(" 80 % ")));
  EXPECT_THAT(compare_page(found), AllOf(HasSubstr("with straggler 0:2"), HasSubstr(">15.00 ms, 80 %</td>")));
  EXPECT_EQ(found.first_difference(results()), "--straggler");
}

TEST(CompareResults, AreReadAsTheyWereWritten) {
  CompareResults found = predicted();
  found.ties.push_back({.workers = 2, .kind = "sync=ps", .beside = "sync=all_reduce", .rates = {}});
  found.rows[0].kill = {.seconds = 4, .undisturbed_seconds = 3, .starts = 2};
  found.rows[0].math_hash = "01";
  found.rows[0].links_theory = {{"host-a", 1, 2}};
  found.rows[0].samples[0].traffic = {{"host-a", 3, 4}};
  found.rows[0].samples[0].staleness_bound = 1;
  found.rows[0].samples[0].staleness_histogram = {5, 6};
  found.kill_rank = 1;
  found.rows[1].failure = "out of luck";
  found.rows[2].proof = CompareProof::different;
  found.rows[2].proof_detail = "differs: step 3";
  const std::string text = to_json(found).dump();
  const CompareResults read = compare_results_from_text(text, "results.json");
  EXPECT_EQ(to_json(read).dump(), text);
  EXPECT_EQ(read.first_difference(found), "");
  CompareResults other = found;
  other.steps = 51;
  EXPECT_EQ(read.first_difference(other), "--steps");
  other = found;
  other.rows.pop_back();
  EXPECT_EQ(read.first_difference(other), "--workers, --layouts or --link");
  for (const char* wrong : {"", "{}", "[1]", R"({"format": 1})"})
    EXPECT_THROW(compare_results_from_text(wrong, "results.json"), DataError) << wrong;
  // Whole numbers that their fields cannot hold.
  for (const char* name : {"steps", "seed", "cores"})
    for (const double value : {1e300, -1e300, 0.5}) {
      auto json = nlohmann::ordered_json::parse(text);
      json[name] = value;
      EXPECT_THROW(compare_results_from_text(json.dump(), "results.json"), DataError) << name << " " << value;
    }
  for (const double value : {1e300, -1e300, 0.5}) {
    auto json = nlohmann::ordered_json::parse(text);
    json["rows"][0]["samples"][0]["staleness_histogram"] = {1, value};
    EXPECT_THROW(compare_results_from_text(json.dump(), "results.json"), DataError) << value;
  }
}

TEST(CompareResults, CsvHasALineForEachRun) {
  const std::string csv = results().csv();
  EXPECT_THAT(csv,
              StartsWith("link,workers,layout,processes,global_batch,proof,predicted_ms,round,step_ms,"));
  EXPECT_THAT(csv, HasSubstr("\n,2,\"dp=2,sync=ps\",3,60,identical,0,3,16.1,"));
  EXPECT_EQ(std::ranges::count(csv, '\n'), 1 + 9);
  CompareResults found = results();
  found.rows[2].samples.clear();
  found.rows[2].failure = "out of \"luck\"\nand of memory";
  EXPECT_THAT(found.csv(), HasSubstr("\n,2,\"dp=2,sync=ps\",3,60,identical,0,,,"));
  EXPECT_THAT(found.csv(), testing::EndsWith(",\"out of \"\"luck\"\" and of memory\"\n"));
}

TEST(CompareResults, TellWhatAKillLeaves) {
  CompareResults found = results();
  EXPECT_THAT(found.table(), testing::Not(HasSubstr("with kill")));
  found.kill_rank = 1;
  found.rows[1].kill = {.seconds = 4, .undisturbed_seconds = 3, .starts = 2};
  found.rows[2].kill = {.failure = "out of luck"};
  EXPECT_THAT(found.table(), AllOf(HasSubstr("with kill"), HasSubstr("  75 %  "),
                                   Mentions("2 workers ... sync=ps ... FAILED")));
  EXPECT_THAT(compare_page(found),
              HasSubstr("<td class=\"words\">4.00 s, undisturbed 3.00 s, 75 %, 2 starts</td>"));
  EXPECT_NE(found.first_difference(results()), "");
}

TEST(CompareResults, CoresAreThoseOfThreadsAndHosts) {
  CompareResults found = results();
  EXPECT_TRUE(found.has_cores(found.rows[1]));
  EXPECT_FALSE(found.has_cores(found.rows[2])) << "two workers and a server on two cores";
  found.threads = 2;
  EXPECT_FALSE(found.has_cores(found.rows[1]));
  found.hosts_text = "a\nb\n";
  for (CompareSample& sample : found.rows[1].samples) sample.hosts = 2;
  EXPECT_TRUE(found.has_cores(found.rows[1])) << "on two hosts";
}

TEST(CompareRow, IsPreciseFromThreeRunsOn) {
  EXPECT_FALSE(row(1, "pp=1", {5, 5}).is_precise(0.05));
  EXPECT_TRUE(row(1, "pp=1", {5, 5, 5.2}).is_precise(0.05));
  EXPECT_FALSE(row(1, "pp=1", {5, 5, 5.3}).is_precise(0.05));
}

}  // namespace
}  // namespace lockstep::compare
