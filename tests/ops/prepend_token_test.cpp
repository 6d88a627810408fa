#include <gtest/gtest.h>

#include "lockstep/error.h"
#include "ops/op_cases.h"

namespace lockstep::testing {

template <>
std::vector<OpCase> cases_of<PrependToken>() {
  const auto make = [](std::string name, int64_t positions, int64_t channels, int64_t batch, int threads) {
    OpCase c{
        .name = std::move(name), .op = PrependToken{}, .inputs = {{{positions, channels}}}, .batch = batch};
    c.options.intra_op_threads = threads;
    c.reference = [](const std::vector<Array>& inputs, const std::vector<Array>& parameters) {
      const int64_t samples = inputs[0].shape[0], count = inputs[0].shape[1] * inputs[0].shape[2];
      Array y{{samples, inputs[0].shape[1] + 1, inputs[0].shape[2]}, {}};
      for (int64_t s = 0; s < samples; ++s) {
        y.values.insert(y.values.end(), parameters[0].values.begin(), parameters[0].values.end());
        const auto first = inputs[0].values.begin() + s * count;
        y.values.insert(y.values.end(), first, first + count);
      }
      return std::vector<Array>{y};
    };
    return c;
  };
  return {make("one", 1, 1, 1, 1), make("small", 4, 3, 5, 1), make("wide", 3, 301, 2, 2)};
}

namespace {

TEST(PrependToken, AgreesWithPyTorch) {
  expect_matches_golden(PrependToken{}, read_golden("prepend_token", "class_token"));
}

TEST(PrependToken, RefusesWhatIsNoSequence) {
  EXPECT_THROW(ops::infer(PrependToken{}, std::vector<TensorSpec>{{{4}}}), ConfigError);
  EXPECT_THROW(ops::infer(PrependToken{.init_std = -1}, std::vector<TensorSpec>{{{4, 3}}}), ConfigError);
}

}  // namespace
}  // namespace lockstep::testing
