#include "program/memory/interval_index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace lockstep::program {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::UnorderedElementsAre;
using testing::UnorderedElementsAreArray;

std::vector<int> found(const IntervalIndex& index, int first, int last) {
  std::vector<int> ids;
  index.visit(first, last, [&](int id) { ids.push_back(id); });
  return ids;
}

TEST(IntervalIndex, FindsWhatSharesAPoint) {
  const IntervalIndex::Item items[] = {{0, 2, 4}, {1, 4, 6}, {2, 7, 7}};
  IntervalIndex index(3, items);
  for (const int id : {0, 1, 2}) index.enter(id);
  EXPECT_THAT(found(index, 0, 1), IsEmpty());
  EXPECT_THAT(found(index, 4, 4), UnorderedElementsAre(0, 1));
  EXPECT_THAT(found(index, 5, 7), UnorderedElementsAre(1, 2));
  EXPECT_THAT(found(index, 0, 100), UnorderedElementsAre(0, 1, 2));
  EXPECT_THAT(found(index, 8, 100), IsEmpty());
}

TEST(IntervalIndex, FindsOnlyWhatWasEntered) {
  const IntervalIndex::Item items[] = {{5, 0, 9}, {3, 0, 9}};
  IntervalIndex index(6, items);
  EXPECT_THAT(found(index, 0, 9), IsEmpty());
  index.enter(3);
  EXPECT_THAT(found(index, 0, 9), ElementsAre(3));
}

TEST(IntervalIndex, IsEmptyWithoutIntervals) {
  EXPECT_THAT(found(IntervalIndex(0, {}), 0, 9), IsEmpty());
  EXPECT_THAT(found(IntervalIndex(4, {}), 0, 9), IsEmpty());
}

TEST(IntervalIndex, FindsNothingInAnEmptyRange) {
  const IntervalIndex::Item items[] = {{0, 0, 9}};
  IntervalIndex index(1, items);
  index.enter(0);
  EXPECT_THAT(found(index, 5, 4), IsEmpty());
}

TEST(IntervalIndex, FindsWhatPlainSearchFinds) {
  std::mt19937 random(5);
  const auto below = [&](int limit) { return static_cast<int>(random() % static_cast<unsigned>(limit)); };
  for (int round = 0; round < 50; ++round) {
    const int count = 1 + below(40);
    std::vector<IntervalIndex::Item> items;
    for (int id = 0; id < count; ++id) {
      const int first = below(50);
      items.push_back({id, first, first + below(10)});
    }
    IntervalIndex index(static_cast<size_t>(count), items);
    for (int entered = 0; entered < count; ++entered) {
      index.enter(entered);
      const int first = below(60), last = below(60);
      std::vector<int> expected;
      for (int id = 0; id <= entered; ++id)
        if (first <= last && items[static_cast<size_t>(id)].first <= last &&
            items[static_cast<size_t>(id)].last >= first)
          expected.push_back(id);
      ASSERT_THAT(found(index, first, last), UnorderedElementsAreArray(expected)) << round;
    }
  }
}

}  // namespace
}  // namespace lockstep::program
