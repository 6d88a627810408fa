#include "infer/language_model.h"

#include <gtest/gtest.h>

#include "base/index.h"
#include "base/philox.h"
#include "lockstep/error.h"
#include "model/presets.h"

namespace lockstep::infer {
namespace {

constexpr int64_t kContext = 6, kVocabulary = 5;

model::Graph small_llama() {
  return model::make_graph(model::make_llama({.vocabulary = kVocabulary,
                                              .context = kContext,
                                              .layers = 2,
                                              .heads = 4,
                                              .key_value_heads = 2,
                                              .width = 8,
                                              .hidden = 12}));
}

void draw_parameters(Evaluator& evaluator) {
  for (int p = 0; p < static_cast<int>(evaluator.graph().parameters.size()); ++p) {
    const Tensor tensor = evaluator.parameter(p);
    for (int64_t i = 0; i < tensor.count(); ++i)
      tensor.as<float>()[i] = static_cast<float>(philox_normal(
          7, RandomPurpose::initialization, static_cast<uint32_t>(p), static_cast<uint64_t>(i)));
  }
}

LanguageModel drawn() {
  LanguageModel model(small_llama(), 1);
  draw_parameters(model.evaluator());
  return model;
}

std::vector<float> copy(std::span<const float> logits) { return {logits.begin(), logits.end()}; }

TEST(LanguageModel, WritesTheSameFromTheSameSeedAndOtherwiseAnother) {
  LanguageModel model = drawn();
  const auto write = [&](uint64_t seed, uint32_t sample) {
    return model.write({1, 2}, {.tokens = 40, .seed = seed, .sample = sample});
  };
  const auto once = write(3, 0);
  EXPECT_EQ(once.size(), 40u);
  EXPECT_EQ(write(3, 0), once);
  EXPECT_NE(write(4, 0), once);
  EXPECT_NE(write(3, 1), once);
}

TEST(LanguageModel, WritesNoTokenThatStandsForNothing) {
  LanguageModel model = drawn();
  for (const int32_t token : model.write({0}, {.tokens = 200, .vocabulary = 2})) EXPECT_LT(token, 2);
}

TEST(LanguageModel, PassesOnEachTokenOnce) {
  LanguageModel model = drawn();
  std::vector<int32_t> seen;
  const auto written = model.write({0}, {.tokens = 12}, [&](int32_t token) { seen.push_back(token); });
  EXPECT_EQ(seen, written);
}

TEST(LanguageModel, SeesTheWholePromptButNotBeyondItsContext) {
  LanguageModel model = drawn();
  const std::vector<int32_t> prompt{4, 1, 2, 3, 0, 1};
  const auto whole = copy(model.logits_after(prompt));
  std::vector<int32_t> other = prompt;
  other[0] = 2;
  EXPECT_NE(copy(model.logits_after(other)), whole);
  std::vector<int32_t> longer{3, 3, 3};
  longer.insert(longer.end(), prompt.begin(), prompt.end());
  EXPECT_EQ(copy(model.logits_after(longer)), whole);
}

TEST(LanguageModel, WhatAnotherCallLeftBehindDoesNotCount) {
  LanguageModel model = drawn();
  const auto before = copy(model.logits_after(std::vector<int32_t>{1, 2}));
  model.logits_after(std::vector<int32_t>{4, 4, 4, 4, 4, 4});
  EXPECT_EQ(copy(model.logits_after(std::vector<int32_t>{1, 2})), before);
}

TEST(LanguageModel, ThreadsDoNotChangeTheBits) {
  LanguageModel one = drawn(), several(small_llama(), 3);
  draw_parameters(several.evaluator());
  const std::vector<int32_t> prompt{4, 1, 2};
  EXPECT_EQ(copy(one.logits_after(prompt)), copy(several.logits_after(prompt)));
}

std::string objection(const ModelSpec& spec) {
  try {
    LanguageModel(model::make_graph(spec), 1);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(LanguageModel, RefusesModelsThatCannotWrite) {
  EXPECT_NE(objection(model::make_mlp({})).find("tokens"), std::string::npos);
  ModelSpec seeing = model::make_llama({.vocabulary = 5, .context = 6, .layers = 1, .heads = 2, .width = 8});
  for (auto& layer : seeing.layers)
    if (auto* attention = std::get_if<Attention>(&layer.op)) attention->causal = false;
  EXPECT_NE(objection(seeing).find("layers.0.self_attn.core"), std::string::npos);
  LanguageModel model = drawn();
  EXPECT_THROW(model.write({}, {.tokens = 1}), ConfigError);
}

}  // namespace
}  // namespace lockstep::infer
