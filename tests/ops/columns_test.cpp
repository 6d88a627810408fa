#include "ops/cuda/columns.h"

#include <gtest/gtest.h>

#include "ops/cuda/divisor.h"
#include "ops/gpu_memory.h"

namespace lockstep::testing {
namespace {

using Values = std::vector<float>;

ops::Windows windows(int height, int width, int channels, int kernel, int stride, int padding, int groups = 1,
                     int dilation = 1) {
  const auto out = [&](int size) { return (size + 2 * padding - dilation * (kernel - 1) - 1) / stride + 1; };
  return {height, width, channels, kernel, stride, padding, out(height), out(width), groups, dilation};
}

Values to_columns(const ops::Windows& w, const Values& images, int64_t count, DType dtype = DType::float32) {
  const TestedGpu gpu;
  const auto size = static_cast<size_t>(count * w.columns_per_image());
  const device::Buffer from = gpu.upload(images, dtype), to = gpu.upload(Values(size, NAN), dtype);
  ops::images_to_columns(w, dtype, from.data(), count, to.data(), *gpu.stream);
  return gpu.download(to, size, dtype);
}

Values to_images(const ops::Windows& w, const Values& columns, int64_t count, DType dtype = DType::float32) {
  const TestedGpu gpu;
  const auto size = static_cast<size_t>(count * w.height * w.width * w.channels);
  const device::Buffer from = gpu.upload(columns), to = gpu.upload(Values(size, NAN), dtype);
  ops::columns_to_images(w, floats_of(from), count, dtype, to.data(), *gpu.stream);
  return gpu.download(to, size, dtype);
}

TEST(Columns, HoldThePixelsUnderEachWindow) {
  EXPECT_EQ(to_columns(windows(2, 3, 1, 2, 1, 0), {1, 2, 3, 4, 5, 6}, 1), (Values{1, 2, 4, 5, 2, 3, 5, 6}));
  // Two images of two channels, windows at every other pixel.
  EXPECT_EQ(to_columns(windows(1, 3, 2, 1, 2, 0), {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, 2),
            (Values{1, 2, 5, 6, 7, 8, 11, 12}));
}

TEST(Columns, OfGroupsFollowEachOther) {
  // Two images of one row with three pixels of two channels, a group for each.
  EXPECT_EQ(to_columns(windows(1, 3, 2, 1, 1, 0, 2), {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, 2),
            (Values{1, 3, 5, 7, 9, 11, 2, 4, 6, 8, 10, 12}));
  EXPECT_EQ(to_images(windows(1, 3, 2, 1, 1, 0, 2), {1, 3, 5, 7, 9, 11, 2, 4, 6, 8, 10, 12}, 2),
            (Values{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}));
}

TEST(Columns, LeaveOutPixelsBetweenThoseOfADilatedWindow) {
  EXPECT_EQ(to_columns(windows(1, 5, 1, 1, 1, 0, 1, 3), {1, 2, 3, 4, 5}, 1), (Values{1, 2, 3, 4, 5}));
  EXPECT_EQ(to_columns(windows(3, 4, 1, 2, 1, 0, 1, 2), {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, 1),
            (Values{1, 3, 9, 11, 2, 4, 10, 12}));
}

TEST(Columns, AreZeroOutsideTheImage) {
  EXPECT_EQ(to_columns(windows(1, 2, 1, 3, 1, 1), {1, 2}, 1),
            (Values{0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0}));
}

TEST(Columns, AddUpToImages) {
  EXPECT_EQ(to_images(windows(2, 3, 1, 2, 1, 0), {1, 2, 4, 8, 16, 32, 64, 128}, 1),
            (Values{1, 18, 32, 4, 72, 128}));
  // No window covers the pixel between.
  EXPECT_EQ(to_images(windows(1, 3, 1, 1, 2, 0), {5, 7}, 1), (Values{5, 0, 7}));
}

TEST(Columns, AndImagesAreAdjoint) {
  // <columns(x), c> = <x, images(c)>, exact for whole numbers; channels of every width of access.
  const ops::Windows all[] = {windows(5, 6, 3, 3, 1, 1),       windows(9, 7, 8, 3, 2, 1),
                              windows(7, 8, 12, 2, 3, 0),      windows(4, 4, 16, 1, 2, 0),
                              windows(9, 8, 6, 3, 1, 2, 2, 2), windows(9, 9, 16, 3, 2, 3, 2, 3),
                              windows(8, 7, 5, 3, 2, 1, 5),    windows(9, 9, 4, 2, 4, 1, 1, 6),
                              windows(6, 5, 2, 5, 1, 2),       windows(11, 11, 1, 7, 2, 3)};
  const int64_t count = 3;
  for (const ops::Windows& w : all)
    for (const DType dtype : {DType::float32, DType::bfloat16, DType::float16}) {
      const Values x = small_numbers(count * w.height * w.width * w.channels, 5),
                   c = small_numbers(count * w.columns_per_image(), 6);
      const Values columns = to_columns(w, x, count, dtype), images = to_images(w, c, count, dtype);
      double of_columns = 0, of_images = 0;
      for (size_t i = 0; i < c.size(); ++i) of_columns += double{columns[i]} * c[i];
      for (size_t i = 0; i < x.size(); ++i) of_images += double{x[i]} * images[i];
      EXPECT_EQ(of_columns, of_images) << w.channels << " channels of " << name_of(dtype);
      EXPECT_NE(of_columns, 0);
    }
}

TEST(Columns, AreMadeOfMoreImagesAndPixelsThanThereAreBlocks) {
  const ops::Windows single = windows(1, 1, 1, 1, 1, 0), large = windows(530, 530, 1, 1, 1, 0);
  const Values many = small_numbers(9001, 7), pixels = small_numbers(530 * 530, 8);
  EXPECT_EQ(to_columns(single, many, 9001), many);
  EXPECT_EQ(to_images(single, many, 9001), many);
  EXPECT_EQ(to_columns(large, pixels, 1), pixels);
  EXPECT_EQ(to_images(large, pixels, 1), pixels);
}

TEST(Divisor, IsExact) {
  std::vector<uint32_t> numbers{0, 1, 0x7fffffff};
  for (int bit = 1; bit < 31; ++bit)
    for (const uint32_t near : {-1, 0, 1, 3}) numbers.push_back((1u << bit) + near);
  for (const uint32_t divisor : numbers) {
    if (divisor == 0) continue;
    const ops::Divisor by(divisor);
    for (const uint32_t factor : numbers)
      for (const uint32_t dividend :
           {factor, factor / divisor * divisor, factor / divisor * divisor + divisor - 1}) {
        if (dividend > 0x7fffffff) continue;
        const uint32_t quotient = by.quotient(dividend);
        ASSERT_EQ(quotient, dividend / divisor) << dividend << " / " << divisor;
        ASSERT_EQ(by.remainder(dividend, quotient), dividend % divisor);
      }
  }
}

TEST(Columns, AreMadeInFewAndEqualChunks) {
  EXPECT_EQ(ops::chunk_size(8, 100, 1000), 8);
  EXPECT_EQ(ops::chunk_size(11, 100, 1000), 6);
  EXPECT_EQ(ops::chunk_size(10, 100, 350), 3);  // 4 chunks: 3, 3, 3, 1
  EXPECT_EQ(ops::chunk_size(5, 100, 99), 1);    // a single image is more than the budget
  EXPECT_EQ(ops::chunk_size(1, 100, 1000), 1);
}

}  // namespace
}  // namespace lockstep::testing
