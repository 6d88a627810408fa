#include "plan/balance.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "model/pieces.h"
#include "plan/device_plan.h"
#include "plan/plan_testing.h"

namespace lockstep::plan {
namespace {

struct Worth {
  int64_t bytes = 0;
  double slowest = 0;
};

Worth worth_of(const compile::CompileOptions& options) {
  const compile::CompiledRun run(options, facts_of(options));
  Worth worth{.bytes = fullest_rank(run).plan.total_bytes};
  const std::vector<double> groups = model::group_times(run.graph(), run.node_times());
  std::vector<double> pieces(static_cast<size_t>(run.partition().piece_count()), 0);
  for (size_t s = 0; s < run.partition().segments.size(); ++s) {
    const auto& segment = run.partition().segments[s];
    const int first = run.graph().node(segment.first_node).group,
              last = run.graph().node(segment.last_node).group;
    for (int g = first; g <= last; ++g)
      pieces[static_cast<size_t>(run.partition().pieces[s])] += groups[static_cast<size_t>(g)];
  }
  worth.slowest = *std::ranges::max_element(pieces);
  return worth;
}

/// Of all cuts into two stages that fit, the one whose slowest stage is fastest.
TEST(Balance, IsTheFastestDivisionThatFits) {
  const compile::CompileOptions options = gpt_options("dp=1,pp=2,schedule=1f1b", 4);
  const Worth by_time = worth_of(options);
  std::vector<Worth> all;
  const model::Graph& graph = *options.graph;
  for (const int begin : model::group_begins(graph)) {
    if (begin == 0) continue;
    compile::CompileOptions cut = options;
    cut.parallel.cuts = {graph.node(begin).name};
    all.push_back(worth_of(cut));
  }
  const int64_t least = std::ranges::min_element(all, {}, &Worth::bytes)->bytes;
  ASSERT_LT(least, by_time.bytes) << "another division takes less than that by time";
  int moved = 0;
  // The smallest of all is not always found.
  const int64_t step = (by_time.bytes - least) / 7 + 1;
  for (int64_t limit = least + step; limit < by_time.bytes; limit += step) {
    double fastest = std::numeric_limits<double>::infinity();
    for (const Worth& worth : all)
      if (worth.bytes <= limit) fastest = std::min(fastest, worth.slowest);
    const compile::CompileOptions found = balanced(options, facts_of(options), limit);
    const Worth worth = worth_of(found);
    EXPECT_LE(worth.bytes, limit);
    EXPECT_LE(worth.slowest, 1.02 * fastest) << "at " << limit;
    moved += found.parallel.cuts.empty() ? 0 : 1;
  }
  EXPECT_GT(moved, 0);
}

TEST(Balance, LeavesAloneWhatFitsOrCannot) {
  const compile::CompileOptions options = gpt_options("dp=1,pp=2");
  EXPECT_TRUE(balanced(options, facts_of(options), 0).parallel.cuts.empty());
  EXPECT_TRUE(balanced(options, facts_of(options), worth_of(options).bytes).parallel.cuts.empty());
  EXPECT_TRUE(balanced(options, facts_of(options), 1).parallel.cuts.empty());
  const compile::CompileOptions whole = gpt_options("dp=1");
  EXPECT_TRUE(balanced(whole, facts_of(whole), 1).parallel.cuts.empty());
  compile::CompileOptions stated = options;
  stated.parallel.cuts = {"h.0.ln_2"};
  EXPECT_EQ(balanced(stated, facts_of(stated), 1).parallel.cuts, stated.parallel.cuts);
}

}  // namespace
}  // namespace lockstep::plan
