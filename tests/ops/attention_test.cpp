#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "base/philox.h"
#include "lockstep/error.h"
#include "ops/attention_cases.h"
#include "ops/op_cases.h"

namespace lockstep::testing {
namespace {

constexpr int64_t kFirstSample = 100;
constexpr uint32_t kAttentionOpNumber = 9;
const ops::StepConstants kAttentionConstants{.step = 4, .seed = 77};

/// The contract of the random stream, written out: attention_factor of one weight.
double attention_factor(float rate, int64_t sample, int64_t positions, int64_t head, int64_t query,
                        int64_t key) {
  const int64_t group = (head * positions + query) * ((positions + 3) / 4) + key / 4;
  const Philox::Block block =
      Philox::generate({{static_cast<uint32_t>(group), static_cast<uint32_t>(kFirstSample + sample), 4,
                         kAttentionOpNumber * 256 + 2}},
                       77);
  return Philox::uniform(block.word[key % 4]) < rate ? 0 : 1.0f / (1.0f - rate);
}

/// Whether positions of a sample see each other, by the optional inputs.
bool of_one_document(const std::vector<Array>& inputs, int64_t sample, int64_t query, int64_t key) {
  for (size_t i = 1; i < inputs.size(); ++i) {
    const auto at = [&](int64_t t) {
      return inputs[i].values[static_cast<size_t>(sample * inputs[i].shape[1] + t)];
    };
    if (inputs[i].dtype == DType::int32 ? at(query) < 0 || at(query) != at(key)
                                        : at(query) == 0 || at(key) == 0)
      return false;
  }
  return true;
}

Array reference_attention(const std::vector<Array>& inputs, const Attention& op) {
  const Array& qkv = inputs[0];
  const int64_t heads = op.heads, key_heads = op.key_value_heads == 0 ? heads : op.key_value_heads;
  const int64_t batch = qkv.shape[0], positions = qkv.shape[1], width = qkv.shape[2],
                size = width / (heads + 2 * key_heads), channels = heads * size;
  const float rate = op.dropout;
  Array y{{batch, positions, channels},
          std::vector<double>(static_cast<size_t>(batch * positions * channels))};
  for (int64_t b = 0; b < batch; ++b)
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t i = 0; i < positions; ++i) {
        const auto at = [&](int64_t part, int64_t t) {
          const int64_t key_head = h / (heads / key_heads);
          const int64_t column = part == 0 ? h : heads + (part - 1) * key_heads + key_head;
          return qkv.values.data() + (b * positions + t) * width + column * size;
        };
        std::vector<double> weights;
        double sum = 0;
        const int64_t seen = op.causal ? i + 1 : positions;
        for (int64_t j = 0; j < seen; ++j) {
          double score = 0;
          const double *query = at(0, i), *key = at(1, j);
          for (int64_t d = 0; d < size; ++d) score += query[d] * key[d];
          weights.push_back(
              of_one_document(inputs, b, i, j) ? std::exp(score / std::sqrt(static_cast<double>(size))) : 0);
          sum += weights.back();
        }
        if (sum == 0) continue;
        double* to = y.values.data() + (b * positions + i) * channels + h * size;
        for (int64_t j = 0; j < seen; ++j) {
          if (weights[static_cast<size_t>(j)] == 0) continue;
          const double share = weights[static_cast<size_t>(j)] / sum *
                               (rate > 0 ? attention_factor(rate, b, positions, h, i, j) : 1);
          const double* value = at(2, j);
          for (int64_t d = 0; d < size; ++d) to[d] += share * value[d];
        }
      }
  return y;
}

}  // namespace

OpCase attention_case(std::string name, int64_t batch, int64_t positions, const Attention& op,
                      int64_t head_size, int threads) {
  OpCase c{.name = std::move(name), .op = op};
  const int64_t key_heads = op.key_value_heads == 0 ? op.heads : op.key_value_heads;
  c.inputs = {{{positions, (op.heads + 2 * key_heads) * head_size}}};
  c.batch = batch;
  c.options = {.intra_op_threads = threads, .op_number = kAttentionOpNumber};
  c.constants = kAttentionConstants;
  c.first_sample = kFirstSample;
  c.reference = [=](const std::vector<Array>& inputs, const std::vector<Array>&) {
    return std::vector<Array>{reference_attention(inputs, op)};
  };
  // Larger queries and keys, so that the weights are far from uniform.
  c.prepare = [](std::vector<Array>& inputs) {
    for (double& value : inputs[0].values) value *= 2;
  };
  return c;
}

OpCase attention_case(std::string name, int64_t batch, int64_t positions, int64_t heads, int64_t head_size,
                      float dropout, int threads) {
  return attention_case(std::move(name), batch, positions, Attention{.heads = heads, .dropout = dropout},
                        head_size, threads);
}

OpCase attention_case(const AttentionForm& form, int64_t batch, int64_t positions, int64_t heads,
                      float dropout) {
  OpCase c = attention_case("", batch, positions, heads, form.head_size, dropout);
  c.options.compute = form.dtype;
  return c;
}

/// Positions of four documents, the second of which is long; a mask without the last positions and one more;
/// the second sample has no position that counts.
OpCase marked_case(OpCase c, Marks marks) {
  const int64_t positions = c.inputs[0].shape[0];
  if (marks != Marks::documents) c.inputs.push_back({{positions}});
  if (marks != Marks::mask) c.inputs.push_back({{positions}, DType::int32});
  c.prepare = [positions](std::vector<Array>& inputs) {
    for (double& value : inputs[0].values) value *= 2;
    for (size_t i = 1; i < inputs.size(); ++i)
      for (int64_t n = 0; n < std::ssize(inputs[i].values); ++n) {
        const int64_t sample = n / positions, t = n % positions;
        const bool is_mask = inputs[i].dtype == DType::float32,
                   is_left_out = sample == 1 || t == positions / 3;
        const int64_t document = 4 * t < positions       ? 0
                                 : 4 * t < 3 * positions ? 3
                                 : t < positions - 1     ? 4
                                                         : -7;
        inputs[i].values[static_cast<size_t>(n)] =
            is_mask ? (is_left_out || t >= positions - positions / 5 ? 0 : 0.5)
                    : static_cast<double>(document);
      }
  };
  return c;
}

namespace {

/// A document of three blocks' length of which the middle block belongs to another one.
OpCase returning_document(OpCase c) {
  const int64_t positions = c.inputs[0].shape[0];
  c.inputs.push_back({{positions}, DType::int32});
  c.prepare = [](std::vector<Array>& inputs) {
    for (double& value : inputs[0].values) value *= 2;
    for (size_t n = 0; n < inputs[1].values.size(); ++n) inputs[1].values[n] = n / 64 == 1 ? 0 : 1;
  };
  return c;
}

TEST(Attention, AgreesWithValuesWorkedOutByHand) {
  // One head of one channel: the second query meets scores 0 and ln 3, weights 1/4 and 3/4.
  const double log3 = std::log(3.0);
  OpHarness harness(Attention{.heads = 1}, {{{2, 3}}}, {.batch = 1});
  fill(harness.inputs[0], {5, 0, 4, 1, log3, 8});  // query, key, value of position 0, then of position 1
  fill(harness.output_gradients[0], {0, 1});
  harness.forward();
  expect_near(values_of(harness.outputs[0]), {4, 7}, 1e-6, "output");
  expect_near(values_of(harness.auxiliary[0]), {0, std::log(4.0)}, 1e-6, "log-sum-exp");
  harness.backward();
  // dP = (4, 8), D = 7: dS = (1/4 * -3, 3/4 * 1).
  expect_near(values_of(harness.input_gradients[0]), {0, -0.75, 0.25, 0.75 * log3, 0.75, 0.75}, 1e-6,
              "gradient");
}

TEST(Attention, LaterPositionsChangeNothingBefore) {
  const int64_t positions = 150, changed = 97;
  for (const AttentionForm& form : kAttentionForms) {
    const OpCase c = attention_case(form, 1, positions, 2);
    auto original = make_harness(c), other = make_harness(c);
    auto values = values_of(other->inputs[0]);
    for (size_t i = static_cast<size_t>(changed * 6 * form.head_size); i < values.size(); ++i) values[i] += 1;
    fill(other->inputs[0], values);
    original->forward();
    other->forward();
    const auto a = values_of(original->outputs[0]), b = values_of(other->outputs[0]);
    EXPECT_TRUE(std::equal(a.begin(), a.begin() + changed * 2 * form.head_size, b.begin())) << form.head_size;
    EXPECT_NE(a, b);
  }
}

TEST(Attention, NotANumberReachesEveryPositionThatSeesIt) {
  const int64_t positions = 70, bad = 20;
  for (const AttentionForm& form : kAttentionForms) {
    auto harness = make_harness(attention_case(form, 1, positions, 1));
    auto values = values_of(harness->inputs[0]);
    values[static_cast<size_t>(bad * 3 * form.head_size + form.head_size + 1)] = std::nan("");  // in its key
    fill(harness->inputs[0], values);
    harness->forward();
    const auto y = values_of(harness->outputs[0]);
    for (int64_t t = 0; t < positions; ++t)
      EXPECT_EQ(std::isnan(y[static_cast<size_t>(t * form.head_size)]), t >= bad)
          << "position " << t << ", head size " << form.head_size;
  }
}

TEST(Attention, LargeScoresDoNotOverflow) {
  OpHarness harness(Attention{.heads = 1}, {{{2, 3}}}, {.batch = 1});
  fill(harness.inputs[0], {100, 100, 4, 100, 101, 8});  // scores 10,000 and 10,100: the second takes all
  harness.forward();
  EXPECT_EQ(values_of(harness.outputs[0]), (std::vector<double>{4, 8}));
}

TEST(Attention, LargeScoresOfWideHeadsDoNotOverflow) {
  for (const auto dtype : {DType::float32, DType::bfloat16, DType::float16})
    for (const int64_t size : {32, 64, 128}) {
      OpHarness harness(Attention{.heads = 1}, {{{2, 3 * size}}}, {.batch = 1, .compute = dtype});
      std::vector<double> values(static_cast<size_t>(6 * size)), expected;
      const auto set = [&](int64_t position, int64_t part, double first, double others) {
        for (int64_t d = 0; d < size; ++d)
          values[static_cast<size_t>((3 * position + part) * size + d)] = d == 0 ? first : others;
      };
      // The second query meets scores 200 * 800 and 200 * 832, over 12 at most: the second takes all.
      for (const int64_t position : {0, 1}) {
        set(position, 0, 200, 0);
        set(position, 1, position == 0 ? 800 : 832, 0);
        set(position, 2, position == 0 ? 4 : 8, -1);
      }
      fill(harness.inputs[0], values);
      harness.forward();
      expected.assign(static_cast<size_t>(2 * size), -1);
      expected[0] = 4;
      expected[static_cast<size_t>(size)] = 8;
      expect_near(values_of(harness.outputs[0]), expected, dtype == DType::float32 ? 1e-6 : 1e-3,
                  std::string(name_of(dtype)) + " output");
    }
}

TEST(Attention, ThreadsDoNotChangeTheBits) {
  std::vector<std::vector<double>> outputs, gradients;
  for (const int threads : {1, 2, 4, 11}) {
    auto harness = make_harness(attention_case("", 3, 75, 2, 20, 0.2f, threads));
    harness->forward();
    harness->backward();
    outputs.push_back(values_of(harness->outputs[0]));
    gradients.push_back(values_of(harness->input_gradients[0]));
    EXPECT_EQ(outputs.back(), outputs.front());
    EXPECT_EQ(gradients.back(), gradients.front());
  }
}

TEST(Attention, BatchOfFourEqualsTwoBatchesOfTwo) {
  for (const AttentionForm& form : kAttentionForms) {
    const auto run = [&](int64_t batch, int64_t first_sample, const std::vector<double>& input) {
      auto harness = make_harness(attention_case(form, batch, 33, 2, 0.3f));
      harness->first_sample = first_sample;
      fill(harness->inputs[0], input);
      harness->forward();
      return values_of(harness->outputs[0]);
    };
    const int64_t sample = 33 * 6 * form.head_size;
    const auto input = random_values(4 * sample, 5);
    const auto middle = input.begin() + 2 * sample;
    auto halves = run(2, 0, {input.begin(), middle});
    const auto second = run(2, 2, {middle, input.end()});
    halves.insert(halves.end(), second.begin(), second.end());
    EXPECT_EQ(run(4, 0, input), halves) << form.head_size;
  }
}

TEST(Attention, EvaluationDropsNothing) {
  OpCase with = attention_case("", 1, 20, 1, 8, 0.5f), without = attention_case("", 1, 20, 1, 8);
  with.options.training = false;
  auto a = make_harness(with), b = make_harness(without);
  a->forward();
  b->forward();
  EXPECT_EQ(values_of(a->outputs[0]), values_of(b->outputs[0]));
}

TEST(Attention, MemoryGrowsNoFasterThanTheSequence) {
  const Attention op{.heads = 1};
  const std::vector<TensorSpec> shorter{{{4096, 3 * 64}}}, longer{{{8192, 3 * 64}}};
  const ops::OpSignature signature = ops::infer(op, longer);
  ASSERT_EQ(signature.auxiliary.size(), 1u);
  EXPECT_EQ(signature.auxiliary[0].shape, (Shape{1, 8192}));
  const auto small = ops::make_kernel(device::DeviceKind::cpu, op, shorter, {.batch = 1});
  const auto large = ops::make_kernel(device::DeviceKind::cpu, op, longer, {.batch = 1});
  for (const auto phase : {ops::KernelPhase::forward, ops::KernelPhase::backward_input})
    EXPECT_LE(large->workspace_bytes(phase), 2 * small->workspace_bytes(phase));
}

TEST(Attention, RefusesWhatDoesNotDivideIntoHeads) {
  const auto refuses = [](const Attention& op, Shape shape) {
    EXPECT_THROW(ops::infer(op, std::vector<TensorSpec>{{shape}}), ConfigError) << shape.to_string();
  };
  refuses({.heads = 0}, {4, 12});
  refuses({.heads = 3}, {4, 12});
  refuses({.heads = 1}, {4, 4});
  refuses({.heads = 1}, {12});
  refuses({.heads = 1, .dropout = 1}, {4, 12});
  refuses({.heads = 4, .key_value_heads = 3}, {4, 40});
  refuses({.heads = 4, .key_value_heads = 8}, {4, 40});
  refuses({.heads = 4, .key_value_heads = -1}, {4, 40});
  refuses({.heads = 4, .key_value_heads = 2}, {4, 12});
  EXPECT_EQ(ops::infer(Attention{.heads = 4, .key_value_heads = 2}, std::vector<TensorSpec>{{{5, 24}}})
                .outputs[0]
                .shape,
            (Shape{5, 12}));
  // 2^16 positions squared are 2^30 groups of four; eight heads exceed the stream's 2^32 numbers.
  refuses({.heads = 8, .dropout = 0.1f}, {65536, 24});
  EXPECT_NO_THROW(ops::infer(Attention{.heads = 8}, std::vector<TensorSpec>{{{65536, 24}}}));
}

TEST(Attention, MatchesPyTorch) {
  expect_matches_golden(Attention{.heads = 2}, read_golden("attention", "two_heads"));
  expect_matches_golden(Attention{.heads = 1}, read_golden("attention", "two_blocks"));
  expect_matches_golden(Attention{.heads = 4, .key_value_heads = 2}, read_golden("attention", "grouped"));
  expect_matches_golden(Attention{.heads = 2, .causal = false}, read_golden("attention", "not_causal"));
}

}  // namespace

template <>
std::vector<OpCase> cases_of<Attention>() {
  OpCase large = attention_case("large_scores", 1, 65, 1, 64);
  large.prepare = [](std::vector<Array>& inputs) {
    for (double& value : inputs[0].values) value *= 4;
  };
  return {
      large,
      attention_case("one_position", 2, 1, 2, 3),
      attention_case("one_channel", 1, 5, 1, 1),
      attention_case("odd", 2, 7, 3, 5),
      attention_case("whole_block", 2, 64, 2, 16),
      attention_case("more_than_a_block", 1, 67, 2, 17),
      attention_case("three_blocks", 1, 131, 1, 32, 0, 2),
      attention_case("dropout", 2, 13, 2, 4, 0.25f),
      attention_case("dropout_over_blocks", 1, 70, 1, 8, 0.5f, 2),
      attention_case("one_position_of_64", 2, 1, 2, 64),
      attention_case("few_positions_of_64", 1, 17, 2, 64),
      attention_case("some_positions_of_64", 1, 130, 1, 64),
      attention_case("some_positions_of_128", 1, 130, 1, 128),
      attention_case("wide_heads", 1, 19, 1, 160),
      attention_case("dropout_of_32", 2, 65, 2, 32, 0.25f),
      attention_case("dropout_of_64", 1, 130, 1, 64, 0.25f),
      attention_case("dropout_of_128", 1, 67, 1, 128, 0.5f),
      attention_case("grouped", 2, 7, {.heads = 4, .key_value_heads = 2}, 5),
      attention_case("grouped_over_blocks", 2, 67, {.heads = 3, .dropout = 0.25f, .key_value_heads = 1}, 8,
                     2),
      attention_case("grouped_of_64", 2, 130, {.heads = 4, .key_value_heads = 2}, 64),
      attention_case("grouped_of_128", 1, 67, {.heads = 4, .dropout = 0.25f, .key_value_heads = 1}, 128),
      attention_case("not_causal", 2, 7, {.heads = 2, .causal = false}, 5),
      attention_case("not_causal_one_position", 1, 1, {.heads = 1, .causal = false}, 4),
      attention_case("not_causal_over_blocks", 1, 131, {.heads = 2, .dropout = 0.25f, .causal = false}, 16,
                     2),
      attention_case("not_causal_of_32", 1, 64, {.heads = 1, .causal = false}, 32),
      attention_case("not_causal_of_64", 1, 150, {.heads = 2, .key_value_heads = 1, .causal = false}, 64),
      attention_case("not_causal_of_128", 1, 67, {.heads = 2, .dropout = 0.5f, .causal = false}, 128),
      marked_case(attention_case("mask", 2, 9, {.heads = 2}, 5), Marks::mask),
      marked_case(attention_case("mask_not_causal", 2, 70, {.heads = 2, .causal = false}, 8), Marks::mask),
      marked_case(attention_case("documents", 2, 140, {.heads = 2, .key_value_heads = 1}, 5, 2),
                  Marks::documents),
      marked_case(attention_case("documents_not_causal", 2, 150, {.heads = 1, .causal = false}, 8),
                  Marks::documents),
      returning_document(attention_case("returning_document", 1, 148, {.heads = 1}, 8)),
      returning_document(
          attention_case("returning_document_not_causal", 1, 140, {.heads = 1, .causal = false}, 8)),
      marked_case(attention_case("marks", 2, 67, {.heads = 3, .dropout = 0.25f, .key_value_heads = 1}, 8),
                  Marks::both),
      marked_case(attention_case("marks_of_64", 2, 90, {.heads = 2, .key_value_heads = 1}, 64), Marks::both),
      marked_case(attention_case("marks_of_128", 2, 40, {.heads = 1, .dropout = 0.25f, .causal = false}, 128),
                  Marks::both),
      marked_case(attention_case("marks_of_wide_heads", 1, 40, {.heads = 1}, 160), Marks::both)};
}

}  // namespace lockstep::testing
