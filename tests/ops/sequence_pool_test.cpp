#include <gtest/gtest.h>

#include "lockstep/error.h"
#include "ops/op_cases.h"
#include "ops/op_expect.h"

namespace lockstep::testing {
namespace {

std::vector<Array> sequence_pool_reference(SequencePoolKind kind, const std::vector<Array>& inputs) {
  const Array& x = inputs[0];
  const int64_t batch = x.shape[0], positions = x.shape[1], channels = x.shape[2];
  Array y{{batch, channels}, std::vector<double>(static_cast<size_t>(batch * channels))};
  for (int64_t sample = 0; sample < batch; ++sample) {
    std::vector<int64_t> counted;
    for (int64_t t = 0; t < positions; ++t)
      if (inputs.size() == 1 || inputs[1].values[sample * positions + t] != 0) counted.push_back(t);
    for (int64_t c = 0; c < channels && !counted.empty(); ++c) {
      const auto at = [&](int64_t t) { return x.values[(sample * positions + t) * channels + c]; };
      double& result = y.values[sample * channels + c];
      if (kind == SequencePoolKind::mean)
        for (const int64_t t : counted) result += at(t) / static_cast<double>(counted.size());
      else
        result = at(kind == SequencePoolKind::ends && c >= channels / 2 ? counted.front() : counted.back());
    }
  }
  return {y};
}

OpCase make_sequence_pool(std::string name, SequencePoolKind kind, Shape sequence, bool masked,
                          int threads = 1) {
  OpCase c{
      .name = std::move(name),
      .op = SequencePool{.kind = kind},
      .inputs = {{sequence}},
      .batch = 3,
      .reference = [kind](const auto& inputs, const auto&) { return sequence_pool_reference(kind, inputs); }};
  c.options.intra_op_threads = threads;
  if (!masked) return c;
  const int64_t positions = sequence[0];
  c.inputs.push_back({{positions}});
  c.prepare = [positions](std::vector<Array>& inputs) {  // the second sample is empty
    for (size_t i = 0; i < inputs[1].values.size(); ++i) {
      const auto sample = static_cast<int64_t>(i) / positions, t = static_cast<int64_t>(i) % positions;
      inputs[1].values[i] = sample != 1 && t >= sample / 2 && t < positions - 1 ? 1 : 0;
    }
  };
  return c;
}

}  // namespace

template <>
std::vector<OpCase> cases_of<SequencePool>() {
  using enum SequencePoolKind;
  return {make_sequence_pool("mean", mean, {7, 5}, false),
          make_sequence_pool("last", last, {7, 5}, false),
          make_sequence_pool("ends", ends, {7, 6}, false),
          make_sequence_pool("one_position", ends, {1, 2}, false),
          make_sequence_pool("masked_mean", mean, {5, 131}, true, 2),
          make_sequence_pool("masked_last", last, {4, 3}, true),
          make_sequence_pool("masked_ends", ends, {6, 4}, true)};
}

namespace {

TEST(SequencePool, TakesWhatCounts) {
  const std::vector<double> x{1, 10, 2, 20, 3, 30}, mask{1, 1, 0};
  const auto pooled = [&](SequencePoolKind kind) {
    OpHarness harness(SequencePool{.kind = kind}, {{Shape{3, 2}}, {Shape{3}}}, {.batch = 1});
    fill(harness.inputs[0], x);
    fill(harness.inputs[1], mask);
    harness.forward();
    return values_of(harness.outputs[0]);
  };
  EXPECT_EQ(pooled(SequencePoolKind::mean), (std::vector<double>{1.5, 15}));
  EXPECT_EQ(pooled(SequencePoolKind::last), (std::vector<double>{2, 20}));
  EXPECT_EQ(pooled(SequencePoolKind::ends), (std::vector<double>{2, 10}));
}

TEST(SequencePool, AgreesWithPyTorch) {
  using enum SequencePoolKind;
  expect_matches_golden(SequencePool{.kind = mean}, read_golden("sequence_pool", "mean"));
  expect_matches_golden(SequencePool{.kind = mean}, read_golden("sequence_pool", "mean_of_lengths"));
  expect_matches_golden(SequencePool{.kind = last}, read_golden("sequence_pool", "last_of_lengths"));
  expect_matches_golden(SequencePool{.kind = ends}, read_golden("sequence_pool", "ends_of_lengths"));
}

TEST(SequencePool, RefusesWhatIsNoSequence) {
  const auto refuses = [](SequencePoolKind kind, std::vector<TensorSpec> inputs) {
    EXPECT_THROW(ops::infer(SequencePool{.kind = kind}, inputs), ConfigError);
  };
  refuses(SequencePoolKind::mean, {{{3}}});
  refuses(SequencePoolKind::ends, {{{3, 5}}});
  refuses(SequencePoolKind::last, {{{3, 4}}, {{4}}});
}

}  // namespace
}  // namespace lockstep::testing
