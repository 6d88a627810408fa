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

void expect_pytorchs(const std::string& name, const SoftmaxCrossEntropy& op) {
  SCOPED_TRACE(name);
  const Golden golden = read_golden("softmax_cross_entropy", name);
  const Array &logits = golden.at("input0"), &labels = golden.at("input1");
  ops::KernelOptions options{.batch = logits.shape[0]};
  options.loss_weight = 1 / golden.at("count").values[0];
  std::vector<TensorSpec> inputs{{{logits.shape[1], logits.shape[2]}},
                                 {Shape{labels.shape[1]}, DType::int32}};
  const bool mixes = golden.contains("input2");
  if (mixes) inputs.push_back({{labels.shape[1], 2}, DType::int32});
  OpHarness harness(op, inputs, options);
  fill(harness.inputs[0], logits.values);
  fill(harness.inputs[1], labels.values);
  if (mixes) fill(harness.inputs[2], golden.at("input2").values);
  harness.forward();
  harness.backward();
  EXPECT_EQ(harness.metrics[ops::kCount], golden.at("count").values[0]);
  EXPECT_NEAR(harness.metrics[ops::kLossSum], golden.at("loss sum").values[0], 1e-5);
  expect_near(values_of(harness.input_gradients[0]), golden.at("gradient of input0").values, 1e-6,
              "gradient");
}

TEST(SoftmaxCrossEntropy, MatchesPyTorch) {
  expect_pytorchs("ignored", {.ignore_index = 2});
  expect_pytorchs("smoothed", {.ignore_index = 5, .label_smoothing = 0.25f});
  expect_pytorchs("mixed", {.label_smoothing = 0.25f});
}

/// Batches of samples with one label each, which may be mixed.
OpHarness one_mixture_each(int64_t batch, int64_t classes, const SoftmaxCrossEntropy& op = {},
                           ops::KernelOptions options = {}) {
  options.batch = batch;
  return OpHarness(op, {{Shape{classes}}, {Shape{}, DType::int32}, {Shape{2}, DType::int32}}, options);
}

TEST(SoftmaxCrossEntropy, MixturesAgreeWithValuesWorkedOutByHand) {
  OpHarness harness = one_mixture_each(2, 2);
  fill(harness.inputs[0], {0, kLog3, 0, kLog3});  // probabilities 1/4 and 3/4
  fill(harness.inputs[1], {0, 0});
  fill(harness.inputs[2], {1, kWholeShare / 4.0, 1, kWholeShare * 0.75});
  harness.forward();
  EXPECT_NEAR(harness.metrics[ops::kLossSum], std::log(4.0) + std::log(4.0 / 3), 1e-6);
  EXPECT_EQ(harness.metrics[ops::kCount], 2);
  harness.backward();
  expect_near(values_of(harness.input_gradients[0]), {-0.5, 0.5, 0, 0}, 1e-6, "gradient of logits");
}

// A mixture with none of the second class, all of it, or of a class with itself is a plain label, to the bit.
TEST(SoftmaxCrossEntropy, MixturesOfOneClassHaveTheBitsOfALabel) {
  constexpr int64_t kClasses = 37;
  for (const float smoothing : {0.0f, 0.1f}) {
    const SoftmaxCrossEntropy op{.label_smoothing = smoothing};
    const std::vector<double> logits = random_values(3 * kClasses, 5, -6, 6);
    OpHarness plain(op, {{Shape{kClasses}}, {Shape{}, DType::int32}}, {.batch = 3});
    OpHarness mixed = one_mixture_each(3, kClasses, op);
    for (OpHarness* each : {&plain, &mixed}) fill(each->inputs[0], logits);
    fill(plain.inputs[1], {7, 20, 11});
    fill(mixed.inputs[1], {7, 3, 11});
    fill(mixed.inputs[2], {9, 0, 20, kWholeShare, 11, 12345});
    for (OpHarness* each : {&plain, &mixed}) {
      each->forward();
      each->backward();
    }
    for (int i = 0; i < ops::kMetricCount; ++i) EXPECT_EQ(mixed.metrics[i], plain.metrics[i]) << i;
    EXPECT_EQ(values_of(mixed.input_gradients[0]), values_of(plain.input_gradients[0]));
  }
}

TEST(SoftmaxCrossEntropy, TheRightAnswerToAMixtureIsTheLargerShare) {
  OpHarness harness = one_mixture_each(4, 3);
  fill(harness.inputs[0], {2, 1, 0, 2, 1, 0, 2, 1, 0, 1, 2, 0});
  fill(harness.inputs[1], {0, 0, 0, 0});
  const double half = kWholeShare / 2.0;
  fill(harness.inputs[2], {1, half - 1, 1, half, 1, half + 1, 1, half + 1});
  harness.forward();
  EXPECT_EQ(harness.metrics[ops::kCorrect], 3);  // all but the third
}

TEST(SoftmaxCrossEntropy, MixturesWithAnIgnoredClassCountForNothing) {
  OpHarness harness = one_mixture_each(4, 3, {.ignore_index = 2, .label_smoothing = 0.1f});
  fill(harness.inputs[0], random_values(12, 3));
  fill(harness.inputs[1], {2, 0, 0, 0});
  fill(harness.inputs[2], {1, 5, 2, 5, -1, 5, 2, 0});  // of the last, class 2 has no share
  harness.forward();
  EXPECT_EQ(harness.metrics[ops::kCount], 1);
  harness.backward();
  const auto gradient = values_of(harness.input_gradients[0]);
  for (int i = 0; i < 9; ++i) EXPECT_EQ(gradient[i], 0) << i;
  EXPECT_NE(gradient[9], 0);
}

TEST(SoftmaxCrossEntropy, SmoothingEverythingAimsAtAllClassesAlike) {
  OpHarness harness = OpHarness(SoftmaxCrossEntropy{.label_smoothing = 1},
                                {{Shape{4}}, {Shape{}, DType::int32}}, {.batch = 1});
  fill(harness.inputs[0], {3, 3, 3, 3});
  fill(harness.inputs[1], {2});
  harness.forward();
  harness.backward();
  EXPECT_NEAR(harness.metrics[ops::kLossSum], std::log(4.0), 1e-6);
  expect_near(values_of(harness.input_gradients[0]), {0, 0, 0, 0}, 1e-6, "gradient");
}

TEST(SoftmaxCrossEntropy, NamesAShareThatIsNone) {
  for (const double share : {-1.0, kWholeShare + 1.0}) {
    OpHarness harness(SoftmaxCrossEntropy{}, {{Shape{3}}, {Shape{}, DType::int32}, {Shape{2}, DType::int32}},
                      {.batch = 2}, device::DeviceKind::cpu);
    harness.first_sample = 4;
    fill(harness.inputs[0], 0.0);
    fill(harness.inputs[1], {0, 1});
    fill(harness.inputs[2], {1, 1, 2, share});
    try {
      harness.forward();
      FAIL() << share;
    } catch (const DataError& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr("sample 5"), HasSubstr("share"), HasSubstr("16777216")));
    }
  }
}

TEST(SoftmaxCrossEntropy, RefusesMixturesAndSmoothingThatAreNone) {
  const TensorSpec logits{{4, 10}}, labels{Shape{4}, DType::int32};
  const auto infer = [&](const SoftmaxCrossEntropy& op, const TensorSpec& mixtures) {
    return ops::infer(op, std::vector<TensorSpec>{logits, labels, mixtures});
  };
  EXPECT_NO_THROW(infer({}, {{4, 2}, DType::int32}));
  EXPECT_THROW(infer({}, {{4, 2}}), ConfigError);
  EXPECT_THROW(infer({}, {{4, 3}, DType::int32}), ConfigError);
  EXPECT_THROW(infer({}, {{2, 4}, DType::int32}), ConfigError);
  for (const float smoothing : {-0.1f, 1.1f, std::nanf("")})
    EXPECT_THROW(infer({.label_smoothing = smoothing}, {{4, 2}, DType::int32}), ConfigError);
}

}  // namespace

namespace {

/// The loss of one row whose label's classes have these shares, in double precision.
double loss_of_row(const double* logits, int64_t classes,
                   std::initializer_list<std::pair<int64_t, double>> label, double smoothing) {
  double exponentials = 0, sum = 0, of_label = 0;
  for (int64_t k = 0; k < classes; ++k) {
    exponentials += std::exp(logits[k]);
    sum += logits[k];
  }
  for (const auto& [c, share] : label)
    if (share > 0) of_label += share * logits[c];
  return std::log(exponentials) - (1 - smoothing) * of_label - smoothing * sum / static_cast<double>(classes);
}

struct LossCase {
  std::string name;
  Shape positions;
  int64_t classes, batch, ignored = -1;
  int threads = 1;
  float smoothing = 0;
  bool mixes = false;
};

OpCase loss_case(const LossCase& from) {
  std::vector<int64_t> dims = from.positions.dims();
  dims.push_back(from.classes);
  OpCase c{.name = from.name,
           .op = SoftmaxCrossEntropy{.ignore_index = from.ignored, .label_smoothing = from.smoothing}};
  c.inputs = {{Shape(dims)}, {from.positions, DType::int32}};
  if (from.mixes) {
    dims.back() = 2;
    c.inputs.push_back({Shape(dims), DType::int32});
    // Shares that are as random as the classes, from none of the label to all of it.
    c.prepare = [parts = std::max<int64_t>(1, from.classes - 1)](std::vector<Array>& inputs) {
      for (size_t i = 1; i < inputs[2].values.size(); i += 2)
        inputs[2].values[i] = std::floor(inputs[2].values[i] * kWholeShare / static_cast<double>(parts));
    };
  }
  c.batch = from.batch;
  c.int32_below = from.classes;
  c.options.loss_weight = 0.25;
  c.options.intra_op_threads = from.threads;
  c.constants.loss_scale = 2;
  c.reference = [from](const std::vector<Array>& inputs, const std::vector<Array>&) {
    double loss = 0;
    for (size_t row = 0; row < inputs[1].values.size(); ++row) {
      const auto label = static_cast<int64_t>(inputs[1].values[row]);
      const auto other = from.mixes ? static_cast<int64_t>(inputs[2].values[2 * row]) : label;
      const double share = from.mixes ? inputs[2].values[2 * row + 1] / kWholeShare : 0;
      const auto ignores = [&](int64_t c, double part) { return part > 0 && (c < 0 || c == from.ignored); };
      if (ignores(label, 1 - share) || ignores(other, share)) continue;
      loss += loss_of_row(inputs[0].values.data() + static_cast<int64_t>(row) * from.classes, from.classes,
                          {{label, 1 - share}, {other, share}}, from.smoothing);
    }
    return std::vector<Array>{{Shape{1}, {loss}}};
  };
  return c;
}

}  // namespace

template <>
std::vector<OpCase> cases_of<SoftmaxCrossEntropy>() {
  std::vector<OpCase> cases;
  for (const LossCase& each : {LossCase{"one", {}, 1, 1},
                               {"ten", {}, 10, 5},
                               {"ignored", {7}, 5, 3, 2},
                               {"odd", {3, 2}, 65, 2},
                               {"pieces", {3}, 1031, 2, 0, 2},
                               {"smoothed", {7}, 5, 3, 2, 1, 0.125f},
                               {"smoothed_pieces", {3}, 1031, 2, 0, 2, 0.5f},
                               {"mixed", {7}, 5, 3, 2, 1, 0, true},
                               {"mixed_smoothed", {}, 33, 4, -1, 2, 0.25f, true},
                               {"mixed_pieces", {3}, 2111, 2, 0, 2, 0.125f, true}})
    cases.push_back(loss_case(each));
  return cases;
}

}  // namespace lockstep::testing
