#include <gtest/gtest.h>

#include "ops/op_cases.h"
#include "ops/op_expect.h"

namespace lockstep::testing {
namespace {

std::vector<Array> global_pool2d_reference(const Array& x) {
  const int64_t batch = x.shape[0], pixels = x.shape[1] * x.shape[2], channels = x.shape[3];
  Array y{{batch, channels}, std::vector<double>(static_cast<size_t>(batch * channels))};
  for (int64_t n = 0; n < batch; ++n)
    for (int64_t pixel = 0; pixel < pixels; ++pixel)
      for (int64_t c = 0; c < channels; ++c)
        y.values[n * channels + c] +=
            x.values[(n * pixels + pixel) * channels + c] / static_cast<double>(pixels);
  return {y};
}

OpCase make_global_pool2d(std::string name, Shape input, int64_t batch) {
  return {.name = std::move(name),
          .op = GlobalPool2d{},
          .inputs = {{std::move(input)}},
          .batch = batch,
          .reference = [](const auto& inputs, const auto&) { return global_pool2d_reference(inputs[0]); }};
}

}  // namespace

template <>
std::vector<OpCase> cases_of<GlobalPool2d>() {
  std::vector<OpCase> cases{
      make_global_pool2d("one_pixel", {1, 1, 1}, 1), make_global_pool2d("small", {2, 3, 5}, 3),
      make_global_pool2d("prime_channels", {7, 7, 37}, 2), make_global_pool2d("wide", {3, 2, 131}, 2),
      make_global_pool2d("many_pixels", {23, 29, 3}, 1)};
  cases.push_back(make_global_pool2d("two_threads", {3, 3, 4}, 5));
  cases.back().options.intra_op_threads = 2;
  return cases;
}

namespace {

TEST(GlobalPool2d, IsTheMeanOverThePixelsOfEachChannel) {
  OpHarness harness(GlobalPool2d{}, {{Shape{2, 2, 2}}}, {.batch = 2});
  fill(harness.inputs[0], {1, 10, 2, 20, 3, 30, 6, 40, -1, 0, -2, 0, -3, 0, -2, 8});
  harness.forward();
  EXPECT_EQ(harness.outputs[0].shape, (Shape{2, 2}));
  EXPECT_EQ(values_of(harness.outputs[0]), (std::vector<double>{3, 25, -2, 2}));
  fill(harness.output_gradients[0], {4, 8, -4, 1});
  harness.backward();
  EXPECT_EQ(values_of(harness.input_gradients[0]),
            (std::vector<double>{1, 2, 1, 2, 1, 2, 1, 2, -1, 0.25, -1, 0.25, -1, 0.25, -1, 0.25}));
}

TEST(GlobalPool2d, AgreesWithPyTorch) {
  expect_matches_golden(GlobalPool2d{}, read_golden("global_pool2d", "plain"));
}

TEST(GlobalPool2d, RefusesWhatIsNoImage) {
  expect_config_error(
      [] {
        ops::infer(GlobalPool2d{}, std::vector<TensorSpec>{{Shape{4, 4}}});
      },
      "global_pool2d: input must be an image [height, width, channels], has shape [4, 4]");
  expect_config_error(
      [] {
        ops::infer(GlobalPool2d{}, std::vector<TensorSpec>{{Shape{4, 0, 2}}});
      },
      "global_pool2d: input of shape [4, 0, 2] is empty");
}

}  // namespace
}  // namespace lockstep::testing
