#include "compare/page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "results_examples.h"

namespace lockstep::compare {
namespace {

using testing::HasSubstr;

TEST(ComparePage, SplitsStepsUpAndShowsWhatLinksMove) {
  const std::string page = compare_page(over_links());
  // Of 40 ms: an eighth computing, 15 of 30 that it waited in servers' hands no more than 10, the rest of
  // all.
  for (const char* said : {"<h3>Link: none</h3>", "<h3>Link: 1gbit</h3>", ">5.00 ms, 12 %</td>",
                           ">20.00 ms, 50 %</td>", ">10.00 ms, 25 %</td>", ">1.05 MB</td>", ">+5.0 %</td>"})
    EXPECT_THAT(page, HasSubstr(said));
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

}  // namespace
}  // namespace lockstep::compare
