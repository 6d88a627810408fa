#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "compare/page.h"
#include "mentions.h"
#include "results_examples.h"

namespace lockstep::compare {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

std::vector<std::string> kinds_of_rows(const std::vector<const CompareRow*>& rows) {
  std::vector<std::string> kinds;
  for (const CompareRow* row : rows) kinds.push_back(row->kind);
  return kinds;
}

/// The only one.
CompareStanding standing_of(const CompareResults& results) {
  const std::vector<CompareStanding> standings = results.standings();
  EXPECT_EQ(standings.size(), 1u);
  return standings.at(0);
}

TEST(CompareStanding, IsOfTheMostWorkers) {
  const CompareResults found = results();
  const CompareStanding standing = standing_of(found);
  EXPECT_EQ(standing.workers, 2);
  EXPECT_EQ(standing.fastest, &found.rows[1]);
  EXPECT_THAT(standing.slower, ElementsAre(&found.rows[2]));
  EXPECT_THAT(standing.alike, IsEmpty());
  CompareResults alone = found;
  alone.rows.pop_back();
  EXPECT_THAT(alone.standings(), IsEmpty()) << "nothing to compare it with";
  EXPECT_EQ(alone.headline(), alone.answers().at(0));
}

TEST(CompareStanding, SlowerRowsAreThoseThatTheRunsTellApart) {
  CompareResults found = results();
  found.rows.push_back(row(2, "pp=2", {7, 9, 12}));
  found.rows.push_back(row(2, "sync=ps,servers=2", {20, 20}));
  found.rows.push_back(row(2, "shard=optimizer", {9, 9, 9}));
  const CompareStanding standing = standing_of(found);
  EXPECT_EQ(standing.fastest->kind, "sync=all_reduce");
  EXPECT_THAT(kinds_of_rows(standing.slower), ElementsAre("shard=optimizer", "sync=ps")) << "in order";
  EXPECT_THAT(kinds_of_rows(standing.alike), ElementsAre("pp=2", "sync=ps,servers=2"))
      << "intervals that overlap, and too few runs";
  for (CompareRow& each : found.rows) each.samples.resize(1);
  EXPECT_THAT(standing_of(found).slower, IsEmpty()) << "one run tells nothing for certain";
}

TEST(CompareStanding, EveryLinkHasItsOwn) {
  const CompareResults found = over_links();
  const std::vector<CompareStanding> standings = found.standings();
  ASSERT_EQ(standings.size(), 2u);
  EXPECT_EQ(standings[0].link, "none");
  EXPECT_EQ(standings[0].fastest->kind, "sync=all_reduce");
  EXPECT_EQ(standings[1].link, "1gbit");
  EXPECT_EQ(standings[1].fastest->kind, "sync=ps");
  EXPECT_THAT(found.headline(), Mentions("sync=all_reduce ... 8.00 ms ... 1gbit ... sync=ps ... 20.00 ms"));
}

TEST(CompareHeadline, HasASentenceForTheWinnerAndOneForWhatIsNotToldApart) {
  CompareResults found = results();
  EXPECT_THAT(found.headline(),
              Mentions("2 workers ... sync=all_reduce ... 8.00 ms ... 2.00 times ... sync=ps."));
  found.rows.push_back(row(2, "pp=2", {7, 9, 12}));
  found.rows.push_back(row(2, "shard=optimizer", {20, 20}));
  const std::vector<std::string> answers = found.answers();
  ASSERT_EQ(answers.size(), 3u);
  EXPECT_EQ(found.headline(), answers[0] + " " + answers[1]) << "bits are not in it";
  EXPECT_THAT(answers[0], Mentions("sync=all_reduce ... 8.00 ms ... 2.00 times ... sync=ps"));
  EXPECT_THAT(answers[1], Mentions("pp=2 (9.00 ms) ... shard=optimizer (20.00 ms, 2 runs)"));
  EXPECT_THAT(compare_page(found), HasSubstr("<h1>" + answers[0] + "</h1>"));
}

TEST(CompareHeadline, NamesOnlyTheNextOfThoseThatAreSlower) {
  CompareResults found = results();
  found.rows.push_back(row(2, "shard=optimizer", {10, 10, 10}));
  found.rows.push_back(row(2, "pp=2", {11, 11, 11}));
  EXPECT_THAT(found.headline(), Mentions("1.25 times ... shard=optimizer."));
  EXPECT_THAT(found.headline(), Not(HasSubstr("pp=2")));
}

TEST(CompareHeadline, CountsWhatIsNotToldApartBeyondFour) {
  CompareResults found = results();
  for (int servers = 2; servers <= 7; ++servers)
    found.rows.push_back(row(2, "sync=ps,servers=" + std::to_string(servers), {7, 9, 12}));
  const std::string headline = found.headline();
  EXPECT_THAT(headline, Mentions("servers=2 ... servers=3 ... servers=4 ... servers=5 ... 2 more"));
  EXPECT_THAT(headline, Not(HasSubstr("servers=6")));
}

TEST(CompareAnswers, SayWhichBitsDiffer) {
  CompareResults found = results();
  const auto said = [&](CompareProof proof) {
    found.rows[2].proof = proof;
    return found.answers().back();
  };
  EXPECT_THAT(said(CompareProof::different), Mentions("sync=ps ... DIFFERENT"));
  EXPECT_THAT(said(CompareProof::other_mathematics), Mentions("sync=ps"));
  EXPECT_THAT(said(CompareProof::identical), Not(HasSubstr("sync=ps")));
}

TEST(CompareAnswers, PredictionsOfLayoutsAtTheSameRatesShareASentence) {
  CompareResults found = predicted();
  EXPECT_THAT(
      found.answers(),
      testing::Contains(Mentions("2 workers ... sync=ps ... 2 % ... sync=all_reduce ... 2.1 Gbit/s")));
  EXPECT_THAT(found.answers().back(), Mentions("1 Mbit/s ... 1 Tbit/s")) << "the rates that were searched";
  const size_t without = over_links().answers().size();
  found.ties = {{.workers = 8, .kind = "a", .beside = "b", .rates = {}},
                {.workers = 8, .kind = "c", .beside = "b", .rates = {}}};
  ASSERT_EQ(found.answers().size(), without + 2);
  EXPECT_THAT(found.answers()[without], Mentions("8 workers ... b ... a and c"));
}

TEST(CompareTie, IsAlwaysNeverOrAtSomeRates) {
  CompareTie tie{.workers = 2, .kind = "tied", .beside = "other", .rates = {}};
  const auto at = [&](std::vector<plan::RateRange> rates) {
    tie.rates = std::move(rates);
    return sentence_of(tie);
  };
  EXPECT_THAT(at({}), Mentions("2 workers ... other ... tied")) << "the other one is faster";
  const std::string always = at({{plan::kSlowestRate, plan::kFastestRate}});
  EXPECT_THAT(always, Mentions("2 workers ... tied ... other"));
  EXPECT_THAT(always, Not(HasSubstr("bit/s"))) << "at every rate";
  EXPECT_THAT(at({{3.1e7, plan::kFastestRate}}), Mentions("tied ... other ... from 31 Mbit/s"));
  EXPECT_THAT(at({{plan::kSlowestRate, 3.1e7}}), Mentions("tied ... other ... to 31 Mbit/s"));
  EXPECT_THAT(at({{2.1e9, 2.34e10}}), Mentions("tied ... other ... 2.1 Gbit/s ... 23 Gbit/s"));
  EXPECT_THAT(at({{plan::kSlowestRate, 3.1e7}, {2.1e9, plan::kFastestRate}}),
              Mentions("tied ... other ... to 31 Mbit/s ... from 2.1 Gbit/s"));
}

TEST(CompareTie, OfServersNamesTheirNumbers) {
  CompareTie tie{.workers = 2, .kind = "tied", .beside = "other", .rates = {}};
  tie.servers = plan::TyingServers{.counts = {}, .tried = 4};
  EXPECT_THAT(sentence_of(tie), Mentions("2 workers ... tied ... slower ... other ... 4"));
  tie.link = "1gbit";
  tie.servers->counts = {{1, 1}, {3, 4}};
  EXPECT_THAT(sentence_of(tie), Mentions("2 workers ... 1gbit ... tied ... other ... 1 and 3 to 4"));
}

}  // namespace
}  // namespace lockstep::compare
