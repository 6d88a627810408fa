#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/error.h"
#include "ops/op_cases.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string embedding_message(OpHarness& harness) {
  try {
    harness.forward();
  } catch (const DataError& error) {
    return error.what();
  }
  return "no DataError";
}

TEST(Embedding, InitializesAsItsOptionsSay) {
  const auto init_of = [](const Embedding& op) {
    return ops::infer(op, std::vector<TensorSpec>{{Shape{3}, DType::int32}}).parameters[0].init;
  };
  using enum ops::Initializer::Kind;
  EXPECT_EQ(init_of({.vocabulary = 3, .width = 2}), ops::Initializer(normal, 0.02f));
  EXPECT_EQ(init_of({.vocabulary = 3, .width = 2, .init_range = 0.5f}), ops::Initializer(uniform, 0.5f));
  EXPECT_THROW(init_of({.vocabulary = 3, .width = 2, .init_range = -1}), ConfigError);
  EXPECT_THROW(init_of({.vocabulary = 3, .width = 2, .init_std = 0.1f, .init_range = 0.5f}), ConfigError);
}

TEST(Embedding, LooksUpRowsAndAddsGradientsOfRepeatedTokens) {
  OpHarness harness(Embedding{.vocabulary = 3, .width = 2}, {{Shape{3}, DType::int32}}, {.batch = 1});
  fill(harness.inputs[0], {2, 0, 2});
  fill(harness.parameters[0], {1, 2, 3, 4, 5, 6});
  fill(harness.output_gradients[0], {1, 10, 100, 1000, 0.5, 0.25});
  harness.forward();
  harness.backward();
  EXPECT_EQ(values_of(harness.outputs[0]), (std::vector<double>{5, 6, 1, 2, 5, 6}));
  EXPECT_EQ(values_of(harness.parameter_gradients[0]), (std::vector<double>{100, 1000, 0, 0, 1.5, 10.25}));
}

TEST(Embedding, NamesATokenOutsideTheVocabulary) {
  for (const int token : {3, -1}) {
    OpHarness harness(Embedding{.vocabulary = 3, .width = 2}, {{Shape{4}, DType::int32}}, {.batch = 2},
                      device::DeviceKind::cpu);
    harness.first_sample = 10;
    fill(harness.parameters[0], 0.0);
    fill(harness.inputs[0], {0, 1, 2, 0, 1, 1, static_cast<double>(token), 2});
    EXPECT_THAT(embedding_message(harness),
                AllOf(HasSubstr("token " + std::to_string(token)), HasSubstr("sample 11"),
                      HasSubstr("position 2"), HasSubstr("vocabulary of 3")));
  }
}

TEST(Embedding, RefusesFloatTokensAndEmptyTables) {
  EXPECT_THROW(ops::infer(Embedding{.vocabulary = 3, .width = 2}, std::vector<TensorSpec>{{Shape{4}}}),
               ConfigError);
  const std::vector<TensorSpec> tokens{{Shape{4}, DType::int32}};
  EXPECT_THROW(ops::infer(Embedding{.vocabulary = 0, .width = 2}, tokens), ConfigError);
  EXPECT_THROW(ops::infer(Embedding{.vocabulary = 3, .width = 0}, tokens), ConfigError);
}

TEST(Embedding, MatchesPyTorch) {
  expect_matches_golden(Embedding{.vocabulary = 11, .width = 7}, read_golden("embedding", "repeated"));
}

TEST(PositionEmbedding, AddsRowsAndSumsGradientsOverTheBatch) {
  OpHarness harness(PositionEmbedding{.positions = 3}, {{{2, 2}}}, {.batch = 2});
  fill(harness.inputs[0], {1, 2, 3, 4, 5, 6, 7, 8});
  fill(harness.parameters[0], {10, 20, 30, 40, 50, 60});
  fill(harness.output_gradients[0], {1, 2, 3, 4, 100, 200, 300, 400});
  harness.forward();
  harness.backward();
  EXPECT_EQ(values_of(harness.outputs[0]), (std::vector<double>{11, 22, 33, 44, 15, 26, 37, 48}));
  EXPECT_EQ(values_of(harness.input_gradients[0]), (std::vector<double>{1, 2, 3, 4, 100, 200, 300, 400}));
  // The third row of the table was not used.
  EXPECT_EQ(values_of(harness.parameter_gradients[0]), (std::vector<double>{101, 202, 303, 404, 0, 0}));
}

TEST(PositionEmbedding, RefusesLongInputsAndOtherRanks) {
  EXPECT_NO_THROW(ops::infer(PositionEmbedding{.positions = 3}, std::vector<TensorSpec>{{{3, 4}}}));
  EXPECT_THROW(ops::infer(PositionEmbedding{.positions = 3}, std::vector<TensorSpec>{{{4, 4}}}), ConfigError);
  EXPECT_THROW(ops::infer(PositionEmbedding{.positions = 3}, std::vector<TensorSpec>{{Shape{3}}}),
               ConfigError);
}

}  // namespace

template <>
std::vector<OpCase> cases_of<Embedding>() {
  const auto make = [](std::string name, Shape tokens, int64_t batch, int64_t vocabulary, int64_t width) {
    OpCase c{.name = std::move(name), .op = Embedding{.vocabulary = vocabulary, .width = width}};
    c.inputs = {{tokens, DType::int32}};
    c.batch = batch;
    c.int32_below = vocabulary;
    c.reference = [width](const std::vector<Array>& inputs, const std::vector<Array>& parameters) {
      Array y;
      std::vector<int64_t> dims = inputs[0].shape.dims();
      dims.push_back(width);
      y.shape = Shape(dims);
      for (const double token : inputs[0].values) {
        const auto row = parameters[0].values.begin() + static_cast<int64_t>(token) * width;
        y.values.insert(y.values.end(), row, row + width);
      }
      return std::vector<Array>{y};
    };
    return c;
  };
  return {make("one", {1}, 1, 1, 1), make("no_positions", {}, 3, 5, 4), make("repeated", {13}, 3, 7, 5),
          make("wide", {3, 5}, 2, 11, 67), make("packs", {7}, 3, 5, 24)};
}

template <>
std::vector<OpCase> cases_of<PositionEmbedding>() {
  const auto make = [](std::string name, Shape shape, int64_t batch, int64_t positions, int threads) {
    OpCase c{.name = std::move(name), .op = PositionEmbedding{.positions = positions}, .inputs = {{shape}}};
    c.batch = batch;
    c.options.intra_op_threads = threads;
    c.reference = [](const std::vector<Array>& inputs, const std::vector<Array>& parameters) {
      Array y = inputs[0];
      const size_t count = y.values.size() / static_cast<size_t>(y.shape[0]);
      for (size_t i = 0; i < y.values.size(); ++i) y.values[i] += parameters[0].values[i % count];
      return std::vector<Array>{y};
    };
    return c;
  };
  return {make("one", {1, 1}, 1, 1, 1), make("shorter", {5, 7}, 3, 9, 1), make("threads", {31, 67}, 2, 31, 2),
          make("packs", {6, 24}, 7, 8, 1)};
}

}  // namespace lockstep::testing
