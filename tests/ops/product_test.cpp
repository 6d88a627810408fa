#include "ops/cuda/product.h"

#include <gtest/gtest.h>

#include "lockstep/error.h"
#include "ops/gpu_memory.h"
#include "ops/op_testing.h"

namespace lockstep::testing {
namespace {

using Values = std::vector<float>;

/// The product of `a` and `b` as they lie in memory, added to `c` where there is one.
Values multiply(const ProductSpec& spec, const Values& a, const Values& b, const Values& bias = {},
                const Values& c = {}) {
  const TestedGpu gpu;
  Product product(spec);
  product.prepare(*gpu.device);
  const auto count = static_cast<size_t>(spec.rows * spec.columns);
  const Buffer a_data = gpu.upload(a, spec.factors), b_data = gpu.upload(b, spec.factors),
               bias_data = gpu.upload(bias, spec.result),
               c_data = gpu.upload(c.empty() ? Values(count, NAN) : c, spec.result),
               workspace = gpu.device->allocate(Product::workspace_bytes());
  product.run({.a = a_data.data(),
               .b = b_data.data(),
               .c = c_data.data(),
               .bias = spec.bias ? bias_data.data() : nullptr,
               .accumulate = !c.empty()},
              workspace.data(), *gpu.stream);
  return gpu.download(c_data, count, spec.result);
}

TEST(Product, ReadsMatricesByRows) {
  const ProductSpec plain{.rows = 2, .columns = 4, .inner = 3};
  const Values a{1, 2, 3, 4, 5, 6}, b{1, 0, 0, 2, 0, 1, 0, 3, 0, 0, 1, 4};
  EXPECT_EQ(multiply(plain, a, b), (Values{1, 2, 3, 20, 4, 5, 6, 47}));
}

TEST(Product, TransposesEachFactor) {
  const Values a{1, 2, 3, 4, 5, 6}, a_transposed{1, 4, 2, 5, 3, 6}, b{1, 0, 0, 2, 0, 1, 0, 3, 0, 0, 1, 4},
      b_transposed{1, 0, 0, 0, 1, 0, 0, 0, 1, 2, 3, 4}, expected{1, 2, 3, 20, 4, 5, 6, 47};
  ProductSpec spec{.rows = 2, .columns = 4, .inner = 3};
  spec.transpose_a = true;
  EXPECT_EQ(multiply(spec, a_transposed, b), expected);
  spec.transpose_b = true;
  EXPECT_EQ(multiply(spec, a_transposed, b_transposed), expected);
  spec.transpose_a = false;
  EXPECT_EQ(multiply(spec, a, b_transposed), expected);
}

TEST(Product, AddsTheBiasToEachRow) {
  const ProductSpec spec{.rows = 2, .columns = 3, .inner = 1, .bias = true};
  EXPECT_EQ(multiply(spec, {1, 2}, {1, 10, 100}, {0.5, -1, 0}), (Values{1.5, 9, 100, 2.5, 19, 200}));
}

TEST(Product, AddsToTheResultWhereAsked) {
  const ProductSpec spec{.rows = 2, .columns = 2, .inner = 1};
  EXPECT_EQ(multiply(spec, {1, 2}, {3, 4}, {}, {10, 20, 30, 40}), (Values{13, 24, 36, 48}));
}

TEST(Product, SumsNarrowFactorsInFloat32) {
  for (const DType dtype : {DType::bfloat16, DType::float16}) {
    // 4096 + 1 + 1 + 1: two bytes per number cannot hold the sums on the way, nor the last one.
    ProductSpec spec{.rows = 1, .columns = 1, .inner = 4, .factors = dtype};
    EXPECT_EQ(multiply(spec, {64, 1, 1, 1}, {64, 1, 1, 1}), (Values{4099})) << name_of(dtype);
    spec.result = dtype;
    EXPECT_EQ(multiply(spec, {64, 1, 1, 1}, {64, 1, 1, -3}), (Values{4096})) << name_of(dtype);
  }
}

TEST(Product, RoundsFactorsToTf32OnlyWhereAllowed) {
  const float fine = 1 + 0x1p-12f;
  ProductSpec spec{.rows = 1, .columns = 1, .inner = 1};
  EXPECT_EQ(multiply(spec, {fine}, {1}), (Values{fine}));
  spec.tf32 = true;
  const Values rounded = multiply(spec, {fine}, {1});
  EXPECT_NEAR(rounded[0], 1, 0x1p-10);
  if (TestedGpu().device->description() == "emulated GPU") {
    EXPECT_EQ(rounded, (Values{1}));
  }
}

TEST(Product, OfOpsRoundsFactorsToTf32OnlyWhereAllowed) {
  const std::pair<Op, TensorSpec> ops[] = {
      {Linear{.units = 1, .bias = false}, {Shape{1}}},
      {Conv2d{.channels = 1, .kernel = 1, .bias = false}, {Shape{1, 1, 1}}}};
  for (const auto& [op, input] : ops)
    for (const bool tf32 : {false, true}) {
      OpHarness harness(op, {input}, {.batch = 1, .tf32 = tf32}, DeviceKind::cuda);
      const double fine = 1 + 0x1p-12, rounded = 1;
      fill(harness.inputs[0], fine);
      fill(harness.parameters[0], fine);
      fill(harness.output_gradients[0], 1.0);
      harness.forward();
      harness.backward();
      const bool is_exact = TestedGpu().device->description() == "emulated GPU" || !tf32;
      const double expected = tf32 ? rounded : fine, tolerance = is_exact ? 0 : 0x1p-10;
      EXPECT_NEAR(values_of(harness.outputs[0])[0], static_cast<float>(expected * expected), 2 * tolerance);
      EXPECT_NEAR(values_of(harness.input_gradients[0])[0], expected, tolerance);
      EXPECT_NEAR(values_of(harness.parameter_gradients[0])[0], expected, tolerance);
    }
}

/// What cuBLASLt computes from these fields: its matrices lie by columns.
Values multiply_by_columns(const ColumnMajorProduct& product, const Values& first, const Values& second) {
  const auto element = [](const ColumnMajorMatrix& matrix, const Values& values, int64_t row,
                          int64_t column) -> double {
    if (matrix.transposed) std::swap(row, column);
    EXPECT_LT(row, matrix.rows);
    EXPECT_LT(column, matrix.columns);
    return values[static_cast<size_t>(column * matrix.leading + row)];
  };
  const auto& [a, b, c] = product;
  Values result(static_cast<size_t>(c.leading * c.columns));
  const int64_t inner = a.transposed ? a.rows : a.columns;
  EXPECT_EQ(inner, b.transposed ? b.columns : b.rows);
  for (int64_t row = 0; row < c.rows; ++row)
    for (int64_t column = 0; column < c.columns; ++column) {
      double sum = 0;
      for (int64_t k = 0; k < inner; ++k) sum += element(a, first, row, k) * element(b, second, k, column);
      result[static_cast<size_t>(column * c.leading + row)] = static_cast<float>(sum);
    }
  return result;
}

TEST(Product, IsTheOneThatCublasLtIsToldOf) {
  const int64_t sizes[][3] = {{1, 1, 1}, {2, 3, 5}, {7, 1, 4}, {1, 9, 2}, {33, 17, 65}};
  for (const auto& [rows, columns, inner] : sizes)
    for (const bool transpose_a : {false, true})
      for (const bool transpose_b : {false, true}) {
        const ProductSpec spec{.rows = rows,
                               .columns = columns,
                               .inner = inner,
                               .transpose_a = transpose_a,
                               .transpose_b = transpose_b};
        const Values a = small_numbers(rows * inner, 1), b = small_numbers(inner * columns, 2);
        EXPECT_EQ(multiply_by_columns(column_major(spec), b, a), multiply(spec, a, b)) << spec.to_string();
      }
}

TEST(ColumnMajor, SwapsTheFactorsAndKeepsTheirFlags) {
  // y [64, 10] = x [64, 784] W^T, W [10, 784]
  const ColumnMajorProduct forward = column_major({.rows = 64,
                                                   .columns = 10,
                                                   .inner = 784,
                                                   .transpose_b = true,
                                                   .factors = DType::bfloat16,
                                                   .result = DType::bfloat16,
                                                   .c_alignment = 4});
  EXPECT_EQ(forward.first, (ColumnMajorMatrix{784, 10, 784, true, DType::bfloat16, 16}));
  EXPECT_EQ(forward.second, (ColumnMajorMatrix{784, 64, 784, false, DType::bfloat16, 16}));
  EXPECT_EQ(forward.result, (ColumnMajorMatrix{10, 64, 10, false, DType::bfloat16, 4}));
  // dW [10, 784] = dy^T x, dy [64, 10]
  const ColumnMajorProduct weight = column_major({.rows = 10,
                                                  .columns = 784,
                                                  .inner = 64,
                                                  .transpose_a = true,
                                                  .factors = DType::float16,
                                                  .a_alignment = 8});
  EXPECT_EQ(weight.first, (ColumnMajorMatrix{784, 64, 784, false, DType::float16, 16}));
  EXPECT_EQ(weight.second, (ColumnMajorMatrix{10, 64, 10, true, DType::float16, 8}));
  EXPECT_EQ(weight.result, (ColumnMajorMatrix{784, 10, 784, false, DType::float32, 16}));
}

TEST(ProductSpec, SaysWhatItIs) {
  const ProductSpec spec{
      .rows = 10, .columns = 784, .inner = 64, .transpose_a = true, .factors = DType::float16};
  EXPECT_EQ(spec.to_string(), "[10, 784] = [64, 10]^T x [64, 784] of float16");
}

TEST(ProductSpec, RefusesResultsNarrowerThanTheFactors) {
  const ProductSpec narrow{.rows = 1, .columns = 1, .inner = 1, .result = DType::bfloat16};
  EXPECT_THROW(Product{narrow}, InternalError);
  const ProductSpec empty{.rows = 1, .columns = 0, .inner = 1};
  EXPECT_THROW(Product{empty}, InternalError);
}

TEST(Alignment, IsThatOfTheStrideAndAtMostATensors) {
  EXPECT_EQ(alignment_at(2), 2);
  EXPECT_EQ(alignment_at(28), 4);
  EXPECT_EQ(alignment_at(24), 8);
  EXPECT_EQ(alignment_at(48), 16);
  EXPECT_EQ(alignment_at(4096), 16);
}

}  // namespace
}  // namespace lockstep::testing
