#include "observe/explanation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "lockstep/error.h"

namespace lockstep::observe {
namespace {

/// Two seconds: a start, steps, evaluation, checkpoints, an end.
RankTime time_of(int rank, double linear_ms, double waited_ms) {
  return {.rank = rank,
          .stage = 0,
          .phases_ms = {200, 1000, 500, 200, 100},
          .computing_ms = {{"update", 50}, {"linear", linear_ms}},
          .waited_ms = waited_ms,
          .handling_ms = 20,
          .data_wait_ms = 30};
}

void expect_all_explained(const Explanation& explanation) {
  for (const RankExplanation& rank : explanation.ranks) EXPECT_NEAR(rank.explained(), 1, 1e-9);
}

TEST(Explanation, AddsUpToTheWallClock) {
  const RankTime time = time_of(0, 600, 150);
  const Explanation explanation = explain({&time, 1}, 10, false);
  expect_all_explained(explanation);
  const RankExplanation& rank = explanation.ranks[0];
  EXPECT_EQ(rank.wall_ms, 2000);
  EXPECT_EQ(rank.part_ms(TimePart::start), 200);
  EXPECT_EQ(rank.part_ms(TimePart::compute), 650);
  EXPECT_EQ(rank.part_ms(TimePart::communication), 170);
  EXPECT_EQ(rank.part_ms(TimePart::data), 30);
  EXPECT_EQ(rank.part_ms(TimePart::host), 150);
  EXPECT_EQ(rank.part_ms(TimePart::evaluation), 500);
  EXPECT_EQ(rank.part_ms(TimePart::checkpoints), 200);
  EXPECT_EQ(rank.part_ms(TimePart::end), 100);
  EXPECT_EQ(rank.share(TimePart::evaluation), 0.25);
  EXPECT_EQ(rank.computing_ms.front().first, "linear") << "the most first";
}

TEST(Explanation, WaitsForAReplicaThatComputesLonger) {
  const std::vector<RankTime> times{time_of(0, 400, 300), time_of(1, 600, 90)};
  const Explanation explanation = explain(times, 10, false);
  expect_all_explained(explanation);
  EXPECT_EQ(explanation.ranks[0].part_ms(TimePart::slower_ranks), 200);
  EXPECT_EQ(explanation.ranks[0].part_ms(TimePart::communication), 120);
  EXPECT_EQ(explanation.ranks[1].part_ms(TimePart::slower_ranks), 0);
  EXPECT_EQ(explanation.slowest().rank, 1);
}

TEST(Explanation, NeverWaitsLongerForSlowerRanksThanItWaited) {
  const std::vector<RankTime> times{time_of(0, 100, 50), time_of(1, 600, 0)};
  EXPECT_EQ(explain(times, 10, false).ranks[0].part_ms(TimePart::slower_ranks), 50);
}

TEST(Explanation, ComparesReplicasOfOneStageOnly) {
  std::vector<RankTime> times{time_of(0, 100, 0), time_of(1, 600, 0)};
  times[0].stage_wait_ms = 500;
  times[1].stage = 1;
  const Explanation explanation = explain(times, 10, false);
  expect_all_explained(explanation);
  EXPECT_EQ(explanation.ranks[0].part_ms(TimePart::slower_ranks), 0);
  EXPECT_EQ(explanation.ranks[0].part_ms(TimePart::bubble), 500);
}

TEST(Explanation, OfStreamsCountsTheRestAsComputing) {
  RankTime time = time_of(0, 0, 300);
  time.computing_ms.clear();
  time.tells_computing = false;
  const Explanation explanation = explain({&time, 1}, 10, false);
  expect_all_explained(explanation);
  EXPECT_EQ(explanation.ranks[0].part_ms(TimePart::compute), 650);
  EXPECT_EQ(explanation.ranks[0].part_ms(TimePart::host), 0);
  EXPECT_EQ(explanation.notes.size(), 1U);
}

TEST(Explanation, OfStreamsTellsWhatASampleOfStepsTold) {
  RankTime time = time_of(0, 0, 300);
  time.computing_ms = {{"linear", 300}, {"update", 100}};
  time.tells_computing = false;
  time.sampled_steps = 2;
  const Explanation explanation = explain({&time, 1}, 100, false);
  expect_all_explained(explanation);
  const RankExplanation& rank = explanation.ranks[0];
  EXPECT_EQ(rank.part_ms(TimePart::compute), 400);
  EXPECT_EQ(rank.part_ms(TimePart::host), 250);
  EXPECT_EQ(rank.computing_ms, (NamedTimes{{"linear", 300}, {"update", 100}}));
  ASSERT_EQ(explanation.notes.size(), 1U);
  EXPECT_THAT(explanation.notes[0], testing::HasSubstr("2 of 100 steps"));
  EXPECT_EQ(rank_time_from_text(to_text(time)).sampled_steps, 2);
}

/// Steps with events take longer than those without.
TEST(Explanation, OfASampleIsAtMostWhatPassed) {
  RankTime time = time_of(0, 0, 300);
  time.computing_ms = {{"linear", 975}, {"update", 325}};
  time.tells_computing = false;
  time.sampled_steps = 1;
  const RankExplanation rank = explain({&time, 1}, 100, false).ranks[0];
  EXPECT_NEAR(rank.part_ms(TimePart::compute), 650, 1e-9);
  EXPECT_NEAR(rank.computing_ms[0].second, 487.5, 1e-9);
  EXPECT_NEAR(rank.explained(), 1, 1e-9);
}

/// How long a rank computes is not known well enough to compare it with others.
TEST(Explanation, ASampleSaysNothingOfSlowerRanks) {
  std::vector<RankTime> times{time_of(0, 100, 300), time_of(1, 600, 0)};
  for (RankTime& time : times) time.tells_computing = false, time.sampled_steps = 1;
  EXPECT_EQ(explain(times, 10, false).ranks[0].part_ms(TimePart::slower_ranks), 0);
}

TEST(Explanation, SaysIfMoreWasMeasuredThanPassed) {
  const RankTime time = time_of(0, 2000, 0);
  EXPECT_GT(explain({&time, 1}, 10, false).ranks[0].explained(), 1.4);
}

TEST(Explanation, MeansLeaveOutWhoOnlyServes) {
  std::vector<RankTime> times{time_of(0, 400, 300), time_of(1, 900, 0)};
  times[0].speed_of_light = 0.5;
  times[1].stage = -1;
  const Explanation explanation = explain(times, 10, false);
  EXPECT_EQ(explanation.mean().part_ms(TimePart::compute), 450);
  EXPECT_EQ(explanation.mean().speed_of_light, 0.5);
  EXPECT_EQ(explanation.slowest().rank, 0);
  EXPECT_EQ(explanation_from_json(to_json(explanation)), explanation);
}

TEST(Explanation, MeansAreOfAllWorkers) {
  const std::vector<RankTime> times{time_of(0, 400, 300), time_of(1, 600, 90)};
  const RankExplanation mean = explain(times, 10, false).mean();
  EXPECT_EQ(mean.part_ms(TimePart::compute), 550);
  EXPECT_NEAR(mean.explained(), 1, 1e-9);
}

TEST(Explanation, SurvivesItsJson) {
  const std::vector<RankTime> times{time_of(0, 400, 300), time_of(1, 600, 90)};
  const Explanation explanation = explain(times, 10, true);
  EXPECT_EQ(explanation_from_json(to_json(explanation)), explanation);
  const auto json = nlohmann::json::parse(to_json(explanation));
  EXPECT_EQ(json["goes_on"], true);
  EXPECT_EQ(json["slowest_rank"], 1);
  double sum = 0;
  for (const auto& [name, share] : json["mean"]["shares"].items()) sum += share.get<double>();
  EXPECT_NEAR(sum, 1, 1e-9);
}

TEST(Explanation, RefusesOtherJson) {
  for (const char* text : {"", "{}", "[]", "{\"format\":\"lockstep explanation\"}",
                           "{\"format\":\"lockstep explanation\",\"version\":99}"})
    EXPECT_THROW(explanation_from_json(text), DataError) << text;
}

TEST(RankTime, SurvivesItsText) {
  const RankTime time = time_of(3, 400, 300);
  EXPECT_EQ(to_text(rank_time_from_text(to_text(time))), to_text(time));
  EXPECT_THROW(rank_time_from_text("{}"), DataError);
}

TEST(Explanation, IsSummarisedInOneLine) {
  const RankTime time = time_of(0, 600, 0);
  const std::string text = summary(explain({&time, 1}, 10, false));
  EXPECT_EQ(text.find("compute"), 0U);
  EXPECT_EQ(text.find("bubble"), std::string::npos);
  EXPECT_LE(std::ranges::count(text, ','), 3) << text;
}

}  // namespace
}  // namespace lockstep::observe
