#include "ops/cpu/loops/loops.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "base/instruction_set.h"
#include "base/vector_math.h"
#include "ops/cpu/loops/attention_head.h"
#include "ops/lstm.h"

namespace lockstep::ops {
namespace {

std::vector<float> random_values(int64_t count, float scale, uint32_t seed) {
  std::mt19937 bits(seed);
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> values(static_cast<size_t>(count));
  std::ranges::generate(values, [&] { return normal(bits); });
  return values;
}

/// Floats of all magnitudes and kinds, and as many that activations meet.
std::vector<float> all_kinds_of_values() {
  std::vector<float> values = random_values(20'000, 3, 1);
  for (uint64_t bits = 0; bits < uint64_t{1} << 32; bits += 200'003)
    values.push_back(std::bit_cast<float>(static_cast<uint32_t>(bits)));
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const float value : {0.0f, -0.0f, kInfinity, -kInfinity, 9.0f, -9.0f, 89.0f, -104.0f})
    values.push_back(value);
  return values;
}

/// Bits, but of what is no number only that.
std::vector<uint32_t> bits_of(std::span<const float> values) {
  std::vector<uint32_t> bits;
  for (const float value : values)
    bits.push_back(std::isnan(value) ? 0x7FC00000u : std::bit_cast<uint32_t>(value));
  return bits;
}

/// What `compute` makes with each instruction set is what it makes with the last.
template <class Compute>
void expect_equal_bits(const std::string& what, const Compute& compute) {
  const std::vector<uint32_t> expected = bits_of(compute(*all_loops().back()));
  for (const Loops* loops : all_loops())
    EXPECT_TRUE(bits_of(compute(*loops)) == expected) << what << " with " << loops->instruction_set;
}

TEST(Loops, AreThoseOfTheFirstInstructionSetThatTheProcessorHas) {
  EXPECT_EQ(&loops(), all_loops().front());
  EXPECT_EQ(all_loops().size(), instruction_sets().size());
  for (size_t i = 0; i < all_loops().size(); ++i)
    EXPECT_EQ(std::string(all_loops()[i]->instruction_set), name_of(instruction_sets()[i]));
}

TEST(Loops, OfActivationsHaveTheBitsOfTheirFormulas) {
  const std::vector<float> x = all_kinds_of_values();
  const std::vector<float> gradient = random_values(static_cast<int64_t>(x.size()), 1, 2);
  const auto check = [&](const char* name, auto loops_of, auto formula) {
    using Formula = decltype(formula);
    std::vector<float> forward(x.size()), backward(x.size());
    for (size_t i = 0; i < x.size(); ++i) {
      forward[i] = Formula::forward(x[i]);
      backward[i] = Formula::backward(gradient[i], x[i]);
    }
    for (const Loops* loops : all_loops())
      // Also fewer than a vector, and a rest.
      for (const int64_t count : {int64_t{1}, int64_t{15}, int64_t{16}, int64_t{19}, std::ssize(x)}) {
        const auto size = static_cast<size_t>(count);
        std::vector<float> y(size + 1, 7.0f), dx(size + 1, 7.0f);
        loops_of(*loops).forward(y.data(), x.data(), count);
        loops_of(*loops).backward(dx.data(), gradient.data(), x.data(), count);
        EXPECT_EQ(y.back(), 7.0f);
        EXPECT_EQ(dx.back(), 7.0f);
        EXPECT_TRUE(bits_of(std::span(y).first(size)) == bits_of(std::span(forward).first(size)))
            << name << " of " << count << " with " << loops->instruction_set;
        EXPECT_TRUE(bits_of(std::span(dx).first(size)) == bits_of(std::span(backward).first(size)))
            << name << " of " << count << " with " << loops->instruction_set;
      }
  };
  check(
      "relu", [](const Loops& loops) { return loops.relu; }, ReluFormula{});
  check(
      "gelu", [](const Loops& loops) { return loops.gelu; }, GeluFormula{});
  check(
      "gelu_erf", [](const Loops& loops) { return loops.gelu_erf; }, GeluErfFormula{});
  check(
      "silu", [](const Loops& loops) { return loops.silu; }, SiluFormula{});
  check(
      "sigmoid", [](const Loops& loops) { return loops.sigmoid; }, SigmoidFormula{});
  check(
      "tanh", [](const Loops& loops) { return loops.tanh; }, TanhFormula{});
}

TEST(Loops, OfLstmsHaveTheBitsOfTheirFormulas) {
  for (const int64_t units : {1, 15, 16, 19, 48}) {
    const auto list = [&](int64_t count, uint32_t seed) { return random_values(count, 2, seed); };
    const auto sums = list(4 * units, 1), before = list(units, 2), of_output = list(units, 3),
               of_hidden = list(units, 4), of_cell = list(units, 5);
    const auto count = static_cast<size_t>(units);
    std::vector<float> expected, expected_back;
    std::vector<LstmUnit> made;
    for (size_t u = 0; u < count; ++u)
      made.push_back(
          lstm_unit(sums[u], sums[count + u], sums[2 * count + u], sums[3 * count + u], before[u]));
    for (float LstmUnit::*part :
         {&LstmUnit::i, &LstmUnit::f, &LstmUnit::g, &LstmUnit::o, &LstmUnit::cell, &LstmUnit::hidden})
      for (const LstmUnit& unit : made) expected.push_back(unit.*part);
    using Gradient = LstmUnitGradient;
    for (float Gradient::*part :
         {&Gradient::i, &Gradient::f, &Gradient::g, &Gradient::o, &Gradient::cell_before})
      for (size_t u = 0; u < count; ++u)
        expected_back.push_back(lstm_unit_gradient(made[u].i, made[u].f, made[u].g, made[u].o, made[u].cell,
                                                   before[u], of_output[u] + of_hidden[u], of_cell[u]).*
                                part);
    for (const Loops* loops : all_loops()) {
      std::vector<float> y = sums, back(5 * count);
      y.resize(6 * count);
      loops->lstm_forward({units, y.data(), before.data(), y.data() + 4 * count, y.data() + 5 * count});
      EXPECT_EQ(bits_of(y), bits_of(expected)) << units << " with " << loops->instruction_set;
      std::copy(of_cell.begin(), of_cell.end(), back.begin() + 4 * units);
      loops->lstm_backward({units, y.data(), y.data() + 4 * count, before.data(), of_output.data(),
                            of_hidden.data(), back.data() + 4 * count, back.data()});
      EXPECT_EQ(bits_of(back), bits_of(expected_back)) << units << " with " << loops->instruction_set;
    }
  }
}

TEST(Loops, OfExponentialsHaveTheBitsOfOne) {
  const std::vector<float> x = all_kinds_of_values();
  std::vector<float> expected(x.size());
  for (size_t i = 0; i < x.size(); ++i) expected[i] = fast_exp(x[i] - 0.25f) * 3.0f;
  for (const Loops* loops : all_loops()) {
    std::vector<float> to(x.size());
    loops->scaled_exponentials(to.data(), x.data(), std::ssize(x), 0.25f, 3.0f);
    EXPECT_TRUE(bits_of(to) == bits_of(expected)) << loops->instruction_set;
  }
}

TEST(Loops, AddSixteenExponentialsSideBySide) {
  for (const int64_t count : {1, 15, 16, 17, 65, 512}) {
    const std::vector<float> x = random_values(count, 2, 3);
    float lanes[16] = {};
    for (int64_t i = 0; i < count; ++i) lanes[i % 16] += fast_exp(x[static_cast<size_t>(i)] - 1.5f);
    for (int width = 8; width > 0; width /= 2)
      for (int lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
    for (const Loops* loops : all_loops())
      EXPECT_EQ(loops->exponential_sum(x.data(), count, 1.5f), lanes[0])
          << count << " with " << loops->instruction_set;
  }
}

TEST(Loops, DrawTheSameDropout) {
  const DropoutMask mask = DropoutMask::of(0.3f, 5, 0x1234567890ABCDEFu, 17);
  for (const int64_t groups : {1, 3, 64, 100})
    expect_equal_bits(std::to_string(groups) + " groups", [&](const Loops& loops) {
      std::vector<float> factors(static_cast<size_t>(4 * groups));
      loops.dropout_factors(mask, 3, 11, groups, factors.data());
      return factors;
    });
}

TEST(Loops, NormalizeRowsToTheSameBits) {
  for (const int64_t channels : {1, 15, 16, 31, 64, 100})
    expect_equal_bits(std::to_string(channels) + " channels", [&](const Loops& loops) {
      const std::vector<float> x = random_values(channels, 2, 7), dy = random_values(channels, 1, 8),
                               weight = random_values(channels, 1, 9), bias = random_values(channels, 1, 10);
      const auto size = static_cast<size_t>(channels);
      std::vector<float> all(2), y(size), plain(size), dx(size), weight_sums = weight, bias_sums = bias;
      loops.layer_norm.moments(x.data(), channels, &all[0], &all[1]);
      const LayerNormRow row{all[0], 1.0f / std::sqrt(all[1] + 1e-5f), weight.data(), bias.data()};
      loops.layer_norm.normalize(y.data(), x.data(), row, channels);
      loops.layer_norm.normalize(plain.data(), x.data(),
                                 {row.mean, row.inverse_deviation, weight.data(), nullptr}, channels);
      loops.layer_norm.input_gradient(dx.data(), dy.data(), x.data(), row, channels);
      loops.layer_norm.add_parameter_gradients(weight_sums.data(), bias_sums.data(), dy.data(), x.data(), row,
                                               channels);
      // As the formulas say, element by element.
      for (size_t c = 0; c < size; ++c) {
        const float n = (x[c] - row.mean) * row.inverse_deviation;
        EXPECT_EQ(y[c], std::fma(n, weight[c], bias[c])) << loops.instruction_set;
        EXPECT_EQ(plain[c], n * weight[c]) << loops.instruction_set;
        EXPECT_EQ(weight_sums[c], std::fma(dy[c], n, weight[c])) << loops.instruction_set;
        EXPECT_EQ(bias_sums[c], bias[c] + dy[c]) << loops.instruction_set;
      }
      for (const auto* part : {&y, &plain, &dx, &weight_sums, &bias_sums})
        all.insert(all.end(), part->begin(), part->end());
      return all;
    });
}

/// `rows` rows of a matrix, of whose columns the lanes have the numbers.
struct Columns {
  int64_t rows, columns;
  ColumnLanes lanes{columns};
  std::vector<float> x = random_values(rows * columns, 2, 11), dy = random_values(rows * columns, 1, 12),
                     other = random_values(rows * columns, 1, 17);

  std::vector<float> of_lanes(uint32_t seed) const {
    const std::vector<float> of_columns = random_values(columns, 1, seed);
    std::vector<float> values;
    for (int64_t lane = 0; lane < lanes.width; ++lane)
      values.push_back(of_columns[static_cast<size_t>(lane % columns)]);
    return values;
  }
};

/// What normalizations and their gradients make: alone, and with the sum and the ReLU behind them.
struct NormalizedColumns {
  NormalizedColumns(const Loops& loops, const Columns& matrix, const std::vector<float>& mean,
                    const std::vector<float>& scale, const std::vector<float>& bias) {
    const ColumnLoops& of = loops.columns;
    const int64_t rows = matrix.rows;
    for (const bool adds : {false, true})
      for (const bool has_relu : {false, true})
        of.normalize(rows, matrix.lanes,
                     {.x = matrix.x.data(),
                      .mean = mean.data(),
                      .scale = scale.data(),
                      .bias = bias.data(),
                      .other = adds ? matrix.other.data() : nullptr,
                      .has_relu = has_relu,
                      .y = list(y, rows * matrix.columns).data()});
    for (const bool has_relu : {false, true}) {
      const NormalizedGradient gradient{.dy = matrix.dy.data(),
                                        .x = matrix.x.data(),
                                        .mean = mean.data(),
                                        .scale = has_relu ? scale.data() : nullptr,
                                        .bias = has_relu ? bias.data() : nullptr};
      of.input_gradient(rows, matrix.lanes, list(dx, rows * matrix.columns).data(), gradient, scale.data(),
                        bias.data(), mean.data());
      float* products = list(this->products, matrix.columns).data();
      of.gradient_sums(rows, matrix.lanes, products, list(sums, matrix.columns).data(), gradient);
    }
  }

  std::vector<float> all() const {
    std::vector<float> numbers;
    for (const auto* lists : {&y, &dx, &products, &sums})
      for (const auto& one : *lists) numbers.insert(numbers.end(), one.begin(), one.end());
    return numbers;
  }

  using Lists = std::vector<std::vector<float>>;
  Lists y, dx, products, sums;

 private:
  /// One more list, with a number behind it, which must stay.
  static std::vector<float>& list(Lists& lists, int64_t size) {
    return lists.emplace_back(static_cast<size_t>(size) + 1, 7.0f);
  }
};

TEST(Loops, OfColumnsHaveEqualBits) {
  for (const int64_t rows : {1, 2, 7, 70})
    for (const int64_t columns : {1, 3, 6, 15, 16, 33, 64, 100}) {
      const Columns matrix{rows, columns};
      const std::vector<float> mean = matrix.of_lanes(13), scale = matrix.of_lanes(14),
                               bias = matrix.of_lanes(15), &x = matrix.x, &dy = matrix.dy;
      const ColumnLanes& lanes = matrix.lanes;
      expect_equal_bits(
          std::to_string(rows) + " rows of " + std::to_string(columns), [&](const Loops& loops) {
            const auto size = static_cast<size_t>(rows * columns), width = static_cast<size_t>(columns);
            // A number behind each result, which must stay.
            std::vector<float> sums(2 * width + 1, 7.0f), chains = random_values(columns, 1, 16);
            const NormalizedColumns normalized(loops, matrix, mean, scale, bias);
            loops.columns.sum(rows, lanes, sums.data(), x.data());
            loops.columns.squared_deviations(rows, lanes, sums.data() + width, x.data(), mean.data());
            std::vector<float> expected_chains = chains;
            loops.add_rows(chains.data(), x.data(), rows, columns);
            // As the formulas say, element by element.
            std::vector<double> plain(2 * width);
            std::vector<double> products[2], gradients[2];  // without a ReLU, with one
            for (const size_t relu : {0, 1}) products[relu].resize(width), gradients[relu].resize(width);
            for (size_t i = 0; i < size; ++i) {
              const size_t c = i % width;
              const float deviation = x[i] - mean[c], y = std::fma(deviation, scale[c], bias[c]);
              const float sum = y + matrix.other[i];
              const float expected[] = {y, std::max(y, 0.0f), sum, std::max(sum, 0.0f)};
              for (size_t kind = 0; kind < 4; ++kind)
                EXPECT_EQ(normalized.y[kind][i], expected[kind]) << loops.instruction_set << kind;
              for (const size_t relu : {0, 1}) {
                const float gradient = relu == 1 && y <= 0 ? 0.0f : dy[i];
                EXPECT_EQ(normalized.dx[relu][i],
                          std::fma(scale[c], gradient, std::fma(bias[c], deviation, mean[c])))
                    << loops.instruction_set << relu;
                products[relu][c] += double{gradient} * deviation;
                gradients[relu][c] += double{gradient};
              }
              plain[c] += x[i];
              plain[width + c] += double{deviation} * deviation;
              expected_chains[c] += x[i];
            }
            EXPECT_EQ(chains, expected_chains) << loops.instruction_set;
            for (size_t c = 0; c < plain.size(); ++c)
              EXPECT_NEAR(sums[c], plain[c], 1e-4 * static_cast<double>(rows)) << loops.instruction_set;
            for (const size_t relu : {0, 1})
              for (size_t c = 0; c < width; ++c) {
                EXPECT_NEAR(normalized.products[relu][c], products[relu][c],
                            1e-4 * static_cast<double>(rows));
                EXPECT_NEAR(normalized.sums[relu][c], gradients[relu][c], 1e-4 * static_cast<double>(rows));
              }
            EXPECT_EQ(sums.back(), 7.0f) << loops.instruction_set;
            for (const auto* lists : {&normalized.y, &normalized.dx, &normalized.products, &normalized.sums})
              for (const auto& list : *lists) EXPECT_EQ(list.back(), 7.0f) << loops.instruction_set;
            std::vector<float> all = normalized.all();
            for (const auto* part : {&sums, &chains}) all.insert(all.end(), part->begin(), part->end());
            return all;
          });
    }
}

/// Between these values, others that instruction sets may treat in their own ways. `turn`: other ones meet in
/// another list. Without what is not finite, most results are numbers.
std::vector<float> with_special_values(std::vector<float> values, size_t turn, bool finite) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kSpecial[] = {
      0.0f,  -0.0f,  1e-40f,    -1e-40f,    1e-30f,
      3e38f, -3e38f, kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN()};
  const size_t kinds = finite ? 5 : std::size(kSpecial);
  for (size_t i = turn % 3, n = turn; i < values.size(); i += 3, n += 1 + turn)
    values[i] = kSpecial[(n + i / 30) % kinds];
  return values;
}

TEST(Loops, OfColumnsAndRowsHaveEqualBitsWhateverTheNumbersAre) {
  for (const bool finite : {true, false})
    for (const int64_t rows : {1, 2, 7, 70})
      for (const int64_t columns : {1, 3, 16, 33, 100}) {
        Columns matrix{rows, columns};
        matrix.x = with_special_values(matrix.x, 0, finite);
        matrix.dy = with_special_values(matrix.dy, 1, finite);
        const std::vector<float> mean = matrix.of_lanes(13), scale = matrix.of_lanes(14), &x = matrix.x;
        expect_equal_bits(
            std::to_string(rows) + " rows of " + std::to_string(columns), [&](const Loops& loops) {
              const auto width = static_cast<size_t>(columns);
              std::vector<float> sums(2 * width), chains(width);
              const ColumnLoops& of = loops.columns;
              const std::vector<float> normalized = NormalizedColumns(loops, matrix, mean, scale, mean).all();
              of.sum(rows, matrix.lanes, sums.data(), x.data());
              of.squared_deviations(rows, matrix.lanes, sums.data() + width, x.data(), mean.data());
              loops.add_rows(chains.data(), x.data(), rows, columns);
              std::vector<float> all{loops.row_maximum(x.data(), rows * columns),
                                     loops.row_sum(x.data(), rows * columns)};
              for (const std::vector<float>* part :
                   std::initializer_list<const std::vector<float>*>{&normalized, &sums, &chains})
                all.insert(all.end(), part->begin(), part->end());
              return all;
            });
      }
}

TEST(Loops, OfRowsHaveEqualBits) {
  for (const int64_t count : {1, 15, 16, 17, 65, 512})
    expect_equal_bits(std::to_string(count), [&](const Loops& loops) {
      const std::vector<float> row = random_values(count, 2, 17);
      EXPECT_EQ(loops.row_maximum(row.data(), count), *std::ranges::max_element(row));
      return std::vector{loops.row_maximum(row.data(), count), loops.row_sum(row.data(), count)};
    });
}

/// One head of a batch: output, log-sum-exps and the gradient of the input, one after the other.
std::vector<float> attention(const Loops& loops, int64_t positions, int64_t head_size, bool drops,
                             bool causal = true, const int32_t* documents = nullptr) {
  AttentionContext context{.sizes = {.batch = 1,
                                     .positions = positions,
                                     .heads = 2,
                                     .key_heads = 2,
                                     .head_size = head_size,
                                     .causal = causal},
                           .drops = drops};
  context.mask = DropoutMask::of(0.2f, 3, 99, 4);
  const int64_t channels = context.sizes.channels(), head = 1, place = head * head_size;
  const std::vector<float> qkv = random_values(positions * 3 * channels, 1, 6);
  const std::vector<float> output_gradient = random_values(positions * channels, 1, 7);
  std::vector<float> output(static_cast<size_t>(positions * channels)),
      log_sum_exp(static_cast<size_t>(positions)), input_gradient(qkv.size());
  const auto view = [&](int64_t part) {
    return HeadView{qkv.data() + part * channels + place, 3 * channels};
  };
  // Whatever lies in the workspace is no part of the result.
  std::vector<float> workspace(static_cast<size_t>(context.sizes.forward_workspace()),
                               std::numeric_limits<float>::quiet_NaN());
  loops.attention_forward({.context = context,
                           .head = head,
                           .sample = 8,
                           .query = view(0),
                           .key = view(1),
                           .value = view(2),
                           .documents = documents,
                           .output = output.data() + place,
                           .log_sum_exp = log_sum_exp.data(),
                           .workspace = workspace.data()});
  workspace.assign(static_cast<size_t>(context.sizes.backward_workspace()),
                   std::numeric_limits<float>::quiet_NaN());
  loops.attention_backward({.context = context,
                            .head = head,
                            .sample = 8,
                            .query = view(0),
                            .key = view(1),
                            .value = view(2),
                            .output = {output.data() + place, channels},
                            .output_gradient = {output_gradient.data() + place, channels},
                            .documents = documents,
                            .log_sum_exp = log_sum_exp.data(),
                            .query_gradient = input_gradient.data() + place,
                            .key_gradient = input_gradient.data() + channels + place,
                            .value_gradient = input_gradient.data() + 2 * channels + place,
                            .adds_keys = !causal,
                            .workspace = workspace.data()});
  std::vector<float> all = output;
  all.insert(all.end(), log_sum_exp.begin(), log_sum_exp.end());
  all.insert(all.end(), input_gradient.begin(), input_gradient.end());
  return all;
}

TEST(Loops, OfAttentionHaveEqualBits) {
  for (const int64_t positions : {1, 7, 16, 64, 70, 133})
    for (const int64_t head_size : {8, 16, 40, 64})
      for (const bool drops : {false, true}) {
        for (const bool causal : {true, false})
          expect_equal_bits(
              std::to_string(positions) + " positions of " + std::to_string(head_size),
              [&](const Loops& loops) { return attention(loops, positions, head_size, drops, causal); });
        EXPECT_THAT(attention(loops(), positions, head_size, drops),
                    ::testing::Each(::testing::Not(::testing::IsNan())));
      }
}

TEST(Loops, OfAttentionOverDocumentsHaveEqualBits) {
  std::vector<int32_t> documents(133);
  for (size_t t = 0; t < documents.size(); ++t)
    documents[t] = t % 11 == 5 ? -1 : t < 20 ? 0 : t < 40 ? 7 : t < 110 ? 8 : 9;
  std::fill(documents.begin() + 64, documents.begin() + 128, 3);
  for (const int64_t positions : {7, 64, 133})
    for (const bool causal : {true, false})
      for (const bool drops : {false, true}) {
        const auto results = [&](const Loops& loops) {
          return attention(loops, positions, 16, drops, causal, documents.data());
        };
        expect_equal_bits(std::to_string(positions) + " positions", results);
        EXPECT_THAT(results(loops()), ::testing::Each(::testing::Not(::testing::IsNan())));
      }
}

TEST(Loops, OfAttentionPassOverABlockOfAnotherDocument) {
  // A document that goes on behind a whole block of another.
  std::vector<int32_t> documents(148, 1);
  std::fill(documents.begin() + 64, documents.begin() + 128, 0);
  for (const bool causal : {true, false}) {
    const auto results = [&](const Loops& loops) {
      return attention(loops, 148, 16, false, causal, documents.data());
    };
    expect_equal_bits("148 positions", results);
    const std::vector<float> once = results(loops());
    EXPECT_THAT(once, ::testing::Each(::testing::Not(::testing::IsNan())));
    // The block between sees itself alone, as if it had a number between those around it.
    std::vector<int32_t> rising(148, 2);
    std::fill(rising.begin(), rising.begin() + 64, 0);
    std::fill(rising.begin() + 64, rising.begin() + 128, 1);
    const std::vector<float> apart = attention(loops(), 148, 16, false, causal, rising.data());
    const auto output = [](const std::vector<float>& all, int64_t first, int64_t end) {
      return std::vector<float>(all.begin() + first * 32, all.begin() + end * 32);
    };
    EXPECT_EQ(output(once, 64, 128), output(apart, 64, 128));
    EXPECT_NE(output(once, 128, 148), output(apart, 128, 148)) << "they see the first block, too";
  }
}

}  // namespace
}  // namespace lockstep::ops
