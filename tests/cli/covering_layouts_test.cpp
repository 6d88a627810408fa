#include "cli/covering_layouts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <set>
#include <vector>

namespace lockstep::cli {
namespace {

/// As the table of keys has them, so that a new word is not forgotten.
TEST(CoveringLayouts, HaveEveryWordOfEveryKeyThatLeavesBitsAsTheyAre) {
  const auto layouts = covering_layouts(4);
  for (const auto& key : layout::layout_keys()) {
    std::set<int> values;
    for (const auto& layout : layouts)
      if (layout::has_meaning(key, layout)) values.insert(key.get(layout));
    for (int word = 0; word < static_cast<int>(key.words.size()); ++word) {
      const auto& text = key.words[static_cast<size_t>(word)];
      if (text == "async") continue;  // other numbers, by design
      EXPECT_TRUE(values.contains(word)) << key.name << "=" << text;
    }
  }
}

/// A word alone says little: with one replica, nothing is sharded.
TEST(CoveringLayouts, ShardTheOptimizerOverSeveralReplicas) {
  for (const auto& layout : covering_layouts(64))
    if (layout.shard == layout::ShardedState::optimizer) EXPECT_GE(layout.dp, 2) << layout::to_string(layout);
}

bool has_pipeline(const std::vector<layout::Layout>& layouts, layout::PipelineSchedule schedule, int pp,
                  const std::function<bool(const layout::Layout&)>& of) {
  return std::ranges::any_of(layouts, [&](const layout::Layout& layout) {
    return layout.pp == pp && layout.schedule == schedule && of(layout);
  });
}

TEST(CoveringLayouts, HaveEveryScheduleOnEveryNumberOfStages) {
  using enum layout::PipelineSchedule;
  const auto any = [](const layout::Layout&) { return true; };
  const auto has_replicas = [](const layout::Layout& layout) { return layout.dp > 1; };
  const auto shards = [](const layout::Layout& layout) {
    return layout.shard == layout::ShardedState::optimizer;
  };
  for (const auto schedule : {gpipe, one_f_one_b, interleaved, zero_bubble})
    for (const int pp : {2, 3, 4}) {
      EXPECT_TRUE(has_pipeline(covering_layouts(pp), schedule, pp, any)) << pp;
      EXPECT_TRUE(has_pipeline(covering_layouts(2 * pp), schedule, pp, has_replicas)) << pp;
      if (pp == 2) EXPECT_TRUE(has_pipeline(covering_layouts(4), schedule, pp, shards));
    }
}

TEST(CoveringLayouts, UseTheProcessesThatThereAre) {
  for (const int processes : {2, 3, 4, 5, 6, 8}) {
    const auto layouts = covering_layouts(processes);
    EXPECT_TRUE(std::ranges::any_of(layouts, [&](const layout::Layout& layout) {
      return layout.world_size() == processes;
    })) << processes;
  }
}

TEST(CoveringLayouts, BeginWithOneProcessAndFitTheProcesses) {
  for (const int processes : {1, 2, 3, 4, 8}) {
    const auto layouts = covering_layouts(processes);
    ASSERT_GE(layouts.size(), 2u);
    EXPECT_EQ(layouts.front(), layout::Layout{.dp = 1});
    for (const auto& layout : layouts) {
      EXPECT_LE(layout.world_size(), processes);
      EXPECT_EQ(std::ranges::count(layouts, layout), 1) << layout::to_string(layout);
    }
  }
}

}  // namespace
}  // namespace lockstep::cli
