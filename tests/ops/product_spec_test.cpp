#include "ops/cuda/product_spec.h"

#include <gtest/gtest.h>

#include "lockstep/error.h"
#include "ops/cuda/product.h"

namespace lockstep::testing {
namespace {

TEST(ColumnMajor, SwapsTheFactorsAndKeepsTheirFlags) {
  // y [64, 10] = x [64, 784] W^T, W [10, 784]
  const ops::ColumnMajorProduct forward = ops::column_major({.rows = 64,
                                                             .columns = 10,
                                                             .inner = 784,
                                                             .transpose_b = true,
                                                             .factors = DType::bfloat16,
                                                             .result = DType::bfloat16,
                                                             .c_alignment = 4});
  EXPECT_EQ(forward.first, (ops::ColumnMajorMatrix{784, 10, 784, true, DType::bfloat16, 16}));
  EXPECT_EQ(forward.second, (ops::ColumnMajorMatrix{784, 64, 784, false, DType::bfloat16, 16}));
  EXPECT_EQ(forward.result, (ops::ColumnMajorMatrix{10, 64, 10, false, DType::bfloat16, 4}));
  // dW [10, 784] = dy^T x, dy [64, 10]
  const ops::ColumnMajorProduct weight = ops::column_major({.rows = 10,
                                                            .columns = 784,
                                                            .inner = 64,
                                                            .transpose_a = true,
                                                            .factors = DType::float16,
                                                            .a_alignment = 8});
  EXPECT_EQ(weight.first, (ops::ColumnMajorMatrix{784, 64, 784, false, DType::float16, 16}));
  EXPECT_EQ(weight.second, (ops::ColumnMajorMatrix{10, 64, 10, true, DType::float16, 8}));
  EXPECT_EQ(weight.result, (ops::ColumnMajorMatrix{784, 10, 784, false, DType::float32, 16}));
}

TEST(ProductSpec, SaysWhatItIs) {
  const ops::ProductSpec spec{
      .rows = 10, .columns = 784, .inner = 64, .transpose_a = true, .factors = DType::float16};
  EXPECT_EQ(spec.to_string(), "[10, 784] = [64, 10]^T x [64, 784] of float16");
  const ops::ProductSpec fused{.rows = 3,
                               .columns = 8,
                               .inner = 2,
                               .transpose_b = true,
                               .bias = true,
                               .epilogue = ops::Epilogue::gelu};
  EXPECT_EQ(fused.to_string(), "[3, 8] = [3, 2] x [8, 2]^T of float32 with a bias, through a GELU");
}

TEST(ProductSpec, RefusesResultsNarrowerThanTheFactors) {
  const ops::ProductSpec narrow{.rows = 1, .columns = 1, .inner = 1, .result = DType::bfloat16};
  EXPECT_THROW(ops::Product{narrow}, InternalError);
  const ops::ProductSpec empty{.rows = 1, .columns = 0, .inner = 1};
  EXPECT_THROW(ops::Product{empty}, InternalError);
}

TEST(ProductSpec, RefusesWhatCannotGoThroughAGelu) {
  const ops::ProductSpec good{.rows = 3,
                              .columns = 16,
                              .inner = 5,
                              .factors = DType::float16,
                              .result = DType::float16,
                              .bias = true,
                              .epilogue = ops::Epilogue::gelu};
  EXPECT_NO_THROW(ops::Product{good});
  ops::ProductSpec spec = good;
  spec.columns = 12;
  EXPECT_THROW(ops::Product{spec}, InternalError);
  spec = good;
  spec.c_alignment = 8;
  EXPECT_THROW(ops::Product{spec}, InternalError);
  spec = good;
  spec.result = DType::float32;
  EXPECT_THROW(ops::Product{spec}, InternalError);
  spec.factors = DType::float32;
  EXPECT_THROW(ops::Product{spec}, InternalError);
  spec = good;
  spec.epilogue = ops::Epilogue::gelu_gradient;
  EXPECT_THROW(ops::Product{spec}, InternalError);
  spec.bias = false;
  EXPECT_NO_THROW(ops::Product{spec});
}

TEST(Alignment, IsThatOfTheStrideAndAtMostATensors) {
  EXPECT_EQ(ops::alignment_at(2), 2);
  EXPECT_EQ(ops::alignment_at(28), 4);
  EXPECT_EQ(ops::alignment_at(24), 8);
  EXPECT_EQ(ops::alignment_at(48), 16);
  EXPECT_EQ(ops::alignment_at(4096), 16);
}

}  // namespace
}  // namespace lockstep::testing
