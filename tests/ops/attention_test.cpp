#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "base/philox.h"
#include "lockstep/error.h"
#include "ops/op_cases.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

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
          for (int64_t d = 0; d < size; ++d) score += at(0, i)[d] * at(1, j)[d];
          weights.push_back(
              of_one_document(inputs, b, i, j) ? std::exp(score / std::sqrt(static_cast<double>(size))) : 0);
          sum += weights.back();
        }
        if (sum == 0) continue;
        double* to = y.values.data() + (b * positions + i) * channels + h * size;
        for (int64_t j = 0; j < seen; ++j)
          for (int64_t d = 0; d < size && weights[static_cast<size_t>(j)] > 0; ++d)
            to[d] += weights[static_cast<size_t>(j)] / sum *
                     (rate > 0 ? attention_factor(rate, b, positions, h, i, j) : 1) * at(2, j)[d];
      }
  return y;
}

OpCase attention_case(std::string name, int64_t batch, int64_t positions, const Attention& op,
                      int64_t head_size, int threads = 1) {
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
                      float dropout = 0, int threads = 1) {
  return attention_case(std::move(name), batch, positions, Attention{.heads = heads, .dropout = dropout},
                        head_size, threads);
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

/// A head size and an element type. GPUs multiply narrow heads of 32, 64 and 128 by kernels of their own.
struct Form {
  int64_t head_size;
  DType dtype;
};
constexpr Form kForms[] = {{8, DType::float32}, {64, DType::bfloat16}, {128, DType::float16}};

OpCase attention_case(const Form& form, int64_t batch, int64_t positions, int64_t heads, float dropout = 0) {
  OpCase c = attention_case("", batch, positions, heads, form.head_size, dropout);
  c.options.compute = form.dtype;
  return c;
}

TEST(Attention, LaterPositionsChangeNothingBefore) {
  const int64_t positions = 150, changed = 97;
  for (const Form& form : kForms) {
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
  for (const Form& form : kForms) {
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
  for (const Form& form : kForms) {
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

/// What an attention is given besides queries, keys and values.
enum class Marks { mask, documents, both };

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

TEST(Attention, AQuerySeesItsDocumentAlone) {
  // Two heads of one channel; keys of zeros: weights are even.
  OpHarness harness(Attention{.heads = 2, .key_value_heads = 1}, {{{5, 4}}, {{5}, DType::int32}, {{5}}},
                    {.batch = 1});
  fill(harness.inputs[0], {1, 2, 0, 10, 1, 2, 0, 20, 1, 2, 0, 40, 1, 2, 0, 80, 1, 2, 0, 160});
  fill(harness.inputs[1], {0, 0, 5, 5, 5});
  fill(harness.inputs[2], {1, 1, 1, 0, 1});
  harness.forward();
  EXPECT_EQ(values_of(harness.outputs[0]), (std::vector<double>{10, 10, 15, 15, 40, 40, 0, 0, 100, 100}));
  fill(harness.output_gradients[0], 1);
  harness.backward();
  const auto gradient = values_of(harness.input_gradients[0]);
  for (size_t t = 0; t < 5; ++t)
    EXPECT_EQ(gradient[4 * t + 3], (std::vector<double>{3, 1, 3, 0, 1})[t]) << "value " << t;
}

TEST(Attention, WhatIsLeftOutMayBeAnything) {
  for (const Form& form : kForms)
    for (const bool causal : {true, false}) {
      const int64_t positions = 90, heads = 2, width = 3 * heads * form.head_size;
      OpCase c = marked_case(
          attention_case("", 1, positions, {.heads = heads, .causal = causal}, form.head_size), Marks::mask);
      c.options.compute = form.dtype;
      const auto results = [&](double changed) {
        auto harness = make_harness(c);
        std::vector<double> mask(positions, 1), values = values_of(harness->inputs[0]);
        for (const size_t t : {0, 30, 88, 89}) {
          mask[t] = 0;
          for (int64_t i = 0; i < width; ++i)
            values[t * static_cast<size_t>(width) + static_cast<size_t>(i)] = changed;
        }
        fill(harness->inputs[0], values);
        fill(harness->inputs[1], mask);
        return results_of(*harness);
      };
      const auto once = results(1);
      EXPECT_EQ(results(-3), once) << form.head_size;
      // Output and gradient of what is left out.
      const int64_t channels = heads * form.head_size;
      for (const int64_t t : {0, 30, 88, 89}) {
        for (int64_t i = 0; i < channels; ++i) EXPECT_EQ(once[0][static_cast<size_t>(t * channels + i)], 0);
        for (int64_t i = 0; i < width; ++i) EXPECT_EQ(once[1][static_cast<size_t>(t * width + i)], 0);
      }
    }
}

TEST(Attention, PaddingChangesNoBit) {
  const int64_t text = 70, width = 3 * 2 * 8;
  const auto values = random_values(text * width, 3, -2, 2), slopes = random_values(text * 16, 4);
  for (const bool causal : {true, false}) {
    const auto results = [&](int64_t positions) {
      OpHarness harness(Attention{.heads = 2, .causal = causal}, {{{positions, width}}, {{positions}}},
                        {.batch = 1});
      const auto fill_first = [](const Tensor& tensor, std::vector<double> first, double rest) {
        first.resize(static_cast<size_t>(tensor.count()), rest);
        fill(tensor, first);
      };
      fill_first(harness.inputs[0], values, 0.75);
      fill_first(harness.inputs[1], std::vector<double>(text, 1), 0);
      fill_first(harness.output_gradients[0], slopes, 0.5);
      auto all = results_of(harness);
      all[0].resize(text * 16);
      all[1].resize(static_cast<size_t>(text * width));
      return all;
    };
    const auto shorter = results(text);
    for (const int64_t positions : {71, 80, 128, 200}) EXPECT_EQ(results(positions), shorter) << positions;
  }
}

TEST(Attention, DocumentsOfOneSampleAreThoseOfSamplesOfTheirOwn) {
  const std::vector<int64_t> lengths{3, 64, 70, 1, 12};
  for (const Form& form : kForms) {
    const int64_t width = 3 * form.head_size;
    const auto run = [&](int64_t positions, const std::vector<double>& values,
                         const std::vector<double>& slopes, const std::vector<double>& documents) {
      std::vector<TensorSpec> inputs{{{positions, width}}};
      if (!documents.empty()) inputs.push_back({{positions}, DType::int32});
      OpHarness harness(Attention{.heads = 1}, inputs, {.batch = 1, .compute = form.dtype});
      fill(harness.inputs[0], values);
      fill(harness.output_gradients[0], slopes);
      if (!documents.empty()) fill(harness.inputs[1], documents);
      return results_of(harness);
    };
    std::vector<double> values, slopes, documents, outputs, gradients;
    for (size_t i = 0; i < lengths.size(); ++i) {
      const auto own = random_values(lengths[i] * width, static_cast<uint32_t>(i), -2, 2);
      const auto own_slopes = random_values(lengths[i] * form.head_size, static_cast<uint32_t>(10 + i));
      const auto alone = run(lengths[i], own, own_slopes, {});
      values.insert(values.end(), own.begin(), own.end());
      slopes.insert(slopes.end(), own_slopes.begin(), own_slopes.end());
      outputs.insert(outputs.end(), alone[0].begin(), alone[0].end());
      gradients.insert(gradients.end(), alone[1].begin(), alone[1].end());
      documents.insert(documents.end(), static_cast<size_t>(lengths[i]), static_cast<double>(i));
    }
    const auto packed = run(static_cast<int64_t>(documents.size()), values, slopes, documents);
    const double tolerance = form.dtype == DType::float32 ? 1e-5 : 2e-2;
    expect_near(packed[0], outputs, tolerance, "output");
    expect_near(packed[1], gradients, tolerance, "gradient");
  }
}

TEST(Attention, ThreadsAndBatchesOfDocumentsDoNotChangeTheBits) {
  const auto run = [](int64_t batch, int64_t first, int threads,
                      const std::vector<std::vector<double>>& inputs) {
    OpCase c = marked_case(
        attention_case("", batch, 75, {.heads = 4, .dropout = 0.2f, .key_value_heads = 2}, 8, threads),
        Marks::both);
    auto harness = make_harness(c);
    harness->first_sample = first;
    for (size_t i = 0; i < inputs.size(); ++i) {
      const auto count = static_cast<ptrdiff_t>(inputs[i].size()) / 3;
      fill(harness->inputs[i],
           {inputs[i].begin() + first * count, inputs[i].begin() + (first + batch) * count});
    }
    fill(harness->output_gradients[0], 0.25);
    return results_of(*harness);
  };
  const auto inputs = values_of_all(
      make_harness(marked_case(attention_case("", 3, 75, {.heads = 4, .key_value_heads = 2}, 8), Marks::both))
          ->inputs);
  const auto whole = run(3, 0, 1, inputs);
  EXPECT_EQ(run(3, 0, 5, inputs), whole);
  auto parts = run(1, 0, 2, inputs);
  const auto rest = run(2, 1, 1, inputs);
  for (size_t i = 0; i < parts.size(); ++i) parts[i].insert(parts[i].end(), rest[i].begin(), rest[i].end());
  EXPECT_EQ(parts, whole);
}

TEST(Attention, RefusesMarksThatDoNotFit) {
  const auto message = [](std::vector<TensorSpec> further) {
    further.insert(further.begin(), {{{5, 6}}});
    try {
      ops::infer(Attention{.heads = 1}, further);
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const TensorSpec mask{{5}}, documents{{5}, DType::int32};
  EXPECT_EQ(message({mask}), "");
  EXPECT_EQ(message({documents, mask}), "");
  EXPECT_NE(message({mask, mask}), "");
  EXPECT_NE(message({documents, documents}), "");
  EXPECT_NE(message({documents, mask, mask}), "");
  for (const TensorSpec& wrong : {TensorSpec{{6}}, TensorSpec{{6}, DType::int32}, TensorSpec{{6, 1}}})
    EXPECT_THAT(message({wrong}),
                AllOf(HasSubstr(wrong.shape.to_string()), HasSubstr(Shape{5, 6}.to_string())));
}

TEST(Attention, WritesTextsOfOneDocument) {
  const auto use = [](bool causal, std::vector<TensorSpec> further) {
    further.insert(further.begin(), {{{5, 6}}});
    return ops::infer(Attention{.heads = 1, .causal = causal}, further).positions;
  };
  const TensorSpec mask{{5}}, documents{{5}, DType::int32};
  EXPECT_EQ(use(true, {documents}), ops::PositionUse::earlier);
  EXPECT_EQ(use(true, {documents, mask}), ops::PositionUse::any);
  EXPECT_EQ(use(false, {documents}), ops::PositionUse::any);
}

TEST(Attention, MatchesPyTorch) {
  expect_matches_golden(Attention{.heads = 2}, read_golden("attention", "two_heads"));
  expect_matches_golden(Attention{.heads = 1}, read_golden("attention", "two_blocks"));
  expect_matches_golden(Attention{.heads = 4, .key_value_heads = 2}, read_golden("attention", "grouped"));
  expect_matches_golden(Attention{.heads = 2, .causal = false}, read_golden("attention", "not_causal"));
  expect_matches_golden(Attention{.heads = 4, .key_value_heads = 2}, read_golden("attention", "masked"));
  expect_matches_golden(Attention{.heads = 2, .causal = false},
                        read_golden("attention", "masked_not_causal"));
  expect_matches_golden(Attention{.heads = 2, .key_value_heads = 1}, read_golden("attention", "documents"));
  expect_matches_golden(Attention{.heads = 1, .causal = false},
                        read_golden("attention", "documents_not_causal"));
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
      marked_case(attention_case("marks", 2, 67, {.heads = 3, .dropout = 0.25f, .key_value_heads = 1}, 8),
                  Marks::both),
      marked_case(attention_case("marks_of_64", 2, 90, {.heads = 2, .key_value_heads = 1}, 64), Marks::both),
      marked_case(attention_case("marks_of_128", 2, 40, {.heads = 1, .dropout = 0.25f, .causal = false}, 128),
                  Marks::both),
      marked_case(attention_case("marks_of_wide_heads", 1, 40, {.heads = 1}, 160), Marks::both)};
}

}  // namespace lockstep::testing
