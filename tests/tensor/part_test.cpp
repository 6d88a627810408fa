#include "tensor/part.h"

#include <gmock/gmock.h>

#include <numeric>
#include <random>
#include <vector>

#include "lockstep/error.h"
#include "mentions.h"

namespace lockstep::tensor {
namespace {

/// The elements of a part, in the order of its packed memory.
std::vector<int64_t> elements_of(const Part& part) {
  std::vector<int64_t> elements;
  for (int64_t row = 0; row < part.rows(); ++row)
    for (int64_t column = 0; column < part.columns(); ++column)
      elements.push_back(part.first() + row * part.pitch() + column);
  return elements;
}

TEST(Part, WhatIsContiguousIsARange) {
  const Shape shape{4, 2, 3};
  EXPECT_EQ(Part::whole(shape), Part::range(0, 24));
  EXPECT_EQ(Part::rectangle(shape, {1, 2}, {0, 6}), Part::range(6, 12));
  EXPECT_EQ(Part::rectangle(shape, {3, 1}, {2, 3}), Part::range(20, 3));
  EXPECT_EQ(Part::strided(3, 5, 4, 5), Part::range(3, 20));
  EXPECT_EQ(Part::strided(3, 5, 1, 100), Part::range(3, 5));
  EXPECT_EQ(Part::range(7, 0), Part());
  EXPECT_EQ(Part::rectangle(shape, {2, 0}, {1, 2}), Part());
  EXPECT_EQ(Part::whole(Shape{}), Part::range(0, 1)) << "a scalar";
  EXPECT_EQ(Part::whole(Shape{0, 5}), Part());
  EXPECT_EQ(Part::rectangle(Shape{9}, {2, 3}, {0, 1}), Part::range(2, 3)) << "a vector is one column";
}

TEST(Part, OfARectangle) {
  const Part part = Part::rectangle(Shape{4, 6}, {1, 2}, {2, 3});
  EXPECT_THAT(elements_of(part), testing::ElementsAre(8, 9, 10, 14, 15, 16));
  EXPECT_EQ(part.count(), 6);
  EXPECT_EQ(part.end(), 17);
  EXPECT_FALSE(part.is_range());
  EXPECT_EQ(part.element(0), 8);
  EXPECT_EQ(part.element(4), 15);
  EXPECT_TRUE(part.contains(Part::range(9, 2)));
  EXPECT_FALSE(part.contains(Part::range(9, 3)));
  EXPECT_TRUE(part.contains(Part()));
  EXPECT_FALSE(part.meets(Part::range(11, 3)));
  EXPECT_TRUE(part.meets(Part::range(11, 4)));
}

TEST(Part, FitsTensorsWithTheSameRows) {
  const Part part = Part::rectangle(Shape{4, 6}, {1, 2}, {2, 3});
  EXPECT_TRUE(part.fits(Shape{4, 6}));
  EXPECT_TRUE(part.fits(Shape{3, 2, 3}));
  EXPECT_FALSE(part.fits(Shape{4, 5})) << "other rows";
  EXPECT_FALSE(part.fits(Shape{2, 6})) << "too few";
  EXPECT_FALSE(Part::strided(4, 3, 2, 6).fits(Shape{4, 6})) << "it goes on in the next row";
  EXPECT_TRUE(Part::range(4, 20).fits(Shape{4, 6}));
  EXPECT_FALSE(Part::range(4, 21).fits(Shape{4, 6}));
  EXPECT_TRUE(Part().fits(Shape{0}));
}

TEST(Part, RefusesWhatIsNone) {
  constexpr int64_t kMost = INT64_MAX;
  EXPECT_THROW(Part::range(-1, 2), ConfigError);
  EXPECT_THROW(Part::range(1, -2), ConfigError);
  EXPECT_THROW(Part::range(kMost, 1), ConfigError);
  EXPECT_THROW(Part::strided(0, 3, 2, 2), ConfigError);
  EXPECT_THROW(Part::strided(0, 3, -2, 4), ConfigError);
  EXPECT_THROW(Part::strided(0, 1, kMost, 4), ConfigError);
  EXPECT_THROW(Part::strided(0, kMost, 2, kMost), ConfigError);
  EXPECT_THROW(Part::rectangle(Shape{4, 6}, {1, 4}, {0, 1}), ConfigError);
  EXPECT_THROW(Part::rectangle(Shape{4, 6}, {1, 1}, {5, 2}), ConfigError);
  EXPECT_THROW(Part::rectangle(Shape{4, 6}, {-1, 1}, {0, 1}), ConfigError);
  EXPECT_THROW(Part::rectangle(Shape{4, 6}, {0, 1}, {0, kMost}), ConfigError);
}

TEST(Part, IsWrittenAndRead) {
  for (const auto& [part, text, words] : {std::tuple(Part(), "0+0", "no elements"),
                                          {Part::range(64, 128), "64+128", "elements 64 to 191"},
                                          {Part::rectangle(Shape{100, 128}, {0, 8}, {64, 16}), "64+16x8/128",
                                           "rows 0 to 7, columns 64 to 79"}}) {
    EXPECT_EQ(to_text(part), text);
    EXPECT_EQ(part_from_text(text), part);
    EXPECT_EQ(describe(part), words);
  }
  EXPECT_EQ(part_from_text("5+4x3/4"), Part::range(5, 12));
  for (const char* text :
       {"", "5", "5+", "+5", "5+4x", "5+4x3", "5+4x3/", "5+4x3/3", "5+4x3/8 ", "5+4 ", "-5+4", "5+-4", "5-4",
        "5+4x-3/8", "9223372036854775807+1", "5+99999999999999999999"})
    EXPECT_THROW(part_from_text(text), ConfigError) << text;
}

TEST(Part, SaysWhereAnotherLiesInItsMemory) {
  const Shape shape{4, 6};
  const Part whole = Part::whole(shape), rows = Part::rectangle(shape, {1, 2}, {0, 6}),
             columns = Part::rectangle(shape, {0, 4}, {2, 3});
  EXPECT_EQ(whole.place_of(rows), 6);
  EXPECT_EQ(rows.place_of(Part::range(8, 9)), 2);
  EXPECT_EQ(columns.place_of(columns), 0);
  EXPECT_EQ(columns.place_of(Part::rectangle(shape, {1, 3}, {2, 3})), 3);
  EXPECT_EQ(columns.place_of(Part::range(15, 2)), 7);
  EXPECT_EQ(whole.place_of(columns), std::nullopt) << "it lies there with gaps";
  EXPECT_EQ(columns.place_of(Part::rectangle(shape, {0, 4}, {2, 2})), std::nullopt);
  EXPECT_EQ(columns.place_of(Part::range(3, 3)), std::nullopt) << "not all of it is there";
  EXPECT_EQ(rows.place_of(Part::range(0, 2)), std::nullopt);
}

/// Any range or rectangle of a matrix.
Part random_part(std::mt19937& random, const Shape& shape) {
  const auto extent = [&](int64_t size) {
    const int64_t first = std::uniform_int_distribution<int64_t>(0, size)(random);
    return Extent{first, std::uniform_int_distribution<int64_t>(0, size - first)(random)};
  };
  if (random() % 2 == 0) {
    const Extent all = extent(shape.count());
    return Part::range(all.first, all.count);
  }
  const Extent rows = extent(shape[0]), columns = extent(shape.count() / shape[0]);
  return Part::rectangle(shape, rows, columns);
}

TEST(Part, CommonRunsAreTheCommonElementsInOrder) {
  std::mt19937 random(1);
  for (int trial = 0; trial < 3000; ++trial) {
    const Shape shape{static_cast<int64_t>(1 + random() % 6), static_cast<int64_t>(1 + random() % 4), 2};
    const Part a = random_part(random, shape), b = random_part(random, shape);
    const auto of_a = elements_of(a), of_b = elements_of(b);
    std::vector<int64_t> expected, found;
    std::set_intersection(of_a.begin(), of_a.end(), of_b.begin(), of_b.end(), std::back_inserter(expected));
    for_common_runs(a, b, [&](const CommonRun& run) {
      ASSERT_GT(run.count, 0);
      for (int64_t i = 0; i < run.count; ++i) {
        found.push_back(run.element + i);
        ASSERT_EQ(of_a.at(static_cast<size_t>(run.in_a + i)), run.element + i);
        ASSERT_EQ(of_b.at(static_cast<size_t>(run.in_b + i)), run.element + i);
        ASSERT_EQ(a.element(run.in_a + i), run.element + i);
      }
    });
    ASSERT_EQ(found, expected) << describe(a) << "; " << describe(b);
    EXPECT_EQ(a.contains(b), expected.size() == of_b.size());
    EXPECT_EQ(a.meets(b), !expected.empty());
    EXPECT_EQ(a == b, of_a == of_b) << "equal parts are those with the same elements";
    EXPECT_EQ(part_from_text(to_text(a)), a);
  }
}

TEST(Part, CommonRunsOfManyRowsAreFoundWithoutWalkingThere) {
  const Part column = Part::strided(1, 1, int64_t{1} << 40, 1 << 10);
  int64_t runs = 0;
  for_common_runs(column, Part::range((int64_t{1} << 49) - 5, 2000), [&](const CommonRun& run) {
    ++runs;
    EXPECT_EQ(run.in_a, (run.element - 1) / 1024);
  });
  EXPECT_EQ(runs, 2);
}

TEST(Part, ContainsOthersOfManyRowsWithoutWalkingThere) {
  const int64_t rows = int64_t{1} << 57;
  const Part whole = Part::range(0, int64_t{1} << 60), column = Part::strided(1, 2, rows, 8);
  EXPECT_TRUE(whole.contains(column));
  EXPECT_FALSE(Part::range(0, column.end() - 1).contains(column));
  EXPECT_TRUE(column.contains(column));
  EXPECT_TRUE(column.contains(Part::strided(10, 1, rows - 1, 8)));
  EXPECT_FALSE(column.contains(Part::strided(10, 1, rows, 8)));
  EXPECT_FALSE(column.contains(Part::strided(2, 2, rows, 8)));
  EXPECT_TRUE(column.contains(Part::range(8 * (rows - 1) + 1, 2)));
  EXPECT_FALSE(column.contains(Part::range(8 * (rows - 1) + 2, 2)));
}

TEST(Part, CopiesWhatTwoPartsHaveInCommon) {
  const Shape shape{4, 6};
  std::vector<int> from(12), to(12, -1);
  std::iota(from.begin(), from.end(), 0);
  const Part rows = Part::rectangle(shape, {1, 2}, {0, 6}), columns = Part::rectangle(shape, {0, 4}, {3, 3});
  EXPECT_EQ(copy_common(to.data(), columns, from.data(), rows, sizeof(int)), 6);
  EXPECT_THAT(to, testing::ElementsAre(-1, -1, -1, 3, 4, 5, 9, 10, 11, -1, -1, -1));
}

std::string fault_of(int64_t elements, const std::vector<Part>& parts) {
  const auto fault = tiling_fault(elements, parts);
  return fault ? std::to_string(fault->element) + (fault->is_twice ? " twice" : " never") : "";
}

TEST(Tiling, IsEveryElementOnce) {
  const Shape shape{4, 6};
  const Part left = Part::rectangle(shape, {0, 4}, {0, 2}), right = Part::rectangle(shape, {0, 4}, {2, 4});
  EXPECT_EQ(fault_of(24, {right, left}), "");
  EXPECT_EQ(fault_of(24, {Part::range(7, 17), Part(), Part::range(0, 7)}), "");
  EXPECT_EQ(fault_of(0, {}), "");
  EXPECT_EQ(fault_of(24, {}), "0 never");
  EXPECT_EQ(fault_of(24, {left}), "2 never");
  EXPECT_EQ(fault_of(24, {right}), "0 never");
  EXPECT_EQ(fault_of(24, {left, Part::rectangle(shape, {0, 3}, {2, 4})}), "20 never");
  EXPECT_EQ(fault_of(24, {left, right, Part::range(13, 1)}), "13 twice");
  EXPECT_EQ(fault_of(24, {left, left, right}), "0 twice");
}

TEST(Chunks, AreWhole) {
  const auto refusal = [](const Part& part, int64_t elements) {
    try {
      require_whole_chunks(part, elements, "fc.weight");
    } catch (const InternalError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(refusal(Part::range(kChunkElements, kChunkElements), 200'000), "");
  EXPECT_EQ(refusal(Part::range(2 * kChunkElements, 68'928), 200'000), "");
  EXPECT_EQ(refusal(Part::range(0, 10), 10), "");
  EXPECT_EQ(refusal(Part(), 10), "");
  EXPECT_THAT(refusal(Part::range(1, kChunkElements), 200'000), Mentions("fc.weight ... 65536 elements"));
  EXPECT_THAT(refusal(Part::range(0, kChunkElements - 1), 200'000), Mentions("fc.weight ... 65536 elements"));
  EXPECT_THAT(refusal(Part::strided(0, kChunkElements, 2, 2 * kChunkElements), 4 * kChunkElements),
              Mentions("fc.weight ... rows 0 to 1, columns 0 to 65535"));
}

}  // namespace
}  // namespace lockstep::tensor
