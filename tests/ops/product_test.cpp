#include "ops/cuda/product.h"

#include <gtest/gtest.h>

#include "lockstep/error.h"
#include "ops/gpu_memory.h"
#include "ops/op_testing.h"

namespace lockstep::testing {
namespace {

using Values = std::vector<float>;

/// The product of `a` and `b` as they lie in memory, added to `c` where there is one.
Values multiply(const ops::ProductSpec& spec, const Values& a, const Values& b, const Values& bias = {},
                const Values& c = {}) {
  const TestedGpu gpu;
  ops::Product product(spec);
  product.prepare(*gpu.device);
  const auto count = static_cast<size_t>(spec.rows * spec.columns);
  const device::Buffer a_data = gpu.upload(a, spec.factors), b_data = gpu.upload(b, spec.factors),
                       bias_data = gpu.upload(bias, spec.result),
                       c_data = gpu.upload(c.empty() ? Values(count, NAN) : c, spec.result),
                       workspace = gpu.device->allocate(ops::Product::workspace_bytes());
  product.run({.a = a_data.data(),
               .b = b_data.data(),
               .c = c_data.data(),
               .bias = spec.bias ? bias_data.data() : nullptr,
               .accumulate = !c.empty()},
              workspace.data(), *gpu.stream);
  return gpu.download(c_data, count, spec.result);
}

TEST(Product, ReadsMatricesByRows) {
  const ops::ProductSpec plain{.rows = 2, .columns = 4, .inner = 3};
  const Values a{1, 2, 3, 4, 5, 6}, b{1, 0, 0, 2, 0, 1, 0, 3, 0, 0, 1, 4};
  EXPECT_EQ(multiply(plain, a, b), (Values{1, 2, 3, 20, 4, 5, 6, 47}));
}

TEST(Product, TransposesEachFactor) {
  const Values a{1, 2, 3, 4, 5, 6}, a_transposed{1, 4, 2, 5, 3, 6}, b{1, 0, 0, 2, 0, 1, 0, 3, 0, 0, 1, 4},
      b_transposed{1, 0, 0, 0, 1, 0, 0, 0, 1, 2, 3, 4}, expected{1, 2, 3, 20, 4, 5, 6, 47};
  ops::ProductSpec spec{.rows = 2, .columns = 4, .inner = 3};
  spec.transpose_a = true;
  EXPECT_EQ(multiply(spec, a_transposed, b), expected);
  spec.transpose_b = true;
  EXPECT_EQ(multiply(spec, a_transposed, b_transposed), expected);
  spec.transpose_a = false;
  EXPECT_EQ(multiply(spec, a, b_transposed), expected);
}

TEST(Product, AddsTheBiasToEachRow) {
  const ops::ProductSpec spec{.rows = 2, .columns = 3, .inner = 1, .bias = true};
  EXPECT_EQ(multiply(spec, {1, 2}, {1, 10, 100}, {0.5, -1, 0}), (Values{1.5, 9, 100, 2.5, 19, 200}));
}

TEST(Product, RoundsBeforeItsOwnBiasesToo) {
  if (TestedGpu().device->description() != "emulated GPU")
    GTEST_SKIP() << "which library has what is its own";
  // 256 + 1 + 1: bfloat16 has no 257.
  ops::ProductSpec spec{.rows = 1,
                        .columns = 8,
                        .inner = 8,
                        .factors = DType::bfloat16,
                        .result = DType::bfloat16,
                        .bias = true};
  const Values a{256, 1, 0, 0, 0, 0, 0, 0}, b(64, 1), bias(8, 1);
  EXPECT_EQ(multiply(spec, a, b, bias), Values(8, 258));
  spec.c_alignment = 8;
  EXPECT_EQ(multiply(spec, a, b, bias), Values(8, 256));
}

TEST(Product, AddsBiasesToRowsOfEveryWidth) {
  for (const int64_t columns : {1, 3, 8, 25, 64})
    for (const DType dtype : {DType::float32, DType::bfloat16, DType::float16}) {
      ops::ProductSpec spec{.rows = 5, .columns = columns, .inner = 8, .factors = dtype, .result = dtype};
      const Values a = small_numbers(5 * 8, 1), b = small_numbers(8 * columns, 2),
                   bias = small_numbers(columns, 3), before = small_numbers(5 * columns, 4);
      Values expected = multiply(spec, a, b), added = expected;
      for (size_t i = 0; i < expected.size(); ++i) {
        expected[i] += bias[i % bias.size()];
        added[i] = expected[i] + before[i];
      }
      spec.bias = true;
      EXPECT_EQ(multiply(spec, a, b, bias), expected) << spec.to_string();
      EXPECT_EQ(multiply(spec, a, b, bias, before), added) << spec.to_string();
    }
}

size_t count_of(const std::string& part, const std::string& text) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST(Product, SaysOnceWhichEpilogueTheLibraryLacks) {
  const TestedGpu gpu;
  if (gpu.device->description() != "emulated GPU") GTEST_SKIP() << "which library has what is its own";
  ops::ProductSpec spec{.rows = 1, .columns = 7, .inner = 8, .bias = true};
  ::testing::internal::CaptureStderr();
  for (int i = 0; i < 2; ++i) ops::Product(spec).prepare(*gpu.device);
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(count_of("no epilogue for the product [1, 7] = [1, 8] x [8, 7] of float32 with a bias", said), 1u)
      << said;
  spec.bias = false;
  ::testing::internal::CaptureStderr();
  ops::Product(spec).prepare(*gpu.device);
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

TEST(Product, RefusesWhatTheLibraryCannotComputeAtAll) {
  const TestedGpu gpu;
  if (gpu.device->description() != "emulated GPU") GTEST_SKIP() << "which library has what is its own";
  for (const bool bias : {false, true}) {
    ops::Product product({.rows = 2, .columns = 4, .inner = 3, .bias = bias, .a_alignment = 2});
    try {
      product.prepare(*gpu.device);
      ADD_FAILURE() << "factors off their elements' borders were accepted";
    } catch (const DeviceError& error) {
      const std::string what = error.what();
      EXPECT_EQ(
          count_of("the emulated library has no deterministic algorithm for the product [2, 4] = [2, 3] "
                   "x [3, 4] of float32",
                   what),
          1u)
          << what;
      EXPECT_EQ(count_of("nor for the product alone", what), bias ? 1u : 0u) << what;
    }
  }
}

TEST(LibraryProduct, GivesTheSameByEachOfItsAlgorithms) {
  const ops::ProductSpec spec{
      .rows = 256, .columns = 128, .inner = 64, .transpose_b = true, .factors = DType::bfloat16};
  const Values a = small_numbers(256 * 64, 1), b = small_numbers(128 * 64, 2),
               expected = multiply(spec, a, b);
  const TestedGpu gpu;
  const device::Buffer a_data = gpu.upload(a, spec.factors), b_data = gpu.upload(b, spec.factors),
                       workspace = gpu.device->allocate(ops::LibraryProduct::workspace_bytes());
  const auto candidates = ops::LibraryProduct::candidates(spec, *gpu.device, 8);
  for (const auto& candidate : candidates) {
    const device::Buffer c_data = gpu.upload(Values(expected.size(), NAN), spec.result);
    candidate->run({.a = a_data.data(), .b = b_data.data(), .c = c_data.data()}, workspace.data(),
                   *gpu.stream);
    EXPECT_EQ(gpu.download(c_data, expected.size(), spec.result), expected) << candidate->algorithm().name;
    EXPECT_LE(candidate->algorithm().workspace_bytes, ops::LibraryProduct::workspace_bytes());
    EXPECT_NE(candidate->algorithm().name, "");
  }
  ASSERT_FALSE(candidates.empty());
  EXPECT_EQ(candidates[0]->algorithm().name,
            ops::LibraryProduct::choose(spec, *gpu.device)->algorithm().name);
  EXPECT_EQ(ops::LibraryProduct::candidates(spec, *gpu.device, 1).size(), 1u);
}

TEST(LibraryProduct, SaysThatItHasNone) {
  const TestedGpu gpu;
  if (gpu.device->description() != "emulated GPU") GTEST_SKIP() << "which library has what is its own";
  const ops::ProductSpec spec{.rows = 2, .columns = 4, .inner = 3, .a_alignment = 2};
  EXPECT_TRUE(ops::LibraryProduct::candidates(spec, *gpu.device, 8).empty());
  EXPECT_EQ(ops::LibraryProduct::choose(spec, *gpu.device), nullptr);
}

TEST(Product, AddsToTheResultWhereAsked) {
  const ops::ProductSpec spec{.rows = 2, .columns = 2, .inner = 1};
  EXPECT_EQ(multiply(spec, {1, 2}, {3, 4}, {}, {10, 20, 30, 40}), (Values{13, 24, 36, 48}));
}

TEST(Product, SumsNarrowFactorsInFloat32) {
  for (const DType dtype : {DType::bfloat16, DType::float16}) {
    // 4096 + 1 + 1 + 1: two bytes per number cannot hold the sums on the way, nor the last one.
    ops::ProductSpec spec{.rows = 1, .columns = 1, .inner = 4, .factors = dtype};
    EXPECT_EQ(multiply(spec, {64, 1, 1, 1}, {64, 1, 1, 1}), (Values{4099})) << name_of(dtype);
    spec.result = dtype;
    EXPECT_EQ(multiply(spec, {64, 1, 1, 1}, {64, 1, 1, -3}), (Values{4096})) << name_of(dtype);
  }
}

TEST(Product, RoundsFactorsToTf32OnlyWhereAllowed) {
  const float fine = 1 + 0x1p-12f;
  ops::ProductSpec spec{.rows = 1, .columns = 1, .inner = 1};
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
      OpHarness harness(op, {input}, {.batch = 1, .tf32 = tf32}, device::DeviceKind::cuda);
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

double product_gelu(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::acos(-1.0)) * (x + 0.044715 * x * x * x)));
}
double product_gelu_slope(double x) { return (product_gelu(x + 1e-5) - product_gelu(x - 1e-5)) / 2e-5; }

struct ThroughGelu {
  Values c, kept;
};
/// As multiply(), with an epilogue; `kept` is read by the gradient alone.
ThroughGelu multiply_through_gelu(const ops::ProductSpec& spec, const Values& a, const Values& b,
                                  const Values& bias, const Values& kept = {}) {
  const TestedGpu gpu;
  ops::Product product(spec);
  product.prepare(*gpu.device);
  const auto count = static_cast<size_t>(spec.rows * spec.columns);
  const device::Buffer a_data = gpu.upload(a, spec.factors), b_data = gpu.upload(b, spec.factors),
                       bias_data = gpu.upload(bias, spec.result),
                       c_data = gpu.upload(Values(count, NAN), spec.result),
                       kept_data = gpu.upload(kept.empty() ? Values(count, NAN) : kept, spec.result),
                       workspace = gpu.device->allocate(ops::Product::workspace_bytes());
  product.run({.a = a_data.data(),
               .b = b_data.data(),
               .c = c_data.data(),
               .bias = spec.bias ? bias_data.data() : nullptr,
               .kept = kept_data.data()},
              workspace.data(), *gpu.stream);
  return {gpu.download(c_data, count, spec.result), gpu.download(kept_data, count, spec.result)};
}

/// Of eight numbers each, of which the emulated library computes the epilogues, unless less alignment is
/// promised.
ops::ProductSpec one_row_of_sums(DType dtype, ops::Epilogue epilogue) {
  return {.rows = 1, .columns = 8, .inner = 8, .factors = dtype, .result = dtype, .epilogue = epilogue};
}
/// Of which it computes the product alone.
ops::ProductSpec apart(ops::ProductSpec spec) {
  spec.a_alignment = 8;
  return spec;
}
Values padded(Values values, size_t count) {
  values.resize(count);
  return values;
}

TEST(Product, KeepsWhatGoesIntoAGelu) {
  const Values a = padded({1, 1}, 8),
               b = padded({-4, -2, -1, -0.5, 0, 0.5, 1, 4, 0, 0, 0, 0, 0, 0, 0, 2}, 64);
  const double expected[] = {-7.0246e-05, -0.0454023, -0.1588080, -0.1542860, 0, 0.3457140, 0.8411920, 6};
  for (const DType dtype : {DType::bfloat16, DType::float16})
    for (ops::ProductSpec spec :
         {one_row_of_sums(dtype, ops::Epilogue::gelu), apart(one_row_of_sums(dtype, ops::Epilogue::gelu))}) {
      const auto [c, kept] = multiply_through_gelu(spec, a, b, {});
      EXPECT_EQ(kept, (Values{-4, -2, -1, -0.5, 0, 0.5, 1, 6}));
      for (size_t i = 0; i < c.size(); ++i)
        EXPECT_NEAR(c[i], expected[i], std::abs(expected[i]) / 256 + 1e-3) << name_of(dtype);
      spec.bias = true;
      EXPECT_EQ(multiply_through_gelu(spec, a, b, {4, 0, 0, 0, 3, 0, 0, 1}).kept,
                (Values{0, -2, -1, -0.5, 3, 0.5, 1, 7}));
    }
}

TEST(Product, GivesGelusTheSumsBeforeTheyAreRoundedUnlessTheyAreApart) {
  if (TestedGpu().device->description() != "emulated GPU")
    GTEST_SKIP() << "a GPU's own tanh is as coarse as the difference, and which library has what is its own";
  struct Case {
    DType dtype;
    ops::Epilogue epilogue;
    Values a;
    float kept, at_once, apart;  // kept: before or, by a GELU, afterwards
  };
  const Case cases[] = {
      {DType::bfloat16, ops::Epilogue::gelu, {1, 0x1p-9f}, 1, 0.84375f, 0.83984375f},
      {DType::float16, ops::Epilogue::gelu, {1 + 0x1p-9f, 0x1p-12f}, 1 + 0x1p-9f, 0.84375f, 0.84326171875f},
      {DType::bfloat16, ops::Epilogue::gelu_gradient, {1 + 0x3p-7f, 0x1p-9f}, 0.5f, 0.890625f, 0.88671875f},
      {DType::float16, ops::Epilogue::gelu_gradient, {1, 0x1p-12f}, 0.5f, 0.86767578125f, 0.8671875f}};
  for (const Case& c : cases) {
    const ops::ProductSpec spec = one_row_of_sums(c.dtype, c.epilogue);
    const Values a = padded(c.a, 8), b(64, 1),
                 before(8, c.epilogue == ops::Epilogue::gelu ? float{NAN} : c.kept);
    const ThroughGelu at_once = multiply_through_gelu(spec, a, b, {}, before),
                      follows = multiply_through_gelu(apart(spec), a, b, {}, before);
    EXPECT_EQ(at_once.c, Values(8, c.at_once)) << spec.to_string();
    EXPECT_EQ(follows.c, Values(8, c.apart)) << spec.to_string();
    EXPECT_EQ(at_once.kept, Values(8, c.kept)) << spec.to_string();
    EXPECT_EQ(follows.kept, Values(8, c.kept)) << spec.to_string();
  }
}

TEST(Product, PassesGelusAndTheirGradientsInAllShapes) {
  const int64_t sizes[][3] = {{1, 8, 1}, {3, 16, 5}, {7, 24, 40}, {129, 8, 3}};
  for (const auto& [rows, columns, inner] : sizes)
    for (const DType dtype : {DType::bfloat16, DType::float16})
      for (const bool transpose_b : {false, true})
        for (const auto& [epilogue, bias] :
             {std::pair(ops::Epilogue::gelu, false), std::pair(ops::Epilogue::gelu, true),
              std::pair(ops::Epilogue::gelu_gradient, false)}) {
          const ops::ProductSpec spec{.rows = rows,
                                      .columns = columns,
                                      .inner = inner,
                                      .transpose_b = transpose_b,
                                      .factors = dtype,
                                      .result = dtype,
                                      .bias = bias,
                                      .epilogue = epilogue};
          const auto quarters = [](int64_t count, uint32_t seed) {
            Values values = small_numbers(count, seed);
            for (float& value : values) value /= 4;
            return values;
          };
          const Values a = quarters(rows * inner, 1), b = quarters(inner * columns, 2),
                       bias_values = bias ? quarters(columns, 3) : Values{},
                       before = quarters(rows * columns, 4);
          const ThroughGelu actual = multiply_through_gelu(spec, a, b, bias_values, before);
          ops::ProductSpec plain = spec;
          plain.epilogue = ops::Epilogue::none;
          plain.result = DType::float32;                           // of the bias too
          const Values sums = multiply(plain, a, b, bias_values);  // sixteenths: exact
          plain.result = dtype;
          EXPECT_EQ(actual.kept,
                    epilogue == ops::Epilogue::gelu ? multiply(plain, a, b, bias_values) : before);
          for (size_t i = 0; i < sums.size(); ++i) {
            const double expected = epilogue == ops::Epilogue::gelu ? product_gelu(sums[i])
                                                                    : sums[i] * product_gelu_slope(before[i]);
            const double rounding = dtype == DType::bfloat16 ? 0x1p-8 : 0x1p-11;
            // A library's tanh may be good to 11 bits only.
            const double approximation = 1e-3 * std::max(1.0, std::abs(double{sums[i]}));
            EXPECT_NEAR(actual.c[i], expected, rounding * std::abs(expected) + approximation)
                << spec.to_string();
          }
        }
}

/// What cuBLASLt computes from these fields: its matrices lie by columns.
Values multiply_by_columns(const ops::ColumnMajorProduct& product, const Values& first,
                           const Values& second) {
  const auto element = [](const ops::ColumnMajorMatrix& matrix, const Values& values, int64_t row,
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
        const ops::ProductSpec spec{.rows = rows,
                                    .columns = columns,
                                    .inner = inner,
                                    .transpose_a = transpose_a,
                                    .transpose_b = transpose_b};
        const Values a = small_numbers(rows * inner, 1), b = small_numbers(inner * columns, 2);
        EXPECT_EQ(multiply_by_columns(ops::column_major(spec), b, a), multiply(spec, a, b))
            << spec.to_string();
      }
}

}  // namespace
}  // namespace lockstep::testing
