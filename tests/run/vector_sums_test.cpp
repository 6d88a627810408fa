#include "run/cpu/vector_sums.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace lockstep::run {
namespace {

TEST(VectorSums, AddsEveryElementOnce) {
  for (const int64_t count : {0, 1, 15, 16, 17, 1000}) {
    std::vector<float> a(static_cast<size_t>(count) + 1, 1.5f), b(static_cast<size_t>(count) + 1, 2.25f);
    add_into(a.data(), b.data(), count);
    for (int64_t i = 0; i < count; ++i) ASSERT_EQ(a[static_cast<size_t>(i)], 3.75f);
    EXPECT_EQ(a.back(), 1.5f) << "wrote behind the end";
  }
}

TEST(VectorSums, SquaresAreSummedInDoublePrecision) {
  const std::vector<float> values{3, -4, 1e20f, 0.5f};
  EXPECT_EQ(sum_of_squares(values.data(), 2), 25.0);
  EXPECT_EQ(sum_of_squares(values.data() + 2, 1), 1e20f * static_cast<double>(1e20f));
  EXPECT_EQ(sum_of_squares(values.data(), 0), 0.0);
  for (const int64_t count : {1, 15, 16, 17, 33, 1001}) {
    const std::vector<float> ones(static_cast<size_t>(count), 2.0f);
    EXPECT_EQ(sum_of_squares(ones.data(), count), 4.0 * static_cast<double>(count));
  }
}

TEST(VectorSums, NonFiniteElementsShowInTheSum) {
  std::vector<float> values(100, 1.0f);
  values[37] = std::numeric_limits<float>::infinity();
  EXPECT_TRUE(std::isinf(sum_of_squares(values.data(), 100)));
  values[99] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(std::isnan(sum_of_squares(values.data(), 100)));
}

}  // namespace
}  // namespace lockstep::run
