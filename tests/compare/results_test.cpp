#include "compare/results.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "compare/forecast.h"
#include "compare/page.h"
#include "lockstep/error.h"
#include "mentions.h"

namespace lockstep::compare {
namespace {

using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

CompareRow row(int workers, const std::string& kind, const std::vector<double>& step_ms,
               CompareProof proof = CompareProof::identical) {
  CompareRow row{.workers = workers,
                 .layout = layout::parse_layout("dp=" + std::to_string(workers) + "," + kind),
                 .kind = kind,
                 .global_batch = 60,
                 .proof = proof};
  for (const double time : step_ms)
    row.samples.push_back({.round = static_cast<int>(row.samples.size()) + 1,
                           .step_ms = time,
                           .exposed_comm_ms = time / 4,
                           .train_loss = 0.1});
  return row;
}

CompareResults results() {
  return {.command = "lockstep compare",
          .config = "c.textproto",
          .config_hash = "0123",
          .version = "1",
          .host = "here",
          .began = "today",
          .steps = 50,
          .proof_steps = 5,
          .cores = 2,
          .rows = {row(1, "sync=all_reduce", {12, 12, 12}), row(2, "sync=all_reduce", {8, 8, 8.1}),
                   row(2, "sync=ps", {16, 16, 16.1})}};
}

TEST(StandInHosts, HaveHalfOfTheRanksEachInTheirOrder) {
  EXPECT_EQ(stand_in_hosts(2), (std::vector{0, 1}));
  EXPECT_EQ(stand_in_hosts(4), (std::vector{0, 0, 1, 1}));
  EXPECT_EQ(stand_in_hosts(5), (std::vector{0, 0, 0, 1, 1}));
}

TEST(CompareResults, SaysWhatIsFasterWithTheMostWorkers) {
  CompareResults found = results();
  EXPECT_EQ(found.headline(),
            "With 2 workers sync=all_reduce is the fastest, with steps of 8.00 ms: 2.00 times as fast as "
            "sync=ps. All bits are identical.");
  found.rows[2] = row(2, "sync=ps,mode=async", {5, 8.36, 11}, CompareProof::other_mathematics);
  EXPECT_EQ(
      found.headline(),
      "With 2 workers sync=all_reduce has the shortest steps, of 8.00 ms. The runs do not tell it apart "
      "from sync=ps,mode=async (8.36 ms, 3 runs). Other mathematics: sync=ps,mode=async.");
  found.rows[2].proof = CompareProof::different;
  EXPECT_THAT(found.headline(), HasSubstr("sync=ps,mode=async: DIFFERENT."));
  found.rows.pop_back();
  EXPECT_THAT(found.headline(), StartsWith("There are not yet two layouts"));
}

TEST(CompareResults, OfManyLayoutsTheNextAndTheSlowestAreNamed) {
  CompareResults found = results();
  found.rows[2] = row(2, "sync=ps,mode=async", {9, 9, 9}, CompareProof::other_mathematics);
  found.rows.push_back(row(2, "shard=optimizer", {10, 10, 10}));
  found.rows.push_back(row(2, "pp=2", {11, 11, 11}));
  found.rows.push_back(row(2, "sync=ps,mode=stale", {16, 16, 16}, CompareProof::other_mathematics));
  EXPECT_EQ(found.headline(),
            "With 2 workers sync=all_reduce is the fastest, with steps of 8.00 ms: 1.12 times as fast as "
            "sync=ps,mode=async and 2.00 times as fast as sync=ps,mode=stale, with 2 between them. "
            "Other mathematics: sync=ps,mode=async and sync=ps,mode=stale.");
}

TEST(CompareResults, WhatIsSlowerAndWhatIsNotToldApartStandInTwoSentences) {
  CompareResults found = results();
  found.rows.push_back(row(2, "pp=2", {7, 9, 12}));
  found.rows.push_back(row(2, "shard=optimizer", {20, 20}));
  const std::vector<std::string> answers = found.answers();
  ASSERT_EQ(answers.size(), 3u);
  EXPECT_EQ(
      answers[0],
      "With 2 workers sync=all_reduce has the shortest steps, of 8.00 ms: 2.00 times as fast as sync=ps.");
  EXPECT_EQ(
      answers[1],
      "The runs do not tell it apart from pp=2 (9.00 ms, 3 runs) and shard=optimizer (20.00 ms, 2 runs).");
  EXPECT_THAT(compare_page(found), HasSubstr("<h1>" + answers[0] + "</h1>"));
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

/// The same rows over two links: servers win over the slow one.
CompareResults over_links() {
  CompareResults found = results();
  found.rows.erase(found.rows.begin());
  for (CompareRow& row : found.rows) row.link = "none";
  for (CompareRow row : results().rows) {
    if (row.workers == 1) continue;
    row.link = "1gbit";
    row.link_bytes_theory = 1e6;
    for (CompareSample& sample : row.samples) {
      sample.step_ms = row.kind == "sync=ps" ? 20 : 40;
      sample.exposed_comm_ms = 0.75 * sample.step_ms;
      sample.compute_ms = 0.125 * sample.step_ms;
      sample.server_ms = 0.25 * sample.step_ms;
      sample.link_bytes_per_step = 1.05e6;
      sample.hosts = 2;
    }
    found.rows.push_back(row);
  }
  return found;
}

TEST(CompareResults, LinksHaveSentencesAndFirstRowsOfTheirOwn) {
  CompareResults found = over_links();
  EXPECT_EQ(
      found.headline(),
      "Over a free link, with 2 workers sync=all_reduce is the fastest, with steps of 8.00 ms: 2.00 times as "
      "fast as sync=ps. All bits are identical. At 1gbit, with 2 workers sync=ps is the fastest, with steps "
      "of "
      "20.00 ms: 2.00 times as fast as sync=all_reduce. All bits are identical.");
  EXPECT_EQ(found.efficiency(found.rows[2]), 1) << "beside the same link";
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

TEST(ComparePage, SplitsStepsUpAndShowsWhatLinksMove) {
  const std::string page = compare_page(over_links());
  // Of 40 ms: an eighth computing, 15 of 30 that it waited in servers' hands no more than 10, the rest of
  // all.
  for (const char* said : {"<h3>Link: none</h3>", "<h3>Link: 1gbit</h3>", ">5.00 ms, 12 %</td>",
                           ">20.00 ms, 50 %</td>", ">10.00 ms, 25 %</td>", ">1.05 MB</td>", ">+5.0 %</td>"})
    EXPECT_THAT(page, HasSubstr(said));
}

/// Two rows predicted, one of which has more processes than there are cores; one more worker.
CompareResults predicted() {
  CompareResults found = over_links();
  found.rows[0].predicted_ms = 6;
  found.rows[1].predicted_ms = 1;
  found.rows[2].predicted_ms = 44;
  found.forecasts.push_back(row(8, "sync=ps", {}));
  found.forecasts[0].link = "1gbit";
  found.forecasts[0].predicted_ms = 30;
  found.ties = {
      {.workers = 2, .kind = "sync=ps", .beside = "sync=all_reduce", .rates = {{2.1e9, plan::kFastestRate}}},
      {.workers = 2,
       .kind = "sync=ps",
       .beside = "sync=all_reduce",
       .rates = {},
       .link = "1gbit",
       .servers = plan::TyingServers{.counts = {{3, 4}}, .tried = 4}}};
  found.measured_links = {{.link = "none",
                           .latency_seconds = 2e-5,
                           .one_way_bits_per_second = 2.3e10,
                           .both_ways_bits_per_second = 3e10,
                           .all_reduce = {{8, 4e-5}}}};
  return found;
}

TEST(CompareResults, PredictionsStandBesideWhatWasMeasured) {
  CompareResults found = predicted();
  // 6 beside 8, and 44 beside 40; the row of three processes on two cores does not count.
  EXPECT_NEAR(*found.prediction_error(), (0.25 + 0.1) / 2, 1e-12);
  EXPECT_THAT(
      found.table(),
      AllOf(HasSubstr(" 6.00 "), HasSubstr(" 1.00* "), HasSubstr(" 44.00 "), Mentions("17.5 % ... *: "),
            Mentions("1gbit ... 8 workers ... sync=ps ... 30.00 ms ... 2000.0 samples/s")));
  EXPECT_THAT(found.headline(),
              StartsWith("Over a free link (23 Gbit/s), with 2 workers sync=all_reduce is the fastest, with "
                         "steps of 8.00 ms: 2.00 times as fast as sync=ps. By prediction, sync=ps ties with "
                         "sync=all_reduce from 2.1 Gbit/s on. All bits are identical."));
  EXPECT_THAT(found.headline(),
              EndsWith(" Predicted ties assume that each process has its own host and core."));
  EXPECT_THAT(compare_page(found),
              AllOf(HasSubstr(">-25.0 %</td>"), HasSubstr(">+10.0 %</td>"), HasSubstr("extrapolated"),
                    Mentions("1gbit ... sync=all_reduce 3 ... 4</li>")));
  EXPECT_EQ(results().prediction_error(), std::nullopt);
  found.ties = {{.workers = 8, .kind = "a", .beside = "b", .rates = {}},
                {.workers = 8, .kind = "c", .beside = "b", .rates = {}}};
  EXPECT_THAT(found.headline(), Mentions("8 workers ... 1 Mbit/s ... 1 Tbit/s"));
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

TEST(CompareResults, OfFewRunsNothingIsSaidForCertain) {
  CompareResults found = results();
  for (CompareRow& row : found.rows) row.samples.resize(1);
  EXPECT_EQ(
      found.headline(),
      "With 2 workers sync=all_reduce has the shortest steps, of 8.00 ms. The runs do not tell it apart "
      "from sync=ps (16.00 ms, 1 run). All bits are identical.");
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

TEST(CompareTie, IsAlwaysNeverOrAtSomeRates) {
  CompareTie tie{.workers = 2, .kind = "a", .beside = "b", .rates = {}};
  const auto at = [&](std::vector<plan::RateRange> rates) {
    tie.rates = std::move(rates);
    return sentence_of(tie).substr(std::string("with 2 workers a ties with b ").size());
  };
  EXPECT_EQ(at({{plan::kSlowestRate, plan::kFastestRate}}), "at any rate from 1 Mbit/s to 1 Tbit/s");
  EXPECT_EQ(at({}), "at no rate from 1 Mbit/s to 1 Tbit/s");
  EXPECT_EQ(at({{3.1e7, plan::kFastestRate}}), "from 31 Mbit/s on");
  EXPECT_EQ(at({{plan::kSlowestRate, 3.1e7}}), "up to 31 Mbit/s");
  EXPECT_EQ(at({{2.1e9, 2.34e10}}), "between 2.1 Gbit/s and 23 Gbit/s");
  EXPECT_EQ(at({{plan::kSlowestRate, 3.1e7}, {2.1e9, plan::kFastestRate}}),
            "up to 31 Mbit/s and from 2.1 Gbit/s on");
  tie.servers = plan::TyingServers{.counts = {}, .tried = 4};
  EXPECT_EQ(sentence_of(tie), "with 2 workers a over these hosts: beside b not even 4 servers tie");
  tie.link = "none";
  tie.servers->counts = {{1, 1}};
  EXPECT_EQ(sentence_of(tie), "with 2 workers a over a free link: beside b 1 server ties, of up to 4");
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

TEST(ComparePage, NeedsNothingElseAndSaysEverything) {
  CompareResults found = results();
  found.command = "lockstep compare 'a & b'";
  found.rows[1].proof_detail = "differs: <step>";
  found.rows[2].samples.clear();
  found.rows[2].failure = "out of memory";
  const std::string page = compare_page(found);
  EXPECT_LT(page.size(), 300'000u);
  for (const char* other : {"<script", "<img", "<link", "src=", "href=", "@import", "url("})
    EXPECT_THAT(page, testing::Not(HasSubstr(other)));
  // A name of XML's, which nobody looks up.
  EXPECT_EQ(page.find("http"), page.find("http://www.w3.org/2000/svg"));
  for (const char* said :
       {"<h1>There are not yet two layouts", "a &amp; b", "differs: &lt;step&gt;", "out of memory",
        ">8.00</td>", "75.0 %", "prefers-color-scheme: dark", "@media print"})
    EXPECT_THAT(page, HasSubstr(said));
}

/// Nine layouts, with two numbers of workers, over three links; with losses, staleness and all that was
/// asked.
TEST(ComparePage, OfManyRowsIsSmall) {
  CompareResults found = results();
  found.rows.clear();
  found.price = 1;
  found.kill_rank = 1;
  for (const char* link : {"none", "1gbit", "100mbit"})
    for (const int workers : {2, 4})
      for (int kind = 0; kind < 9; ++kind) {
        found.rows.push_back(row(workers, "sync=ps,servers=" + std::to_string(kind + 2) + ",assign=whole",
                                 {12.345, 12.5, 12.75}));
        CompareRow& last = found.rows.back();
        last.link = link;
        last.predicted_ms = 12;
        last.links_theory = {{"host-a", 1e6, 2e6}, {"host-b", 2e6, 1e6}};
        last.kill = {.seconds = 4, .undisturbed_seconds = 3, .starts = 2};
        for (int i = 1; i <= 50; ++i) last.losses.push_back({.samples = 60 * i, .loss = 2.345678 / i});
        for (CompareSample& sample : last.samples) {
          sample.traffic = last.links_theory;
          sample.staleness_histogram = {7, 2, 1};
        }
      }
  ASSERT_EQ(found.rows.size(), 54u);
  const std::string page = compare_page(found);
  EXPECT_LT(page.size(), 300'000u);
  for (const char* said : {"How stale gradients were", ">70.0 %</td>", "75 %, 2 starts", ">host-b</td>",
                           "All points of these drawings", "efficiency, percent against workers"})
    EXPECT_THAT(page, HasSubstr(said));
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
              HasSubstr("<td class=\"words\">4.00 s beside 3.00 s, 75 %, 2 starts</td>"));
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
