#include <gtest/gtest.h>

#include "ops/op_cases.h"
#include "ops/op_expect.h"

namespace lockstep::testing {
namespace {

std::vector<Array> mean_squared_error_reference(const Array& prediction, const Array& target) {
  double sum = 0;
  for (size_t i = 0; i < prediction.values.size(); ++i)
    sum += (prediction.values[i] - target.values[i]) * (prediction.values[i] - target.values[i]);
  return {{Shape{}, {sum}}};
}

OpCase make_mean_squared_error(std::string name, Shape shape, int64_t batch, double loss_weight,
                               double loss_scale = 1) {
  return {.name = std::move(name),
          .op = MeanSquaredError{},
          .inputs = {{shape}, {shape}},
          .batch = batch,
          .reference = [](const auto& inputs,
                          const auto&) { return mean_squared_error_reference(inputs[0], inputs[1]); },
          .options = {.loss_weight = loss_weight},
          .constants = {.loss_scale = loss_scale}};
}

}  // namespace

template <>
std::vector<OpCase> cases_of<MeanSquaredError>() {
  return {make_mean_squared_error("one_number", {}, 1, 1),
          make_mean_squared_error("vector", {5}, 3, 1.0 / 15),
          make_mean_squared_error("image", {7, 3, 2}, 2, 1.0 / 84),
          make_mean_squared_error("scaled", {131}, 3, 1.0 / 393, 1024),
          make_mean_squared_error("blocks", {5003}, 2, 1.0 / 10006)};
}

namespace {

std::unique_ptr<OpHarness> two_samples(double loss_weight) {
  auto harness =
      std::make_unique<OpHarness>(MeanSquaredError{}, std::vector<TensorSpec>{{Shape{2}}, {Shape{2}}},
                                  ops::KernelOptions{.batch = 2, .loss_weight = loss_weight});
  fill(harness->inputs[0], {1, 2, 3, 4});
  fill(harness->inputs[1], {1, 0, 6, 3});
  return harness;
}

TEST(MeanSquaredError, SumsSquaresAndCountsElements) {
  auto harness = two_samples(1);
  harness->forward();
  EXPECT_EQ(harness->metrics[ops::kLossSum], 14);
  EXPECT_EQ(harness->metrics[ops::kCount], 4);
  EXPECT_EQ(harness->metrics[ops::kCorrect], 0);
  harness->forward(true);
  EXPECT_EQ(harness->metrics[ops::kLossSum], 28);
  EXPECT_EQ(harness->metrics[ops::kCount], 8);
}

TEST(MeanSquaredError, SamplesThatFillTheLastBatchCountForNothing) {
  auto harness = two_samples(1);
  harness->first_sample = 6;
  harness->constants.samples = 7;
  harness->forward();
  EXPECT_EQ(harness->metrics[ops::kLossSum], 4);
  EXPECT_EQ(harness->metrics[ops::kCount], 2);
  harness->constants.samples = 5;
  harness->forward();
  EXPECT_EQ(harness->metrics[ops::kLossSum], 0);
  EXPECT_EQ(harness->metrics[ops::kCount], 0);
}

TEST(MeanSquaredError, GradientIsTwiceTheErrorTimesWeightAndScale) {
  auto harness = two_samples(0.25);
  harness->constants.loss_scale = 8;
  harness->forward();
  harness->backward();
  EXPECT_EQ(values_of(harness->input_gradients[0]), (std::vector<double>{0, 8, -12, 4}));
  EXPECT_EQ(harness->input_gradients[1].data, nullptr) << "a target has no gradient";
}

TEST(MeanSquaredError, HowALeafIsCutChangesNoBitOnCpus) {
  const std::vector<double> prediction = random_values(60, 1), target = random_values(60, 2);
  const auto sum_in_pieces = [&](int64_t batch) {
    OpHarness harness(MeanSquaredError{}, {{Shape{5}}, {Shape{5}}}, {.batch = batch},
                      device::DeviceKind::cpu);
    for (int64_t sample = 0; sample < 12; sample += batch) {
      const auto piece = [&](const std::vector<double>& all) {
        return std::vector<double>(all.begin() + sample * 5, all.begin() + (sample + batch) * 5);
      };
      fill(harness.inputs[0], piece(prediction));
      fill(harness.inputs[1], piece(target));
      harness.forward(sample > 0);
    }
    return harness.metrics[ops::kLossSum];
  };
  const double whole = sum_in_pieces(12);
  EXPECT_EQ(sum_in_pieces(4), whole);
  EXPECT_EQ(sum_in_pieces(1), whole);
}

TEST(MeanSquaredError, CountsEveryElementOfALargeBatch) {
  constexpr int64_t kCountOfElements = 1'200'007;  // more than one round of a GPU's blocks
  OpHarness harness(MeanSquaredError{}, {{Shape{kCountOfElements}}, {Shape{kCountOfElements}}}, {.batch = 1});
  fill(harness.inputs[0], 3.0);
  fill(harness.inputs[1], 1.0);
  harness.forward();
  EXPECT_EQ(harness.metrics[ops::kLossSum], 4 * kCountOfElements);
  EXPECT_EQ(harness.metrics[ops::kCount], kCountOfElements);
}

TEST(MeanSquaredError, AgreesWithPyTorch) {
  const Golden golden = read_golden("mean_squared_error", "sum");
  OpHarness harness(MeanSquaredError{}, {{Shape{4}}, {Shape{4}}}, {.batch = 3});
  fill(harness.inputs[0], golden.at("input0").values);
  fill(harness.inputs[1], golden.at("input1").values);
  harness.forward();
  harness.backward();
  expect_near({harness.metrics[ops::kLossSum]}, golden.at("output0").values, 1e-7, "loss");
  expect_near(values_of(harness.input_gradients[0]), golden.at("gradient of input0").values, 1e-6,
              "gradient");
}

TEST(MeanSquaredError, RefusesUnequalShapes) {
  expect_config_error(
      [] {
        ops::infer(MeanSquaredError{}, std::vector<TensorSpec>{{Shape{3}}, {Shape{4}}});
      },
      "mean_squared_error: prediction and target must have one shape, are [3] and [4]");
  expect_config_error(
      [] {
        ops::infer(MeanSquaredError{}, std::vector<TensorSpec>{{Shape{3}}, {Shape{3}, DType::int32}});
      },
      "mean_squared_error: target must be float32, is int32 of shape [3]");
  expect_config_error([] { ops::infer(MeanSquaredError{}, std::vector<TensorSpec>{{Shape{3}}}); },
                      "mean_squared_error: takes 2 inputs, is given 1");
}

}  // namespace
}  // namespace lockstep::testing
