#include "lockstep/tensor.h"

#include <gmock/gmock.h>

#include "lockstep/error.h"
#include "mentions.h"

namespace lockstep::tensor {
namespace {

using ::testing::HasSubstr;

TEST(DType, NamesAndSizes) {
  const std::tuple<DType, const char*, int64_t> rows[] = {
      {DType::float32, "float32", 4}, {DType::bfloat16, "bfloat16", 2}, {DType::float16, "float16", 2},
      {DType::float64, "float64", 8}, {DType::int32, "int32", 4},       {DType::uint8, "uint8", 1}};
  for (const auto& [dtype, name, size] : rows) {
    EXPECT_EQ(name_of(dtype), name);
    EXPECT_EQ(size_of(dtype), size);
    EXPECT_EQ(dtype_from_name(name), dtype);
  }
}

TEST(DType, UnknownNameIsRefusedWithTheKnownOnes) {
  try {
    dtype_from_name("flaot32");
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_STREQ(
        error.what(),
        "unknown element type 'flaot32' (did you mean 'float32'?); known are float32, bfloat16, float16, "
        "float64, int32, uint8");
  }
}

TEST(Shape, CountsItsElements) {
  EXPECT_EQ(Shape().count(), 1);
  EXPECT_EQ((Shape{28, 28, 3}).count(), 2352);
  EXPECT_EQ((Shape{5, 0, 7}).count(), 0);
  EXPECT_EQ((Shape{int64_t{1} << 31, int64_t{1} << 31}).count(), int64_t{1} << 62);
}

TEST(Shape, RefusesWhatSixtyThreeBitsCannotCount) {
  const int64_t half = int64_t{1} << 32;
  try {
    Shape{half, half}.count();
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), Mentions("[4294967296, 4294967296] ... 63 bits"));
  }
  EXPECT_THROW((Shape{int64_t{1} << 62, 2}).count(), ConfigError);
}

TEST(Shape, IsEmptyWhereverTheZeroStands) {
  const int64_t half = int64_t{1} << 32;
  EXPECT_EQ((Shape{0, half, half}).count(), 0);
  EXPECT_EQ((Shape{half, half, 0}).count(), 0);
}

TEST(Shape, RefusesNegativeDimensions) {
  EXPECT_THROW((Shape{2, -1}).count(), ConfigError);
  EXPECT_THROW((Shape{0, -1}).count(), ConfigError);
}

TEST(Shape, IndexesFromBothEnds) {
  const Shape shape{4, 5, 6};
  EXPECT_EQ(shape.rank(), 3);
  EXPECT_EQ(shape[0], 4);
  EXPECT_EQ(shape[-1], 6);
  EXPECT_EQ(shape[-3], 4);
}

TEST(Shape, PutsTheBatchInFront) {
  EXPECT_EQ((Shape{28, 28}).batched(32), (Shape{32, 28, 28}));
  EXPECT_EQ(Shape().batched(3), (Shape{3}));
}

TEST(Shape, Prints) {
  EXPECT_EQ((Shape{28, 28, 1}).to_string(), "[28, 28, 1]");
  EXPECT_EQ(Shape().to_string(), "[]");
}

TEST(Tensor, CountsItsBytes) {
  EXPECT_EQ((Tensor{nullptr, {3, 5}, DType::bfloat16}).size_bytes(), 30);
  EXPECT_EQ((Tensor{nullptr, {}, DType::float64}).size_bytes(), 8);
}

TEST(Tensor, RefusesMoreBytesThanSixtyThreeBitsCount) {
  EXPECT_THROW((Tensor{nullptr, {int64_t{1} << 62}, DType::float32}).size_bytes(), ConfigError);
}

}  // namespace
}  // namespace lockstep::tensor
