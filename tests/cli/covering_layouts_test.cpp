#include "cli/covering_layouts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

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

TEST(CoveringLayouts, BeginWithOneProcessAndFitTheProcesses) {
  for (const int processes : {1, 2, 3, 4}) {
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
