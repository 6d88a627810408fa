#include "ops/cuda/column_sum.h"

#include <gtest/gtest.h>

#include "ops/gpu_memory.h"
#include "ops/replica_sums.h"

namespace lockstep::testing {
namespace {

using Values = std::vector<float>;

Values sum_columns(int64_t rows, int64_t columns, DType dtype, const Values& x, const Values& onto = {},
                   int replicas = 1) {
  const TestedGpu gpu;
  const ops::ColumnSum sum(rows, columns, dtype, replicas);
  const auto count = static_cast<size_t>(columns);
  const device::Buffer x_data = gpu.upload(x, dtype),
                       sums = gpu.upload(onto.empty() ? Values(count, NAN) : onto),
                       workspace = gpu.upload(
                           Values(static_cast<size_t>(sum.workspace_bytes()) / sizeof(float), NAN));
  sum.run(x_data.data(), floats_of(sums), !onto.empty(), workspace.data(), *gpu.stream);
  return gpu.download(sums, count);
}

TEST(ColumnSum, AddsRows) {
  EXPECT_EQ(sum_columns(2, 3, DType::float32, {1, 2, 3, 10, 20, 30}), (Values{11, 22, 33}));
  EXPECT_EQ(sum_columns(2, 3, DType::float32, {1, 2, 3, 10, 20, 30}, {100, 200, 300}),
            (Values{111, 222, 333}));
}

TEST(ColumnSum, IsExactForWholeNumbersOfEveryShapeAndType) {
  // Rows of packs and of single elements; one part and many; more columns than a block has; fewer than a
  // warp.
  const int64_t shapes[][2] = {{1, 1},     {7, 1},    {5000, 1}, {64, 10},   {1031, 6},
                               {3000, 64}, {999, 72}, {2, 1000}, {300, 520}, {4097, 8}};
  for (const auto& [rows, columns] : shapes)
    for (const DType dtype : {DType::float32, DType::bfloat16, DType::float16}) {
      const Values x = small_numbers(rows * columns, 3);
      Values expected(static_cast<size_t>(columns)), onto = small_numbers(columns, 4);
      for (size_t i = 0; i < x.size(); ++i) expected[i % expected.size()] += x[i];
      EXPECT_EQ(sum_columns(rows, columns, dtype, x), expected)
          << rows << " x " << columns << " of " << name_of(dtype);
      for (size_t c = 0; c < expected.size(); ++c) expected[c] += onto[c];
      EXPECT_EQ(sum_columns(rows, columns, dtype, x, onto), expected)
          << "added, " << rows << " x " << columns << " of " << name_of(dtype);
    }
}

TEST(ColumnSum, AddsVirtualReplicasAlongTheTree) {
  const int64_t shapes[][2] = {{1, 1}, {8, 10}, {64, 64}, {600, 8}, {5000, 3}};
  for (const auto& [rows, columns] : shapes)
    for (const DType dtype : {DType::float32, DType::bfloat16})
      for (const int replicas : {2, 3, 7}) {
        const Values x = random_floats(replicas * rows * columns, 5);
        std::vector<Values> each;
        for (int replica = 0; replica < replicas; ++replica)
          each.push_back(sum_columns(
              rows, columns, dtype,
              {x.begin() + replica * rows * columns, x.begin() + (replica + 1) * rows * columns}));
        Values expected;
        for (size_t c = 0; c < static_cast<size_t>(columns); ++c)
          expected.push_back(
              tree_sum(0, replicas, [&](int replica) { return each[static_cast<size_t>(replica)][c]; }));
        EXPECT_EQ(bits_of(sum_columns(rows, columns, dtype, x, {}, replicas)), bits_of(expected))
            << replicas << " replicas of " << rows << " x " << columns;
      }
}

TEST(ColumnSum, CutsManyRowsIntoPartsAndFewNot) {
  EXPECT_EQ(ops::ColumnSum(64, 10, DType::float32).workspace_bytes(), 0);
  EXPECT_EQ(ops::ColumnSum(1 << 20, 64, DType::bfloat16).workspace_bytes(), 1024 * 64 * 4);
}

}  // namespace
}  // namespace lockstep::testing
