#include "ops/lstm.h"

#include <gtest/gtest.h>

#include <cmath>

#include "lockstep/error.h"
#include "mentions.h"
#include "ops/op_cases.h"
#include "ops/op_expect.h"

namespace lockstep::testing {
namespace {

double gate(double x) { return 1 / (1 + std::exp(-x)); }

/// One direction of one sample, written out. `parameters`: its four. `y`: the sample's output.
void add_direction(const Lstm& op, const Array& x, const std::vector<double>* mask, int64_t sample,
                   bool reverse, const std::vector<Array>& all, double* y) {
  const int64_t positions = x.shape[1], width = x.shape[2], units = op.units, first = reverse ? 4 : 0;
  const auto& weight_ih = all[first].values;
  const auto& weight_hh = all[first + 1].values;
  std::vector<double> hidden(units), cell(units);
  for (int64_t step = 0; step < positions; ++step) {
    const int64_t t = reverse ? positions - 1 - step : step;
    if (mask != nullptr && (*mask)[sample * positions + t] == 0) continue;
    const double* input = x.values.data() + (sample * positions + t) * width;
    std::vector<double> z(4 * units);
    for (int64_t row = 0; row < 4 * units; ++row) {
      z[row] = all[first + 2].values[row] + all[first + 3].values[row];
      for (int64_t k = 0; k < width; ++k) z[row] += weight_ih[row * width + k] * input[k];
      for (int64_t k = 0; k < units; ++k) z[row] += weight_hh[row * units + k] * hidden[k];
    }
    for (int64_t u = 0; u < units; ++u) {
      cell[u] = gate(z[units + u]) * cell[u] + gate(z[u]) * std::tanh(z[2 * units + u]);
      hidden[u] = gate(z[3 * units + u]) * std::tanh(cell[u]);
      y[t * (op.bidirectional ? 2 : 1) * units + (reverse ? units : 0) + u] = hidden[u];
    }
  }
}

std::vector<Array> lstm_reference(const Lstm& op, const std::vector<Array>& inputs,
                                  const std::vector<Array>& parameters) {
  const int64_t batch = inputs[0].shape[0], positions = inputs[0].shape[1],
                width = (op.bidirectional ? 2 : 1) * op.units;
  Array y{{batch, positions, width}, std::vector<double>(static_cast<size_t>(batch * positions * width))};
  for (int64_t sample = 0; sample < batch; ++sample)
    for (int direction = 0; direction < (op.bidirectional ? 2 : 1); ++direction)
      add_direction(op, inputs[0], inputs.size() > 1 ? &inputs[1].values : nullptr, sample, direction > 0,
                    parameters, y.values.data() + sample * positions * width);
  return {y};
}

OpCase make_lstm(std::string name, int64_t batch, int64_t positions, int64_t width, const Lstm& op,
                 int threads = 1) {
  OpCase c{.name = std::move(name),
           .op = op,
           .inputs = {{{positions, width}}},
           .batch = batch,
           .reference = [op](const auto& inputs, const auto& parameters) {
             return lstm_reference(op, inputs, parameters);
           }};
  c.options.intra_op_threads = threads;
  return c;
}

/// Texts of different lengths, one of which is empty; and one position left out within.
OpCase masked(OpCase c) {
  const int64_t positions = c.inputs[0].shape[0];
  c.inputs.push_back({{positions}});
  c.prepare = [positions](std::vector<Array>& inputs) {
    auto& mask = inputs[1].values;
    for (size_t i = 0; i < mask.size(); ++i) {
      const auto sample = static_cast<int64_t>(i) / positions, t = static_cast<int64_t>(i) % positions;
      mask[i] = sample != 1 && t < positions - sample && !(sample == 0 && t == 1) ? 1 : 0;
    }
  };
  return c;
}

}  // namespace

template <>
std::vector<OpCase> cases_of<Lstm>() {
  return {make_lstm("one_unit", 1, 1, 1, {.units = 1}),
          make_lstm("small", 3, 5, 4, {.units = 3}),
          make_lstm("both_directions", 2, 6, 5, {.units = 7, .bidirectional = true}),
          make_lstm("vectors", 2, 3, 17, {.units = 32}, 2),
          make_lstm("rest", 5, 4, 3, {.units = 19, .bidirectional = true}, 2),
          make_lstm("blocks", 2, 2, 2, {.units = 130}),
          masked(make_lstm("masked", 3, 6, 3, {.units = 5})),
          masked(make_lstm("masked_both", 4, 5, 3, {.units = 18, .bidirectional = true}, 3))};
}

namespace {

TEST(Lstm, MatchesPyTorch) {
  expect_matches_golden(Lstm{.units = 5}, read_golden("lstm", "forward"));
  expect_matches_golden(Lstm{.units = 3, .bidirectional = true}, read_golden("lstm", "both_directions"));
}

TEST(Lstm, LeavesOutPositionsAsPyTorchsPackedSequences) {
  expect_matches_golden(Lstm{.units = 4, .bidirectional = true}, read_golden("lstm", "lengths"));
}

/// Everything that training computes, for comparing bits.
std::vector<std::vector<double>> everything(OpCase c) { return results_of(*make_harness(c)); }

TEST(Lstm, BitsDoNotDependOnThreads) {
  if (tested_device() != device::DeviceKind::cpu) GTEST_SKIP() << "threads of a CPU";
  OpCase one = masked(make_lstm("", 7, 9, 11, {.units = 21, .bidirectional = true}));
  OpCase many = one;
  many.options.intra_op_threads = 4;
  EXPECT_EQ(everything(one), everything(many));
}

TEST(Lstm, ASamplesBitsDoNotDependOnThoseBesideIt) {
  if (tested_device() != device::DeviceKind::cpu) GTEST_SKIP() << "libraries of GPUs promise no such bits";
  const OpCase all = make_lstm("", 5, 7, 6, {.units = 18, .bidirectional = true});
  auto together = make_harness(all);
  together->forward();
  together->backward();
  OpCase one = all;
  one.batch = 1;
  auto alone = make_harness(one);
  for (size_t i = 0; i < alone->parameters.size(); ++i)
    fill(alone->parameters[i], values_of(together->parameters[i]));
  const auto part = [](const Tensor& tensor, int64_t sample, int64_t count) {
    const auto values = values_of(tensor);
    return std::vector<double>(values.begin() + sample * count, values.begin() + (sample + 1) * count);
  };
  for (int64_t sample = 0; sample < all.batch; ++sample) {
    const int64_t in = alone->inputs[0].count(), out = alone->outputs[0].count();
    fill(alone->inputs[0], part(together->inputs[0], sample, in));
    fill(alone->output_gradients[0], part(together->output_gradients[0], sample, out));
    alone->forward();
    EXPECT_EQ(values_of(alone->outputs[0]), part(together->outputs[0], sample, out));
    alone->backward(sample > 0);  // gradients of parameters go on with their chains
    EXPECT_EQ(values_of(alone->input_gradients[0]), part(together->input_gradients[0], sample, in));
  }
  EXPECT_EQ(values_of_all(alone->parameter_gradients), values_of_all(together->parameter_gradients));
}

TEST(Lstm, GatesThatAreFarOutKeepTheirDerivatives) {
  const ops::LstmUnit open = ops::lstm_unit(90, 90, 90, 90, 2);
  EXPECT_EQ(open.cell, 3);
  const ops::LstmUnitGradient gradient =
      ops::lstm_unit_gradient(open.i, open.f, open.g, open.o, open.cell, 2, 1, 0);
  for (const float value : {gradient.i, gradient.f, gradient.g, gradient.o}) EXPECT_EQ(value, 0);
  EXPECT_NEAR(gradient.cell_before, 1 - std::pow(std::tanh(3.0), 2), 1e-6);
  const ops::LstmUnit closed = ops::lstm_unit(-200, -200, -200, -200, 2);
  EXPECT_EQ(closed.cell, 0);
  EXPECT_EQ(closed.hidden, 0);
}

TEST(Lstm, RefusesWhatIsNoSequence) {
  const auto refuses = [](const Lstm& op, std::vector<TensorSpec> inputs) {
    EXPECT_THROW(ops::infer(op, inputs), ConfigError);
  };
  refuses({.units = 0}, {{{4, 3}}});
  refuses({.units = 2}, {{{4}}});
  refuses({.units = 2}, {{{4, 3}, DType::int32}});
  refuses({.units = 2}, {{{4, 3}}, {{3}}});
  refuses({.units = 2}, {{{4, 3}}, {{4}, DType::int32}});
  refuses({.units = 2}, {{{4, 3}}, {{4}}, {{4}}});
  try {
    ops::infer(Lstm{.units = 2}, std::vector<TensorSpec>{{{4, 3}}, {{4}}, {{4}}});
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), Mentions("lstm ... mask ... 3 inputs"));
  }
}

TEST(Lstm, WritesTextOnlyInOneDirectionAndWithoutAMask) {
  const auto positions = [](const Lstm& op, std::vector<TensorSpec> inputs) {
    return ops::infer(op, inputs).positions;
  };
  EXPECT_EQ(positions({.units = 2}, {{{4, 3}}}), ops::PositionUse::previous);
  EXPECT_EQ(positions({.units = 2, .bidirectional = true}, {{{4, 3}}}), ops::PositionUse::any);
  EXPECT_EQ(positions({.units = 2}, {{{4, 3}}, {{4}}}), ops::PositionUse::any);
}

}  // namespace
}  // namespace lockstep::testing
