#include "device/cuda/matrix_units.h"

#include <gtest/gtest.h>

#include <vector>

#include "device/emulated_gpu_test.h"
#include "lockstep/error.h"

namespace lockstep::device {
namespace {

/// What each lane holds: four registers of A, two of B; four floats of C.
struct Fragments {
  uint32_t a[4], b[2];
  float c[4];
};

template <class T>
__global__ void product_kernel(Fragments* lanes) {
  Fragments& mine = lanes[threadIdx.x];
  multiply_add<T>(mine.c, mine.a, mine.b[0], mine.b[1]);
}

__global__ void load_kernel(const uint16_t* from, uint32_t* to, bool transposed, int row_stride) {
  uint16_t* shared = dynamic_shared<uint16_t>();
  for (int i = static_cast<int>(threadIdx.x); i < 32 * row_stride; i += 32) shared[i] = from[i];
  __syncwarp();
  uint32_t loaded[4];
  const uint16_t* row = shared + static_cast<int>(threadIdx.x) * row_stride;
  if (transposed) {
    load_transposed(loaded, row);
  } else {
    load_matrices(loaded, row);
  }
  for (int i = 0; i < 4; ++i) to[4 * threadIdx.x + static_cast<unsigned>(i)] = loaded[i];
}

template <bool with_wait>
__global__ void copy_kernel(const float* from, float* to) {
  float* shared = dynamic_shared<float>();
  const int thread = static_cast<int>(threadIdx.x);
  copy_async<16>(shared + 4 * thread, from + 4 * thread, thread % 3 != 0);
  commit_copies();
  copy_async<4>(shared + 128 + thread, from + thread, true);
  commit_copies();
  if (with_wait) wait_for_copies<1>();
  for (int i = 0; i < 4; ++i) to[4 * thread + i] = shared[4 * thread + i];
  wait_for_copies<0>();
  to[128 + thread] = shared[128 + thread];
}

template <int kBytes>
__global__ void copy_at_kernel(const std::byte* from, int first, int to) {
  copy_async<kBytes>(dynamic_shared<std::byte>() + to, from + first, true);
  commit_copies();
  wait_for_copies<0>();
}

class MatrixUnits : public EmulatedGpuTest {
 protected:
  template <class T>
  std::vector<Fragments> multiply(const std::vector<Fragments>& lanes) {
    const Buffer buffer = upload(lanes);
    launch(*stream_, {.blocks = 1, .threads = 32}, product_kernel<T>, at<Fragments>(buffer));
    stream_->synchronize();
    return download<Fragments>(buffer);
  }
  std::vector<uint32_t> load(bool transposed, int row_stride) {
    // Number 100 matrix + 10 row + column.
    std::vector<uint16_t> numbers(static_cast<size_t>(32 * row_stride), 9999);
    for (int row = 0; row < 32; ++row)
      for (int column = 0; column < 8; ++column)
        numbers[static_cast<size_t>(row * row_stride + column)] =
            static_cast<uint16_t>(row / 8 * 100 + row % 8 * 10 + column);
    const Buffer from = upload(numbers), to = device_.allocate(128 * 4);
    launch(*stream_, {.blocks = 1, .threads = 32, .shared_bytes = numbers.size() * 2}, load_kernel,
           at<uint16_t>(from), at<uint32_t>(to), transposed, row_stride);
    stream_->synchronize();
    return download<uint32_t>(to);
  }
};

// Places read off the figures of the PTX ISA for m16n8k16.
TEST_F(MatrixUnits, ElementsLieWhereTheManualShowsThem) {
  const uint32_t one = bfloat16(1).bits, five = bfloat16(5).bits;
  struct Case {
    size_t a_lane, a_register, a_half, b_lane, b_register, b_half, c_lane, c_element;
  };
  const Case cases[] = {
      {0, 0, 0, 0, 0, 0, 0, 0},     // A(0, 0) B(0, 0) -> C(0, 0)
      {0, 0, 1, 4, 0, 1, 0, 1},     // A(0, 1) B(1, 1) -> C(0, 1)
      {1, 1, 0, 1, 0, 0, 0, 2},     // A(8, 2) B(2, 0) -> C(8, 0)
      {6, 3, 0, 14, 1, 0, 5, 3},    // A(9, 12) B(12, 3) -> C(9, 3)
      {31, 2, 1, 31, 1, 1, 31, 1},  // A(7, 15) B(15, 7) -> C(7, 7)
      {18, 1, 1, 22, 0, 1, 18, 3},  // A(12, 5) B(5, 5) -> C(12, 5)
  };
  for (const Case& c : cases) {
    std::vector<Fragments> lanes(32, Fragments{});
    lanes[c.a_lane].a[c.a_register] = one << (16 * c.a_half);
    lanes[c.b_lane].b[c.b_register] = five << (16 * c.b_half);
    const auto results = multiply<bfloat16>(lanes);
    for (size_t lane = 0; lane < 32; ++lane)
      for (size_t i = 0; i < 4; ++i)
        EXPECT_EQ(results[lane].c[i], lane == c.c_lane && i == c.c_element ? 5.0f : 0.0f) << lane << " " << i;
  }
}

template <class T>
std::vector<Fragments> fragments_of(const float (&a)[16][16], const float (&b)[16][8],
                                    const float (&c)[16][8]) {
  const auto two = [](float low, float high) { return T(low).bits | uint32_t{T(high).bits} << 16; };
  std::vector<Fragments> lanes(32);
  for (int lane = 0; lane < 32; ++lane) {
    const int g = lane / 4, t = 2 * (lane % 4);
    lanes[static_cast<size_t>(lane)] = {
        {two(a[g][t], a[g][t + 1]), two(a[g + 8][t], a[g + 8][t + 1]), two(a[g][t + 8], a[g][t + 9]),
         two(a[g + 8][t + 8], a[g + 8][t + 9])},
        {two(b[t][g], b[t + 1][g]), two(b[t + 8][g], b[t + 9][g])},
        {c[g][t], c[g][t + 1], c[g + 8][t], c[g + 8][t + 1]}};
  }
  return lanes;
}

TEST_F(MatrixUnits, ProductEqualsPlainLoops) {
  float a[16][16], b[16][8], c[16][8];
  for (int i = 0; i < 16; ++i)
    for (int k = 0; k < 16; ++k) a[i][k] = static_cast<float>((i * 37 + k * 11) % 23 - 11);
  for (int k = 0; k < 16; ++k)
    for (int j = 0; j < 8; ++j) b[k][j] = static_cast<float>((k * 29 + j * 13) % 19 - 9) / 4;
  for (int i = 0; i < 16; ++i)
    for (int j = 0; j < 8; ++j) c[i][j] = static_cast<float>(i * 8 + j);
  float expected[16][8];
  for (int i = 0; i < 16; ++i)
    for (int j = 0; j < 8; ++j) {
      expected[i][j] = c[i][j];
      for (int k = 0; k < 16; ++k) expected[i][j] += a[i][k] * b[k][j];
    }
  for (const auto& results : {multiply<bfloat16>(fragments_of<bfloat16>(a, b, c)),
                              multiply<float16>(fragments_of<float16>(a, b, c))})
    for (int lane = 0; lane < 32; ++lane)
      for (int i = 0; i < 4; ++i)
        EXPECT_EQ(results[static_cast<size_t>(lane)].c[i],
                  expected[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2]);
}

TEST_F(MatrixUnits, LoadsGiveEachGroupOfFourLanesARow) {
  const auto loaded = load(false, 16);
  EXPECT_EQ(loaded[0], 0u | 1u << 16);
  EXPECT_EQ(loaded[4 * 5 + 2], 212u | 213u << 16);   // lane 5: row 1, columns 2 and 3
  EXPECT_EQ(loaded[4 * 30 + 3], 374u | 375u << 16);  // lane 30: row 7, columns 4 and 5
}

TEST_F(MatrixUnits, TransposedLoadsGiveEachGroupOfFourLanesAColumn) {
  const auto loaded = load(true, 8);
  EXPECT_EQ(loaded[0], 0u | 10u << 16);
  EXPECT_EQ(loaded[4 * 5 + 2], 221u | 231u << 16);   // lane 5: column 1, rows 2 and 3
  EXPECT_EQ(loaded[4 * 30 + 1], 147u | 157u << 16);  // lane 30: column 7, rows 4 and 5
}

TEST_F(MatrixUnits, RowsThatAreNotAlignedAreAnError) { EXPECT_THROW(load(false, 12), InternalError); }

TEST_F(MatrixUnits, CopiesArriveWhenWaitedForAndFillWithZeros) {
  std::vector<float> values(128);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i + 1);
  const Buffer from = upload(values), with = device_.allocate(160 * 4), without = device_.allocate(160 * 4);
  launch(*stream_, {.blocks = 1, .threads = 32, .shared_bytes = 160 * 4}, copy_kernel<true>, at<float>(from),
         at<float>(with));
  launch(*stream_, {.blocks = 1, .threads = 32, .shared_bytes = 160 * 4}, copy_kernel<false>, at<float>(from),
         at<float>(without));
  stream_->synchronize();
  std::vector<float> expected = values;
  for (size_t i = 0; i < 128; ++i)
    if (i / 4 % 3 == 0) expected[i] = 0;
  expected.insert(expected.end(), values.begin(), values.begin() + 32);
  EXPECT_EQ(download<float>(with), expected);
  EXPECT_NE(download<float>(without), expected);
}

TEST_F(MatrixUnits, CopiesMustBeAlignedToTheirSize) {
  const Buffer from = device_.allocate(64);
  const auto copy = [&](auto kernel, int first, int to) {
    const auto stream = device_.create_stream("its own, since an error stays");
    launch(*stream, {.blocks = 1, .threads = 1, .shared_bytes = 64}, kernel, at<std::byte>(from), first, to);
    stream->synchronize();
  };
  EXPECT_NO_THROW(copy(copy_at_kernel<16>, 16, 32));
  EXPECT_THROW(copy(copy_at_kernel<16>, 8, 32), InternalError);
  EXPECT_THROW(copy(copy_at_kernel<16>, 16, 24), InternalError);
  EXPECT_NO_THROW(copy(copy_at_kernel<4>, 4, 8));
  EXPECT_THROW(copy(copy_at_kernel<4>, 2, 8), InternalError);
  EXPECT_THROW(copy(copy_at_kernel<4>, 4, 10), InternalError);
}

TEST_F(MatrixUnits, PackingRoundsToNearestAndPutsTheFirstLow) {
  EXPECT_EQ(pack_two<bfloat16>(1.0f, -2.0f), 0xc0003f80u);
  EXPECT_EQ(pack_two<bfloat16>(1.00390625f, 1.01171875f), 0x3f823f80u);  // ties go to the even neighbour
  EXPECT_EQ(pack_two<float16>(1.0f, 65504.0f), 0x7bff3c00u);
}

}  // namespace
}  // namespace lockstep::device
