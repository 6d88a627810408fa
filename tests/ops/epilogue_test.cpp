#include "ops/cuda/epilogue.h"

#include <gtest/gtest.h>

#include "ops/gpu_memory.h"

namespace lockstep::testing {
namespace {

using Values = std::vector<float>;

constexpr DType kEpilogueTypes[] = {DType::float32, DType::bfloat16, DType::float16};

/// Half the distance between neighbouring numbers, relative to them, at the most.
double rounding_of(DType dtype) {
  return dtype == DType::float32 ? 0x1p-24 : dtype == DType::bfloat16 ? 0x1p-8 : 0x1p-11;
}

/// What lies there afterwards, the matrix being all but the first `skipped` elements.
Values with_bias(const Values& c, const Values& bias, DType dtype, size_t skipped = 0) {
  const TestedGpu gpu;
  const device::Buffer c_data = gpu.upload(c, dtype), bias_data = gpu.upload(bias, dtype);
  const auto columns = static_cast<int64_t>(bias.size()),
             rows = static_cast<int64_t>(c.size() - skipped) / columns;
  ops::add_bias(bias_data.data(), rows, columns, dtype,
                c_data.data() + skipped * static_cast<size_t>(size_of(dtype)), *gpu.stream);
  return gpu.download(c_data, c.size(), dtype);
}

TEST(Epilogue, AddsBiasesToRows) {
  for (const DType dtype : kEpilogueTypes)
    EXPECT_EQ(with_bias({1, 2, 3, 10, 20, 30}, {100, -2, 0.5}, dtype), (Values{101, 0, 3.5, 110, 18, 30.5}));
}

TEST(Epilogue, AddsBiasesToRowsOfEveryWidthThatBeginAnywhere) {
  // Rows of whole packs and not, shorter than a pack, longer than a block; more rows than one block has.
  const int64_t shapes[][2] = {{1, 1},   {5000, 1}, {1031, 3}, {333, 25}, {700, 8},
                               {77, 12}, {65, 24},  {3, 1000}, {2, 4097}, {1, 9000}};
  for (const auto& [rows, columns] : shapes)
    for (const DType dtype : kEpilogueTypes)
      for (const size_t skipped : {0, 1}) {
        Values c = small_numbers(rows * columns + static_cast<int64_t>(skipped), 1), expected = c;
        const Values bias = small_numbers(columns, 2);
        for (size_t i = skipped; i < c.size(); ++i) expected[i] += bias[(i - skipped) % bias.size()];
        EXPECT_EQ(with_bias(c, bias, dtype, skipped), expected)
            << rows << " x " << columns << " of " << name_of(dtype) << " behind " << skipped;
      }
}

TEST(Epilogue, RoundsSumsWithBiasesToTheNearestAndTiesToEven) {
  EXPECT_EQ(with_bias({256, 258, 256}, {1, 1, 1.5}, DType::bfloat16), (Values{256, 260, 258}));
  EXPECT_EQ(with_bias({2048, 2050, 2048}, {1, 1, 1.5}, DType::float16), (Values{2048, 2052, 2050}));
  EXPECT_EQ(with_bias({0x1p24, 0x1p24 + 2}, {1, 1}, DType::float32), (Values{0x1p24, 0x1p24 + 4}));
}

double epilogue_gelu(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::acos(-1.0)) * (x + 0.044715 * x * x * x)));
}
double epilogue_gelu_slope(double x) { return (epilogue_gelu(x + 1e-5) - epilogue_gelu(x - 1e-5)) / 2e-5; }

/// -6.25 to 6.25 in sixteenths, over and over: of few enough bits for every type.
Values sixteenths(int64_t count) {
  Values values;
  for (int64_t i = 0; i < count; ++i) values.push_back(static_cast<float>(i % 201 - 100) / 16);
  return values;
}

TEST(Epilogue, PassesWhatIsKeptThroughAGelu) {
  const TestedGpu gpu;
  for (const int64_t count : {1, 7, 8, 4096, 10001})
    for (const DType dtype : kEpilogueTypes) {
      const Values x = sixteenths(count);
      const device::Buffer kept = gpu.upload(x, dtype), c = gpu.upload(Values(x.size(), NAN), dtype);
      ops::apply_gelu(kept.data(), count, dtype, c.data(), *gpu.stream);
      const Values actual = gpu.download(c, x.size(), dtype);
      for (size_t i = 0; i < x.size(); ++i)
        ASSERT_NEAR(actual[i], epilogue_gelu(x[i]), rounding_of(dtype) * std::abs(epilogue_gelu(x[i])) + 1e-6)
            << x[i] << " as " << name_of(dtype);
      EXPECT_EQ(gpu.download(kept, x.size(), dtype), x);
    }
}

TEST(Epilogue, MultipliesByTheGradientOfAGelu) {
  const TestedGpu gpu;
  for (const int64_t count : {1, 7, 8, 4096, 10001})
    for (const DType dtype : kEpilogueTypes) {
      const Values x = sixteenths(count), sums = small_numbers(count, 1);
      const device::Buffer kept = gpu.upload(x, dtype), c = gpu.upload(sums, dtype);
      ops::apply_gelu_gradient(kept.data(), count, dtype, c.data(), *gpu.stream);
      const Values actual = gpu.download(c, x.size(), dtype);
      for (size_t i = 0; i < x.size(); ++i) {
        const double expected = sums[i] * epilogue_gelu_slope(x[i]);
        ASSERT_NEAR(actual[i], expected, rounding_of(dtype) * std::abs(expected) + 2e-6)
            << sums[i] << " at " << x[i] << " as " << name_of(dtype);
      }
      EXPECT_EQ(gpu.download(kept, x.size(), dtype), x);
    }
}

}  // namespace
}  // namespace lockstep::testing
