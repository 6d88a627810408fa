#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "lockstep/error.h"
#include "ops/op_cases.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const double kLog3 = std::log(3.0);

/// Batches of samples with one label each.
OpHarness one_label_each(int64_t batch, int64_t classes, ops::KernelOptions options = {},
                         int64_t ignore_index = -1) {
  options.batch = batch;
  return OpHarness(SoftmaxCrossEntropy{.ignore_index = ignore_index},
                   {{Shape{classes}}, {Shape{}, DType::int32}}, options);
}

TEST(SoftmaxCrossEntropy, AgreesWithValuesWorkedOutByHand) {
  OpHarness harness = one_label_each(2, 2, {.loss_weight = 0.5});
  harness.constants.loss_scale = 8;
  fill(harness.inputs[0], {0, kLog3, 0, kLog3});  // probabilities 1/4 and 3/4
  fill(harness.inputs[1], {1, 0});
  harness.forward();
  EXPECT_NEAR(harness.metrics[ops::kLossSum], std::log(4.0 / 3) + std::log(4.0), 1e-6);
  EXPECT_EQ(harness.metrics[ops::kCount], 2);
  EXPECT_EQ(harness.metrics[ops::kCorrect], 1);
  harness.backward();
  expect_near(values_of(harness.input_gradients[0]), {1, -1, -3, 3}, 1e-6, "gradient of logits");
}

TEST(SoftmaxCrossEntropy, IgnoredPositionsCountForNothing) {
  OpHarness harness = one_label_each(4, 2, {}, 1);
  fill(harness.inputs[0], {0, kLog3, 5, 5, std::nan(""), 1, 7, 7});
  fill(harness.inputs[1], {0, -1, -100, 1});
  harness.forward();
  EXPECT_NEAR(harness.metrics[ops::kLossSum], std::log(4.0), 1e-6);
  EXPECT_EQ(harness.metrics[ops::kCount], 1);
  EXPECT_EQ(harness.metrics[ops::kCorrect], 0);
  harness.backward();
  expect_near(values_of(harness.input_gradients[0]), {-0.75, 0.75, 0, 0, 0, 0, 0, 0}, 1e-6,
              "gradient of logits");
}

TEST(SoftmaxCrossEntropy, SamplesThatFillTheLastBatchCountForNothing) {
  OpHarness harness = one_label_each(3, 2);
  harness.first_sample = 3;
  harness.constants.samples = 5;
  fill(harness.inputs[0], {0, kLog3, 0, kLog3, 0, kLog3});
  fill(harness.inputs[1], {1, 0, 0});
  harness.forward();
  EXPECT_NEAR(harness.metrics[ops::kLossSum], std::log(4.0 / 3) + std::log(4.0), 1e-6);
  EXPECT_EQ(harness.metrics[ops::kCount], 2);
  EXPECT_EQ(harness.metrics[ops::kCorrect], 1);
}

TEST(SoftmaxCrossEntropy, TiesGoToTheLowestClass) {
  OpHarness harness = one_label_each(3, 4);
  fill(harness.inputs[0], {1, 5, 5, 0, 1, 5, 5, 0, 2, 2, 2, 2});
  fill(harness.inputs[1], {1, 2, 0});
  harness.forward();
  EXPECT_EQ(harness.metrics[ops::kCorrect], 2);
}

TEST(SoftmaxCrossEntropy, LargeLogitsDoNotOverflow) {
  OpHarness harness = one_label_each(1, 3);
  fill(harness.inputs[0], {1e4, 1e4, -1e4});
  fill(harness.inputs[1], {0});
  harness.forward();
  EXPECT_NEAR(harness.metrics[ops::kLossSum], std::log(2.0), 1e-6);
}

TEST(SoftmaxCrossEntropy, NotANumberInAnyLogitShowsInLossAndGradient) {
  for (size_t bad = 0; bad < 37; ++bad) {
    OpHarness harness = one_label_each(1, 37);
    std::vector<double> logits = random_values(37, 1);
    logits[bad] = std::nan("");
    fill(harness.inputs[0], logits);
    fill(harness.inputs[1], {3});
    harness.forward();
    EXPECT_TRUE(std::isnan(harness.metrics[ops::kLossSum])) << bad;
    EXPECT_EQ(harness.metrics[ops::kCorrect], 0);
    harness.backward();
    for (const double value : values_of(harness.input_gradients[0])) EXPECT_TRUE(std::isnan(value));
  }
}

TEST(SoftmaxCrossEntropy, InfiniteLogitGivesNotANumber) {
  OpHarness harness = one_label_each(1, 3);
  fill(harness.inputs[0], {0, INFINITY, 0});
  fill(harness.inputs[1], {1});
  harness.forward();
  EXPECT_TRUE(std::isnan(harness.metrics[ops::kLossSum]));
}

// A leaf's loss must not depend on how it is cut into micro-batches.
TEST(SoftmaxCrossEntropy, AccumulatingMicroBatchesGivesTheBitsOfOneBatch) {
  const int64_t classes = 17;
  const std::vector<double> logits = random_values(6 * classes, 3, -5, 5);
  OpHarness whole = one_label_each(6, classes);
  fill(whole.inputs[0], logits);
  fill(whole.inputs[1], {1, 3, 5, 7, 9, 11});
  whole.forward();
  OpHarness half = one_label_each(3, classes);
  for (const int part : {0, 1}) {
    fill(half.inputs[0], {logits.begin() + part * 3 * classes, logits.begin() + (part + 1) * 3 * classes});
    fill(half.inputs[1], part == 0 ? std::vector<double>{1, 3, 5} : std::vector<double>{7, 9, 11});
    half.forward(part > 0);
  }
  EXPECT_EQ(half.metrics[ops::kLossSum], whole.metrics[ops::kLossSum]);
  EXPECT_EQ(half.metrics[ops::kCount], 6);
}

TEST(SoftmaxCrossEntropy, NamesALabelThatIsNoClass) {
  OpHarness harness(SoftmaxCrossEntropy{}, {{{4, 10}}, {Shape{4}, DType::int32}}, {.batch = 2},
                    device::DeviceKind::cpu);
  harness.first_sample = 20;
  fill(harness.inputs[0], 0.0);
  fill(harness.inputs[1], {0, 9, 0, 0, 0, 0, 0, 10});
  try {
    harness.forward();
    FAIL() << "label 10 of 10 classes passed";
  } catch (const DataError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("label 10"), HasSubstr("sample 21"), HasSubstr("position 3"),
                                    HasSubstr("10 classes")));
  }
}

TEST(SoftmaxCrossEntropy, RefusesLabelsOfOtherShapesAndTypes) {
  const TensorSpec logits{{4, 10}};
  const SoftmaxCrossEntropy op;
  EXPECT_THROW(ops::infer(op, std::vector<TensorSpec>{logits, {Shape{5}, DType::int32}}), ConfigError);
  EXPECT_THROW(ops::infer(op, std::vector<TensorSpec>{logits, {Shape{4}}}), ConfigError);
  EXPECT_THROW(ops::infer(op, std::vector<TensorSpec>{logits}), ConfigError);
}

TEST(SoftmaxCrossEntropy, MatchesPyTorch) {
  const Golden golden = read_golden("softmax_cross_entropy", "ignored");
  const Array &logits = golden.at("input0"), &labels = golden.at("input1");
  ops::KernelOptions options{.batch = logits.shape[0]};
  options.loss_weight = 1 / golden.at("count").values[0];
  OpHarness harness(SoftmaxCrossEntropy{.ignore_index = 2},
                    {{{logits.shape[1], logits.shape[2]}}, {Shape{labels.shape[1]}, DType::int32}}, options);
  fill(harness.inputs[0], logits.values);
  fill(harness.inputs[1], labels.values);
  harness.forward();
  harness.backward();
  EXPECT_EQ(harness.metrics[ops::kCount], golden.at("count").values[0]);
  EXPECT_NEAR(harness.metrics[ops::kLossSum], golden.at("loss sum").values[0], 1e-5);
  expect_near(values_of(harness.input_gradients[0]), golden.at("gradient of input0").values, 1e-6,
              "gradient");
}

}  // namespace

template <>
std::vector<OpCase> cases_of<SoftmaxCrossEntropy>() {
  const auto make = [](std::string name, Shape positions, int64_t classes, int64_t batch, int64_t ignored,
                       int threads) {
    std::vector<int64_t> dims = positions.dims();
    dims.push_back(classes);
    OpCase c{.name = std::move(name), .op = SoftmaxCrossEntropy{.ignore_index = ignored}};
    c.inputs = {{Shape(dims)}, {positions, DType::int32}};
    c.batch = batch;
    c.int32_below = classes;
    c.options.loss_weight = 0.25;
    c.options.intra_op_threads = threads;
    c.constants.loss_scale = 2;
    c.reference = [classes, ignored](const std::vector<Array>& inputs, const std::vector<Array>&) {
      double loss = 0;
      for (size_t row = 0; row < inputs[1].values.size(); ++row) {
        const auto label = static_cast<int64_t>(inputs[1].values[row]);
        if (label < 0 || label == ignored) continue;
        const double* x = inputs[0].values.data() + static_cast<int64_t>(row) * classes;
        double sum = 0;
        for (int64_t k = 0; k < classes; ++k) sum += std::exp(x[k]);
        loss += std::log(sum) - x[label];
      }
      return std::vector<Array>{{Shape{1}, {loss}}};
    };
    return c;
  };
  return {make("one", {}, 1, 1, -1, 1), make("ten", {}, 10, 5, -1, 1), make("ignored", {7}, 5, 3, 2, 1),
          make("odd", {3, 2}, 65, 2, -1, 1), make("pieces", {3}, 1031, 2, 0, 2)};
}

}  // namespace lockstep::testing
