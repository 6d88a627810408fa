// Attention with a mask of positions, and over documents.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/error.h"
#include "ops/attention_cases.h"
#include "ops/op_testing.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(MarkedAttention, AQuerySeesItsDocumentAlone) {
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

TEST(MarkedAttention, WhatIsLeftOutMayBeAnyNumbers) {
  for (const AttentionForm& form : kAttentionForms)
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

TEST(MarkedAttention, PaddingChangesNoBit) {
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

TEST(MarkedAttention, DocumentsOfOneSampleAreThoseOfSamplesOfTheirOwn) {
  const std::vector<int64_t> lengths{3, 64, 70, 1, 12};
  for (const AttentionForm& form : kAttentionForms) {
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

TEST(MarkedAttention, ThreadsAndBatchesOfDocumentsDoNotChangeTheBits) {
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

TEST(MarkedAttention, RefusesMarksThatDoNotFit) {
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

TEST(MarkedAttention, WritesTextsOfOneDocument) {
  const auto use = [](bool causal, std::vector<TensorSpec> further) {
    further.insert(further.begin(), {{{5, 6}}});
    return ops::infer(Attention{.heads = 1, .causal = causal}, further).positions;
  };
  const TensorSpec mask{{5}}, documents{{5}, DType::int32};
  EXPECT_EQ(use(true, {documents}), ops::PositionUse::earlier);
  EXPECT_EQ(use(true, {documents, mask}), ops::PositionUse::any);
  EXPECT_EQ(use(false, {documents}), ops::PositionUse::any);
}

TEST(MarkedAttention, MatchesPyTorch) {
  expect_matches_golden(Attention{.heads = 4, .key_value_heads = 2}, read_golden("attention", "masked"));
  expect_matches_golden(Attention{.heads = 2, .causal = false},
                        read_golden("attention", "masked_not_causal"));
  expect_matches_golden(Attention{.heads = 2, .key_value_heads = 1}, read_golden("attention", "documents"));
  expect_matches_golden(Attention{.heads = 1, .causal = false},
                        read_golden("attention", "documents_not_causal"));
}

}  // namespace
}  // namespace lockstep::testing
