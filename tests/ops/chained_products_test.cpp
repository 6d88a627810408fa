#include "ops/cpu/chained_products.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <limits>
#include <utility>

#include "ops/replica_sums.h"

namespace lockstep::testing {
namespace {

using ops::ChainedProducts;
using Values = std::vector<float>;

struct Sizes {
  int64_t rows, units, inputs;
  int replicas;
};

/// Of a size in bytes, aligned as kernels' is; NaN, so that what is read before it is written shows.
class Workspace {
 public:
  explicit Workspace(int64_t bytes)
      : numbers_(static_cast<size_t>(bytes / 4) + 32, std::numeric_limits<float>::quiet_NaN()) {}
  ~Workspace() {
    // What lies behind was not written.
    EXPECT_TRUE(std::isnan(numbers_.back()));
  }
  float* data() {
    const auto address = reinterpret_cast<uintptr_t>(numbers_.data());
    return numbers_.data() + (64 - address % 64) % 64 / 4;
  }

 private:
  Values numbers_;
};

class Linear : public ::testing::TestWithParam<std::pair<Sizes, int>> {
 protected:
  const Sizes size = GetParam().first;
  const int threads = GetParam().second;
  const ChainedProducts products{size.rows, size.units, size.inputs, size.replicas, threads};
  const Values x = random_floats(size.rows * size.inputs, 1),
               weight = random_floats(size.units * size.inputs, 2), bias = random_floats(size.units, 3),
               dy = random_floats(size.rows * size.units, 4);

  float x_at(int64_t row, int64_t k) const { return x[static_cast<size_t>(row * size.inputs + k)]; }
  float weight_at(int64_t unit, int64_t k) const {
    return weight[static_cast<size_t>(unit * size.inputs + k)];
  }
  float dy_at(int64_t row, int64_t unit) const { return dy[static_cast<size_t>(row * size.units + unit)]; }
};

TEST_P(Linear, ForwardIsOneChainPerElementThenTheBias) {
  Values expected, y(dy.size()), without_bias(dy.size());
  Values expected_without;
  for (int64_t row = 0; row < size.rows; ++row)
    for (int64_t unit = 0; unit < size.units; ++unit) {
      expected_without.push_back(
          chain(0, size.inputs, [&](int64_t k) { return std::pair(x_at(row, k), weight_at(unit, k)); }));
      expected.push_back(expected_without.back() + bias[static_cast<size_t>(unit)]);
    }
  Workspace workspace(products.forward_bytes());
  products.forward(x.data(), weight.data(), bias.data(), y.data(), workspace.data());
  products.forward(x.data(), weight.data(), nullptr, without_bias.data(), workspace.data());
  EXPECT_EQ(bits_of(y), bits_of(expected));
  EXPECT_EQ(bits_of(without_bias), bits_of(expected_without));
}

TEST_P(Linear, InputGradientIsOneChainPerElement) {
  Values expected, dx(x.size());
  for (int64_t row = 0; row < size.rows; ++row)
    for (int64_t k = 0; k < size.inputs; ++k)
      expected.push_back(chain(
          0, size.units, [&](int64_t unit) { return std::pair(dy_at(row, unit), weight_at(unit, k)); }));
  Workspace workspace(products.input_gradient_bytes());
  products.input_gradient(dy.data(), weight.data(), dx.data(), workspace.data());
  EXPECT_EQ(bits_of(dx), bits_of(expected));
}

TEST_P(Linear, WeightGradientIsTheTreeOfTheReplicasChains) {
  const int64_t each = size.rows / size.replicas;
  Values expected, dweight(weight.size());
  for (int64_t unit = 0; unit < size.units; ++unit)
    for (int64_t k = 0; k < size.inputs; ++k)
      expected.push_back(tree_sum(0, size.replicas, [&](int replica) {
        return chain(replica * each, (replica + 1) * each,
                     [&](int64_t row) { return std::pair(dy_at(row, unit), x_at(row, k)); });
      }));
  Workspace workspace(products.weight_gradient_bytes());
  products.weight_gradient(dy.data(), x.data(), dweight.data(), false, workspace.data());
  EXPECT_EQ(bits_of(dweight), bits_of(expected));
}

TEST_P(Linear, WeightGradientGoesOnFromMicroBatchToMicroBatch) {
  if (size.rows < 2) return;
  Values whole(weight.size()), parts(weight.size());
  const ChainedProducts all(size.rows, size.units, size.inputs, 1, threads);
  Workspace workspace(all.weight_gradient_bytes());
  all.weight_gradient(dy.data(), x.data(), whole.data(), false, workspace.data());
  const int64_t first = size.rows / 3 + 1;
  for (const auto& [begin, end] : {std::pair<int64_t, int64_t>(0, first), {first, size.rows}}) {
    if (begin == end) continue;
    const ChainedProducts some(end - begin, size.units, size.inputs, 1, threads);
    some.weight_gradient(dy.data() + begin * size.units, x.data() + begin * size.inputs, parts.data(),
                         begin > 0, workspace.data());
  }
  EXPECT_EQ(bits_of(parts), bits_of(whole));
}

std::vector<std::pair<Sizes, int>> all_sizes() {
  std::vector<std::pair<Sizes, int>> list;
  for (const Sizes& size : std::vector<Sizes>{{1, 1, 1, 1},
                                              {1, 40, 50, 1},
                                              {40, 1, 50, 8},
                                              {40, 50, 1, 4},
                                              {2, 3, 400, 2},
                                              {13, 37, 401, 1},
                                              {24, 33, 70, 3},
                                              {64, 32, 64, 8},
                                              {7, 12, 32, 7},
                                              {22, 50, 100, 11},
                                              {60, 10, 96, 4},
                                              {96, 65, 31, 1},
                                              {130, 24, 33, 2},
                                              {8, 100, 770, 8},
                                              {12, 97, 12, 6},
                                              {200, 25, 64, 5},
                                              {16, 13, 1200, 16}})
    for (const int threads : {1, 3}) list.emplace_back(size, threads);
  return list;
}

INSTANTIATE_TEST_SUITE_P(Products, Linear, ::testing::ValuesIn(all_sizes()), [](const auto& info) {
  const Sizes& size = info.param.first;
  return fmt::format("{}x{}x{}In{}By{}", size.rows, size.units, size.inputs, size.replicas,
                     info.param.second);
});

TEST(ChainedProducts, NumbersThatAreNoneStayInTheirRow) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const int64_t rows = 14, units = 37, inputs = 45;
  const ChainedProducts products(rows, units, inputs, 1, 1);
  Values x = random_floats(rows * inputs, 1), weight = random_floats(units * inputs, 2);
  Values clean(static_cast<size_t>(rows * units)), y = clean;
  Workspace workspace(products.forward_bytes());
  products.forward(x.data(), weight.data(), nullptr, clean.data(), workspace.data());
  x[3 * inputs + 7] = std::numeric_limits<float>::quiet_NaN();
  x[9 * inputs + 8] = kInfinity;
  products.forward(x.data(), weight.data(), nullptr, y.data(), workspace.data());
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t unit = 0; unit < units; ++unit) {
      const auto at = static_cast<size_t>(row * units + unit);
      if (row == 3)
        EXPECT_TRUE(std::isnan(y[at]));
      else if (row == 9)
        EXPECT_EQ(std::abs(y[at]), kInfinity);
      else
        EXPECT_EQ(y[at], clean[at]);
    }
}

TEST(ChainedProducts, KeepNumbersBelowTheSmallestNormalOne) {
  const float tiny = std::numeric_limits<float>::denorm_min();
  const ChainedProducts products(2, 3, 2, 1, 1);
  const Values x{tiny, 0, 0, 2 * tiny}, weight{1, 1, 2, 2, 3, 3};
  Values y(6);
  Workspace workspace(products.forward_bytes());
  products.forward(x.data(), weight.data(), nullptr, y.data(), workspace.data());
  EXPECT_EQ(y, (Values{tiny, 2 * tiny, 3 * tiny, 2 * tiny, 4 * tiny, 6 * tiny}));
}

}  // namespace
}  // namespace lockstep::testing
