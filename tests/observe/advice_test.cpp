#include "observe/advice.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "mentions.h"
#include "observe/run_report.h"

namespace lockstep::observe {
namespace {

/// Two ranks whose steps take 1000 ms of 1000, all of it computing.
RunReport healthy() {
  RunReport report;
  report.steps = 10;
  report.explanation.emplace();
  for (int rank = 0; rank < 2; ++rank) {
    RankExplanation explained{.rank = rank, .wall_ms = 1000};
    nth(explained.parts_ms, static_cast<int>(TimePart::compute)) = 1000;
    report.explanation->ranks.push_back(explained);
    report.ranks.push_back({.rank = rank, .role = "worker", .host = rank == 0 ? "a" : "b"});
  }
  return report;
}

/// Rank 1 spends so much of its steps with a part.
RunReport with(TimePart part, double share) {
  RunReport report = healthy();
  RankExplanation& rank = report.explanation->ranks[1];
  nth(rank.parts_ms, static_cast<int>(TimePart::compute)) = 1000 * (1 - share);
  nth(rank.parts_ms, static_cast<int>(part)) = 1000 * share;
  return report;
}

MachineReport machine(MachineSubject::Kind kind, std::vector<FigureReport> figures) {
  return {.subject = {.kind = kind, .host = "a", .slice = {}, .uuid = {}, .model = {}},
          .seconds = 10,
          .samples = 2,
          .figures = std::move(figures),
          .held_down_by = {}};
}

std::vector<std::string> rules(const RunReport& report, const RunTraits& traits = {}) {
  std::vector<std::string> names;
  for (const Advice& one : advise(report, traits)) names.push_back(one.rule);
  return names;
}
using Rules = std::vector<std::string>;

TEST(Advice, AHealthyRunNeedsNone) {
  EXPECT_EQ(rules(healthy()), Rules{});
  EXPECT_EQ(rules(RunReport{}), Rules{}) << "nor one of which nothing is known";
}

TEST(Advice, TellsWhichRankAndWhatItCosts) {
  const auto advice = advise(with(TimePart::data, 0.4), {.prefetch_threads = 2});
  ASSERT_EQ(advice.size(), 1u);
  EXPECT_EQ(advice[0].rule, "data_loading");
  EXPECT_DOUBLE_EQ(advice[0].cost, 0.4);
  EXPECT_THAT(advice[0].saw, Mentions("rank 1 ... 40 %"));
  EXPECT_THAT(advice[0].act, Mentions("data.prefetch_threads=4"));
}

TEST(Advice, TellsWhichStageOfPreparingDataTakesLongest) {
  RunReport report = with(TimePart::data, 0.4);
  report.explanation->ranks[1].preparing_ms = {{"read", 10}, {"decode", 70}, {"transform", 20}};
  auto advice = advise(report, {.prefetch_threads = 2});
  ASSERT_EQ(advice.size(), 1u);
  EXPECT_THAT(advice[0].saw, Mentions("70 % ... decode"));
  EXPECT_THAT(advice[0].act, Mentions("data.prefetch_threads=4 ... data.threads=AUTOMATIC ... data pack"));
  report.explanation->ranks[1].preparing_ms = {{"read", 80}, {"decode", 20}};
  advice = advise(report, {.reading_adapts = true});
  EXPECT_THAT(advice[0].saw, Mentions("80 % ... read"));
  EXPECT_THAT(advice[0].act, Mentions("data.cache_directory"));
  EXPECT_EQ(advice[0].act.find("prefetch_threads"), std::string::npos);
  report.explanation->ranks[1].preparing_ms = {{"transform", 80}, {"read", 20}};
  EXPECT_THAT(advise(report, {})[0].act, Mentions("data.transforms"));
}

TEST(Advice, PartsOfStepsHaveThresholds) {
  EXPECT_EQ(rules(with(TimePart::data, 0.04)), Rules{});
  EXPECT_EQ(rules(with(TimePart::communication, 0.09)), Rules{});
  EXPECT_EQ(rules(with(TimePart::communication, 0.2)), Rules{"communication"});
  EXPECT_EQ(rules(with(TimePart::host, 0.1)), Rules{});
  EXPECT_EQ(rules(with(TimePart::host, 0.2)), Rules{"launches"});
  EXPECT_EQ(rules(with(TimePart::slower_ranks, 0.04)), Rules{});
  const auto slow = advise(with(TimePart::slower_ranks, 0.3), {});
  ASSERT_EQ(slow.size(), 1u);
  EXPECT_THAT(slow[0].saw, Mentions("rank 1 ... rank 0 on a")) << "the one that computes longest";
}

TEST(Advice, TimeOutsideOfStepsIsOfTheWallClock) {
  EXPECT_EQ(rules(with(TimePart::evaluation, 0.1)), Rules{}) << "5 % of the mean";
  EXPECT_EQ(rules(with(TimePart::evaluation, 0.5)), Rules{"evaluation"});
  EXPECT_EQ(rules(with(TimePart::checkpoints, 0.5), {.saves = 2}), Rules{"checkpoints"});
  EXPECT_EQ(rules(with(TimePart::checkpoints, 0.5), {.saves = 1}), Rules{}) << "the last save alone";
  const auto advice = advise(with(TimePart::checkpoints, 0.5), {.saves_in_background = false, .saves = 9});
  EXPECT_THAT(advice[0].act, Mentions("checkpoint.background=true"));
}

TEST(Advice, PipelinesNeedMicroBatchesAndEvenStages) {
  RunReport report = healthy();
  report.bubble_fraction = report.bubble_fraction_theory = 0.1;
  EXPECT_EQ(rules(report), Rules{});
  report.bubble_fraction = report.bubble_fraction_theory = 0.3;
  EXPECT_EQ(rules(report), Rules{"few_micro_batches"});
  report.bubble_fraction_theory = 0.1;
  EXPECT_EQ(rules(report), Rules{"uneven_stages"});
}

TEST(Advice, OfARunThatGoesOnIsWhatOneRankKnows) {
  RunReport report = with(TimePart::communication, 0.2);
  report.explanation->goes_on = true;
  report.bubble_fraction_theory = 0.3;
  const auto advice = advise(report, {});
  ASSERT_EQ(advice.size(), 2u);
  EXPECT_EQ(advice[0].rule, "few_micro_batches") << "the schedule alone says so";
  EXPECT_EQ(advice[1].rule, "communication");
  EXPECT_THAT(advice[1].saw, Mentions("or ... slower ranks"));
}

TEST(Advice, AGpuIsHotOnlyIfThatSlowsIt) {
  const auto gpu = [](double degrees, double clock) {
    RunReport report = healthy();
    report.machines.push_back(
        machine(MachineSubject::Kind::gpu, {{.field = "temperature_celsius", .max = degrees},
                                            {.field = "sm_clock_megahertz", .mean = clock},
                                            {.field = "sm_clock_limit_megahertz", .last = 2000}}));
    return rules(report);
  };
  EXPECT_EQ(gpu(88, 1900), Rules{});
  EXPECT_EQ(gpu(70, 1500), Rules{});
  EXPECT_EQ(gpu(88, 1500), Rules{"hot_gpu"});
}

TEST(Advice, AGpuThatIsLittleUsedMayTakeMore) {
  const auto gpu = [](double use, double memory) {
    RunReport report = healthy();
    report.machines.push_back(
        machine(MachineSubject::Kind::gpu, {{.field = "utilization_percent", .p95 = use},
                                            {.field = "memory_used_bytes", .max = memory},
                                            {.field = "memory_size_bytes", .last = 100}}));
    return rules(report);
  };
  EXPECT_EQ(gpu(90, 10), Rules{});
  EXPECT_EQ(gpu(50, 90), Rules{});
  EXPECT_EQ(gpu(50, 10), Rules{"small_batch"});
}

TEST(Advice, NamesTheLargestBatchThatFitsIntoTheFullestGpu) {
  RunReport report = healthy();
  report.ranks = {{.rank = 0, .role = "worker", .peak_memory_bytes = 300},
                  {.rank = 1, .role = "server", .peak_memory_bytes = 5000}};  // of its host
  for (const double used : {200.0, 500.0})
    report.machines.push_back(
        machine(MachineSubject::Kind::gpu, {{.field = "utilization_percent", .p95 = 40},
                                            {.field = "memory_used_bytes", .max = used},
                                            {.field = "memory_size_bytes", .last = 1000}}));
  int64_t limit = 0;
  int asked = 0;
  const RunTraits traits{.largest_batch = [&](int64_t bytes) {
    limit = bytes;
    ++asked;
    return std::optional(
        LargerBatch{.micro_batch = 48, .global_batch = 96, .bytes = 700, .virtual_replicas = 4});
  }};
  const auto advice = advise(report, traits);
  ASSERT_EQ(advice.size(), 2u);
  EXPECT_EQ(asked, 1) << "for all GPUs at once";
  EXPECT_EQ(limit, 300 + 980 - 500) << "2 % stay free, and what others use";
  EXPECT_DOUBLE_EQ(advice[0].cost, 0.6);
  EXPECT_THAT(advice[0].act,
              Mentions("trainer.global_batch=96 ... trainer.micro_batch=48 ... trainer.virtual_replicas=4"));
  asked = 0;
  EXPECT_EQ(rules(healthy(), traits), Rules{});
  EXPECT_EQ(asked, 0) << "a run without the fault computes nothing";
}

TEST(Advice, OtherLayoutsAreNamedByTheCommandThatMeasuresThem) {
  int asked = 0;
  const RunTraits traits{.compare_command = [&] {
    ++asked;
    return std::string("lockstep compare c");
  }};
  EXPECT_EQ(rules(healthy(), traits), Rules{});
  EXPECT_EQ(asked, 0);
  const auto advice = advise(with(TimePart::communication, 0.2), traits);
  ASSERT_EQ(advice.size(), 1u);
  EXPECT_THAT(advice[0].act, Mentions("lockstep compare c"));
}

TEST(Advice, ALayoutThatIsPredictedToBeFasterIsNamedFirst) {
  const RunTraits traits{.faster_layout = FasterLayout{"pp=2", 0.4}};
  const auto advice = advise(with(TimePart::communication, 0.2), traits);
  ASSERT_EQ(advice.size(), 1u);
  EXPECT_THAT(advice[0].act, Mentions("--layout pp=2 ... 60 %"));
  EXPECT_TRUE(waits_for_communication(with(TimePart::communication, 0.2)));
  EXPECT_FALSE(waits_for_communication(with(TimePart::communication, 0.05)));
}

TEST(Advice, ServersWaitForWorkersWithoutAFault) {
  for (const TimePart part : {TimePart::data, TimePart::communication, TimePart::host}) {
    RunReport report = with(part, 0.9);
    report.explanation->ranks[1].only_serves = true;
    EXPECT_EQ(rules(report), Rules{}) << name_of(part);
  }
}

TEST(Advice, HostsThatSwapOrHaveTooFewCores) {
  RunReport report = healthy();
  for (RankReport& rank : report.ranks) rank.host = "a";
  report.machines.push_back(
      machine(MachineSubject::Kind::host,
              {{.field = "processor_cores", .last = 2}, {.field = "swapped_bytes_per_second", .mean = 0}}));
  EXPECT_EQ(rules(report), Rules{});
  EXPECT_EQ(rules(report, {.intra_op_threads = 2}), Rules{"few_cores"});
  EXPECT_EQ(rules(report, {.on_gpus = true, .float32 = false, .intra_op_threads = 2}), Rules{});
  report.machines[0].figures[1].mean = 5e6;
  EXPECT_EQ(rules(report), Rules{"swap"});
}

TEST(Advice, TensorCoresAreIdleInFloat32) {
  EXPECT_EQ(rules(healthy(), {.on_gpus = true}), Rules{"precision"});
  EXPECT_EQ(rules(healthy(), {.on_gpus = true, .float32 = false}), Rules{});
}

TEST(Advice, TheMostExpensiveIsFirst) {
  RunReport report = with(TimePart::data, 0.2);
  nth(report.explanation->ranks[0].parts_ms, static_cast<int>(TimePart::communication)) = 500;
  EXPECT_EQ(rules(report), (Rules{"communication", "data_loading"}));
}

TEST(Advice, RulesHaveThresholdsAndSources) {
  for (const AdviceRule& rule : advice_rules()) {
    EXPECT_NE(rule.threshold, "") << rule.names;
    EXPECT_NE(rule.source, "") << rule.names;
  }
}

}  // namespace
}  // namespace lockstep::observe
