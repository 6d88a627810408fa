// Gradients of embeddings on GPUs: the sort of their tokens, and rows whose positions are cut into segments.

#include <gtest/gtest.h>

#include <cmath>

#include "ops/op_testing.h"

namespace lockstep::testing {
namespace {

/// Expects the gradient of a table whose positions have `tokens`, and gradients that float32 adds exactly.
void expect_table_gradient(const std::vector<double>& tokens, int64_t vocabulary, int64_t width,
                           DType compute = DType::float32) {
  const auto count = static_cast<int64_t>(tokens.size());
  OpHarness harness(Embedding{.vocabulary = vocabulary, .width = width}, {{Shape{count}, DType::int32}},
                    {.batch = 1, .compute = compute}, device::DeviceKind::cuda);
  fill(harness.inputs[0], tokens);
  std::vector<double> gradients(static_cast<size_t>(count * width));
  for (size_t i = 0; i < gradients.size(); ++i) gradients[i] = static_cast<double>(i * 7 % 31) - 15;
  fill(harness.output_gradients[0], gradients);
  std::vector<double> expected(static_cast<size_t>(vocabulary * width));
  for (int64_t i = 0; i < count; ++i) {
    const double token = tokens[static_cast<size_t>(i)];
    if (token < 0 || token >= static_cast<double>(vocabulary)) continue;
    for (int64_t c = 0; c < width; ++c)
      expected[static_cast<size_t>(static_cast<int64_t>(token) * width + c)] +=
          gradients[static_cast<size_t>(i * width + c)];
  }
  harness.backward();
  EXPECT_EQ(values_of(harness.parameter_gradients[0]), expected);
  for (double& value : expected) value *= 2;
  harness.backward(true);
  EXPECT_EQ(values_of(harness.parameter_gradients[0]), expected) << "accumulated";
}

TEST(EmbeddingOnGpus, OneTokenFillsManySegments) {
  expect_table_gradient(std::vector<double>(333, 4), 7, 8, DType::bfloat16);
}

TEST(EmbeddingOnGpus, RunsEndAtAndAcrossSegmentsOf32) {
  std::vector<double> tokens;
  // Runs of 32, 1, 31, 64, 20, 40, 3 and 90: they begin or end at borders, lie between them, and cover
  // segments.
  const int runs[] = {32, 1, 31, 64, 20, 40, 3, 90};
  for (size_t run = 0; run < std::size(runs); ++run)
    tokens.insert(tokens.end(), static_cast<size_t>(runs[run]), static_cast<double>(run * 2));
  std::vector<double> shuffled;
  for (size_t i = 0; i < tokens.size(); ++i) shuffled.push_back(tokens[i * 100 % tokens.size()]);
  expect_table_gradient(shuffled, 17, 5);
}

TEST(EmbeddingOnGpus, RowsAreLongerThanAWarpReads) {
  std::vector<double> tokens;
  for (int i = 0; i < 75; ++i) tokens.push_back(i % 7 < 4 ? 2 : i % 5);
  expect_table_gradient(tokens, 5, 264, DType::bfloat16);
  expect_table_gradient(tokens, 5, 37);
}

TEST(EmbeddingOnGpus, TokensOfSeveralDigitsAndTilesAreSorted) {
  std::vector<double> tokens;
  for (int64_t i = 0; i < 4100; ++i) tokens.push_back(static_cast<double>(i * i * 31 % 1031 * 97 % 70'001));
  expect_table_gradient(tokens, 70'001, 1);
}

TEST(EmbeddingOnGpus, VocabulariesOfThreeDigitsAreSorted) {
  std::vector<double> tokens;
  for (int64_t i = 0; i < 300; ++i) tokens.push_back(static_cast<double>(i % 50 * 5'300 + i % 3));
  expect_table_gradient(tokens, 262'145, 1, DType::float16);
}

TEST(EmbeddingOnGpus, TokensOutsideTheVocabularyGiveNanAndNoGradient) {
  expect_table_gradient({0, 3, -1, 2, 70'000, 2, -2'000'000'000, 4}, 4, 3);
  OpHarness harness(Embedding{.vocabulary = 4, .width = 3}, {{Shape{3}, DType::int32}}, {.batch = 1},
                    device::DeviceKind::cuda);
  fill(harness.inputs[0], {4, 1, -1});
  fill(harness.parameters[0], 0.5);
  harness.forward();
  const auto y = values_of(harness.outputs[0]);
  for (size_t i = 0; i < 9; ++i) EXPECT_EQ(std::isnan(y[i]), i / 3 != 1) << "element " << i;
}

}  // namespace
}  // namespace lockstep::testing
