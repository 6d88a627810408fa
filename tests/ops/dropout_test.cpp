#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "base/philox.h"
#include "lockstep/error.h"
#include "ops/op_cases.h"

namespace lockstep::testing {
namespace {

constexpr uint32_t kDropoutOpNumber = 5;
const ops::StepConstants kDropoutConstants{.step = 3, .seed = 0x123456789abcdefull};

/// The contract of the random stream, written out: dropout_factor of one element of one sample of the global
/// batch.
double dropout_factor(float rate, uint64_t sample, uint64_t element) {
  const Philox::Block block = Philox::generate(
      {{static_cast<uint32_t>(element / 4), static_cast<uint32_t>(sample), 3, kDropoutOpNumber * 256 + 2}},
      0x123456789abcdefull);
  return Philox::uniform(block.word[element % 4]) < rate ? 0 : 1.0f / (1.0f - rate);
}

std::vector<double> dropped_ones(int64_t count, int64_t batch, ops::KernelOptions options,
                                 const ops::StepConstants& constants, int64_t first_sample = 0,
                                 float rate = 0.5f) {
  options.batch = batch;
  OpHarness harness(Dropout{.rate = rate}, {{Shape{count}}}, options);
  harness.constants = constants;
  harness.first_sample = first_sample;
  fill(harness.inputs[0], 1.0);
  harness.forward();
  return values_of(harness.outputs[0]);
}

TEST(Dropout, BatchOfEightEqualsTwoBatchesOfFour) {
  const int64_t count = 23;
  const auto whole = dropped_ones(count, 8, {.op_number = kDropoutOpNumber}, kDropoutConstants, 0);
  auto halves = dropped_ones(count, 4, {.op_number = kDropoutOpNumber}, kDropoutConstants, 0);
  const auto second = dropped_ones(count, 4, {.op_number = kDropoutOpNumber}, kDropoutConstants, 4);
  EXPECT_NE(halves, second);
  halves.insert(halves.end(), second.begin(), second.end());
  EXPECT_EQ(whole, halves);
}

TEST(Dropout, MaskDependsOnSeedStepAndOp) {
  const auto original = dropped_ones(64, 1, {.op_number = kDropoutOpNumber}, kDropoutConstants);
  EXPECT_EQ(original, dropped_ones(64, 1, {.op_number = kDropoutOpNumber}, kDropoutConstants));
  EXPECT_NE(original, dropped_ones(64, 1, {.op_number = kDropoutOpNumber + 1}, kDropoutConstants));
  ops::StepConstants other = kDropoutConstants;
  other.step += 1;
  EXPECT_NE(original, dropped_ones(64, 1, {.op_number = kDropoutOpNumber}, other));
  other = kDropoutConstants;
  other.seed += uint64_t{1} << 32;
  EXPECT_NE(original, dropped_ones(64, 1, {.op_number = kDropoutOpNumber}, other));
}

TEST(Dropout, DropsTheShareThatItIsTold) {
  const int64_t count = 100'000;
  for (const float rate : {0.1f, 0.5f, 0.9f}) {
    const auto ones = dropped_ones(count, 1, {.op_number = kDropoutOpNumber}, kDropoutConstants, 0, rate);
    const auto dropped = static_cast<double>(std::count(ones.begin(), ones.end(), 0.0));
    const double five_sigma = 5 * std::sqrt(count * rate * (1 - rate));
    EXPECT_NEAR(dropped, count * static_cast<double>(rate), five_sigma);
  }
}

TEST(Dropout, IsTheIdentityInEvaluationAndAtRateZero) {
  const std::vector<double> ones(37, 1.0);
  EXPECT_EQ(dropped_ones(37, 1, {.training = false}, kDropoutConstants), ones);
  EXPECT_EQ(dropped_ones(37, 1, {}, kDropoutConstants, 0, 0.0f), ones);
}

TEST(Dropout, DoesNotHideNotANumber) {
  OpHarness harness(Dropout{}, {{Shape{64}}}, {.batch = 1});
  fill(harness.inputs[0], std::nan(""));
  harness.forward();
  for (const double value : values_of(harness.outputs[0])) EXPECT_TRUE(std::isnan(value));
}

TEST(Dropout, RefusesRatesOutsideItsRange) {
  const std::vector<TensorSpec> inputs{{Shape{4}}};
  EXPECT_NO_THROW(ops::infer(Dropout{.rate = 0}, inputs));
  for (const float rate : {-0.1f, 1.0f, std::nanf("")})
    EXPECT_THROW(ops::infer(Dropout{.rate = rate}, inputs), ConfigError);
}

}  // namespace

template <>
std::vector<OpCase> cases_of<Dropout>() {
  const auto make = [](std::string name, Shape shape, int64_t batch, float rate, int threads) {
    OpCase c{.name = std::move(name), .op = Dropout{.rate = rate}, .inputs = {{shape}}, .batch = batch};
    c.options = {.intra_op_threads = threads, .op_number = kDropoutOpNumber};
    c.constants = kDropoutConstants;
    c.first_sample = 1000;
    c.reference = [rate](const std::vector<Array>& inputs, const std::vector<Array>&) {
      Array y = inputs[0];
      const uint64_t count = y.values.size() / static_cast<uint64_t>(y.shape[0]);
      for (uint64_t i = 0; i < y.values.size(); ++i)
        y.values[i] *= dropout_factor(rate, 1000 + i / count, i % count);
      return std::vector<Array>{y};
    };
    return c;
  };
  return {make("one", {1}, 1, 0.5f, 1), make("prime", {5, 7}, 3, 0.1f, 1), make("pieces", {2051}, 2, 0.7f, 2),
          make("packs", {6, 40}, 5, 0.3f, 1)};
}

}  // namespace lockstep::testing
