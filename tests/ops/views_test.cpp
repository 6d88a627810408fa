#include <gtest/gtest.h>

#include "ops/op_cases.h"
#include "ops/op_expect.h"

namespace lockstep::testing {
namespace {

/// The same values under another shape, which `dims` gives for one sample.
OpCase make_views(std::string name, Op op, TensorSpec input, Shape dims, int64_t batch) {
  return {.name = std::move(name),
          .op = std::move(op),
          .inputs = {std::move(input)},
          .batch = batch,
          .reference =
              [dims = std::move(dims), batch](const auto& inputs, const auto&) {
                Array view = inputs[0];
                view.shape = dims.batched(batch);
                return std::vector<Array>{view};
              },
          .int32_below = 9};
}

Shape reshaped(const std::string& shape, const Shape& input) {
  return ops::infer(Reshape{shape}, std::vector<TensorSpec>{{input}}).outputs[0].shape;
}

}  // namespace

template <>
std::vector<OpCase> cases_of<Flatten>() {
  return {make_views("image", Flatten{}, {Shape{2, 3, 5}}, {30}, 2),
          make_views("scalar", Flatten{}, {Shape{}}, {1}, 3),
          make_views("labels", Flatten{}, {Shape{3, 4}, DType::int32}, {12}, 2)};
}

template <>
std::vector<OpCase> cases_of<Reshape>() {
  return {make_views("image", Reshape{"2,3,5"}, {Shape{30}}, {2, 3, 5}, 2),
          make_views("open", Reshape{"7,-1"}, {Shape{3, 14}}, {7, 6}, 1),
          make_views("labels", Reshape{"6"}, {Shape{2, 3}, DType::int32}, {6}, 3)};
}

namespace {

TEST(Views, AliasTheirInput) {
  for (const Op& op : {Op(Flatten{}), Op(Reshape{"6,2"})}) {
    const ops::OpSignature signature = ops::infer(op, std::vector<TensorSpec>{{Shape{3, 4}}});
    EXPECT_TRUE(signature.alias) << name_of(op);
    EXPECT_FALSE(signature.backward_needs_input[0]) << name_of(op);
    EXPECT_FALSE(signature.backward_needs_output) << name_of(op);
    EXPECT_TRUE(signature.differentiable[0]) << name_of(op);
  }
}

TEST(Views, KeepTheElementType) {
  const std::vector<TensorSpec> labels{{Shape{3, 4}, DType::int32}};
  for (const Op& op : {Op(Flatten{}), Op(Reshape{"6,2"})}) {
    EXPECT_EQ(ops::infer(op, labels).outputs[0].dtype, DType::int32) << name_of(op);
    EXPECT_FALSE(ops::infer(op, labels).differentiable[0]) << name_of(op);
  }
}

TEST(Flatten, HasOneDimension) {
  EXPECT_EQ(ops::infer(Flatten{}, std::vector<TensorSpec>{{Shape{7, 7, 16}}}).outputs[0].shape, (Shape{784}));
}

TEST(Reshape, FillsTheOpenDimension) {
  EXPECT_EQ(reshaped("7,7,16", {784}), (Shape{7, 7, 16}));
  EXPECT_EQ(reshaped("-1", {3, 5}), (Shape{15}));
  EXPECT_EQ(reshaped(" 5 , -1 ", {3, 5}), (Shape{5, 3}));
}

TEST(Reshape, RefusesWhatDoesNotFit) {
  expect_config_error(
      [] {
        reshaped("4,4", {3, 5});
      },
      "reshape: the 15 elements of input [3, 5] do not fit shape \"4,4\"");
  expect_config_error(
      [] {
        reshaped("4,-1", {3, 5});
      },
      "reshape: the 15 elements of input [3, 5] do not fit shape \"4,-1\"");
  expect_config_error([] { reshaped("-1,-1", {3, 5}); }, "shape \"-1,-1\" has more than one -1");
  expect_config_error([] { reshaped("", {3, 5}); }, "must be a comma list such as \"7,7,16\", is empty");
  for (const char* text : {"3,,5", "3,x", "3,5.0", "0,15", "-3,-5"})
    expect_config_error([&] { reshaped(text, {3, 5}); }, "is not a positive dimension or -1");
  expect_config_error([] { reshaped("4294967296,4294967296", {3, 5}); }, "more elements than 63 bits count");
}

}  // namespace
}  // namespace lockstep::testing
