#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "lockstep/error.h"
#include "ops/op_cases.h"
#include "ops/rotary.h"

namespace lockstep::testing {
namespace {

TEST(RotaryEmbedding, TurnsPairsByTheirPosition) {
  // Position 1, frequencies 1 and 1/2: one head of four elements, and one that stays as it is.
  OpHarness harness(RotaryEmbedding{.head_size = 4, .heads = 1, .theta = 4}, {{{2, 8}}}, {.batch = 1});
  fill(harness.inputs[0], {1, 2, 3, 4, 5, 6, 7, 8, 1, 0, 0, 2, 5, 6, 7, 8});
  fill(harness.output_gradients[0], {1, 2, 3, 4, 5, 6, 7, 8, 1, 0, 0, 2, 5, 6, 7, 8});
  harness.forward();
  harness.backward();
  const double cos = std::cos(1.0), sin = std::sin(1.0), half_cos = std::cos(0.5), half_sin = std::sin(0.5);
  expect_near(values_of(harness.outputs[0]),
              {1, 2, 3, 4, 5, 6, 7, 8, cos, -2 * half_sin, sin, 2 * half_cos, 5, 6, 7, 8}, 1e-6, "turned");
  expect_near(values_of(harness.input_gradients[0]),
              {1, 2, 3, 4, 5, 6, 7, 8, cos, 2 * half_sin, -sin, 2 * half_cos, 5, 6, 7, 8}, 1e-6, "back");
}

TEST(RotaryEmbedding, FarPositionsAreAsExactAsNearOnes) {
  for (const int64_t position : {int64_t{0}, int64_t{1}, int64_t{131071}, int64_t{1} << 30}) {
    const auto rotation = ops::Rotation::of(
        position, 3, ops::RotaryFrequencies(RotaryEmbedding{.head_size = 64, .theta = 500000}));
    const long double angle = static_cast<long double>(position) * std::pow(500000.0L, -2.0L * 3 / 64);
    EXPECT_NEAR(rotation.cosine, static_cast<double>(std::cos(angle)), 1e-6) << position;
    EXPECT_NEAR(rotation.sine, static_cast<double>(std::sin(angle)), 1e-6) << position;
  }
}

TEST(RotaryEmbedding, ScalesSlowPairsAndPartOfThoseBetween) {
  // Of 16 pairs with theta 2^16, pair i turns 1024 / 2^i times within 2 pi 1024 positions.
  const ops::RotaryFrequencies scaled(RotaryEmbedding{.head_size = 32,
                                                      .theta = 65536,
                                                      .scaling_factor = 8,
                                                      .low_frequency_factor = 1,
                                                      .high_frequency_factor = 4,
                                                      .original_positions = 6434}),
      plain(RotaryEmbedding{.head_size = 32, .theta = 65536});
  for (int64_t pair = 0; pair < 16; ++pair) {
    const double turns = 6434 * plain.turns_by_position(pair),
                 factor = scaled.turns_by_position(pair) / plain.turns_by_position(pair);
    const double expected = turns >= 4 ? 1 : turns <= 1 ? 0.125 : 0.125 + 0.875 * (turns - 1) / 3;
    EXPECT_NEAR(factor, expected, 1e-12) << pair;
  }
  EXPECT_EQ(scaled.turns_by_position(2), plain.turns_by_position(2));
  EXPECT_LT(scaled.turns_by_position(9), plain.turns_by_position(9));
}

TEST(RotaryEmbedding, RefusesWhatHasNoPairsOrHeads) {
  const auto refuses = [](const RotaryEmbedding& op, Shape shape) {
    EXPECT_THROW(ops::infer(op, std::vector<TensorSpec>{{shape}}), ConfigError) << shape.to_string();
  };
  refuses({.head_size = 0}, {4, 12});
  refuses({.head_size = 3}, {4, 12});
  refuses({.head_size = 8}, {4, 12});
  refuses({.head_size = 4}, {12});
  refuses({.head_size = 4, .heads = 4}, {4, 12});
  refuses({.head_size = 4, .heads = -1}, {4, 12});
  refuses({.head_size = 4, .theta = 0}, {4, 12});
  refuses({.head_size = 4, .scaling_factor = -1}, {4, 12});
  refuses({.head_size = 4, .scaling_factor = 8, .low_frequency_factor = 4}, {4, 12});
  refuses({.head_size = 4, .scaling_factor = 8, .original_positions = 0}, {4, 12});
}

TEST(RotaryEmbedding, MatchesPyTorch) {
  expect_matches_golden(RotaryEmbedding{.head_size = 6, .heads = 2},
                        read_golden("rotary_embedding", "two_of_three_heads"));
  expect_matches_golden(RotaryEmbedding{.head_size = 16,
                                        .theta = 500,
                                        .scaling_factor = 8,
                                        .low_frequency_factor = 1,
                                        .high_frequency_factor = 4,
                                        .original_positions = 64},
                        read_golden("rotary_embedding", "scaled_as_in_llama_3"));
}

}  // namespace

template <>
std::vector<OpCase> cases_of<RotaryEmbedding>() {
  const auto make = [](std::string name, int64_t positions, int64_t all, RotaryEmbedding op, int threads) {
    OpCase c{.name = std::move(name), .op = op, .inputs = {{{positions, all * op.head_size}}}, .batch = 3};
    c.options.intra_op_threads = threads;
    c.reference = [=](const std::vector<Array>& inputs, const std::vector<Array>&) {
      Array y = inputs[0];
      const auto width = static_cast<size_t>(all * op.head_size),
                 half = static_cast<size_t>(op.head_size / 2);
      for (size_t row = 0; row < y.values.size() / width; ++row)
        for (size_t head = 0; head < static_cast<size_t>(op.heads == 0 ? all : op.heads); ++head)
          for (size_t i = 0; i < half; ++i) {
            const double plain =
                std::pow(static_cast<double>(op.theta), -static_cast<double>(i) / static_cast<double>(half));
            // Scaled frequencies have tests of their own above.
            const double frequency =
                op.scaling_factor == 0
                    ? plain
                    : ops::RotaryFrequencies(op).turns_by_position(static_cast<int64_t>(i)) *
                          ops::RotaryFrequencies::kTurn;
            const double angle = static_cast<double>(row % static_cast<size_t>(positions)) * frequency;
            const size_t at = row * width + head * 2 * half + i;
            const double a = y.values[at], b = y.values[at + half];
            y.values[at] = a * std::cos(angle) - b * std::sin(angle);
            y.values[at + half] = b * std::cos(angle) + a * std::sin(angle);
          }
      return std::vector<Array>{y};
    };
    return c;
  };
  return {make("pair", 1, 1, {.head_size = 2}, 1), make("all_heads", 7, 3, {.head_size = 6}, 1),
          make("some_heads", 37, 4, {.head_size = 10, .heads = 3}, 2),
          make("wide", 5, 3, {.head_size = 128, .heads = 2, .theta = 500000}, 1),
          make("scaled", 37, 2, {.head_size = 12, .scaling_factor = 8, .original_positions = 64}, 1)};
}

}  // namespace lockstep::testing
