#include "infer/language_model.h"

#include <gmock/gmock.h>
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

/// What a model says that computes everything anew; `documents`: of the tokens, if the model reads them.
std::vector<float> anew(const model::Graph& graph, const std::vector<int32_t>& tokens,
                        const std::vector<int32_t>& documents = {}) {
  Evaluator evaluator(graph, 1);
  draw_parameters(evaluator);
  if (!documents.empty()) {
    const Tensor marks = evaluator.input("documents");
    std::fill_n(std::ranges::copy(documents, marks.as<int32_t>()).out,
                marks.count() - static_cast<int64_t>(documents.size()), -1);
  }
  const Tensor input = evaluator.input("tokens");
  std::fill_n(std::ranges::copy(tokens, input.as<int32_t>()).out,
              input.count() - static_cast<int64_t>(tokens.size()), 0);
  const auto* logits = evaluator.evaluate().as<const float>();
  const int64_t vocabulary = evaluator.output().shape[-1];
  logits += (static_cast<int64_t>(tokens.size()) - 1) * vocabulary;
  return {logits, logits + vocabulary};
}

/// Logits after texts that begin alike, grow by one and by many, shrink and move on, beside those of
/// evaluations of everything.
void expect_bits_of_full_passes(const model::Graph& graph) {
  LanguageModel model(graph, 1);
  draw_parameters(model.evaluator());
  const int64_t context = model.context();
  const auto text = [&](int64_t count, int64_t changed) {
    std::vector<int32_t> tokens;
    for (int64_t i = 0; i < count; ++i)
      tokens.push_back(static_cast<int32_t>((i * i + (i >= changed ? 1 : 0)) % model.vocabulary()));
    return tokens;
  };
  for (const auto& [count, changed] : std::vector<std::pair<int64_t, int64_t>>{{1, 0},
                                                                               {2, 9},
                                                                               {3, 9},
                                                                               {10, 9},
                                                                               {11, 9},
                                                                               {11, 10},
                                                                               {11, 3},
                                                                               {70, 60},
                                                                               {71, 60},
                                                                               {72, 60},
                                                                               {80, 71},
                                                                               {80, 71},
                                                                               {66, 99},
                                                                               {67, 99},
                                                                               {79, 2},
                                                                               {5, 2}}) {
    const auto tokens = text(std::min(count, context), changed);
    EXPECT_EQ(copy(model.logits_after(tokens)), anew(graph, tokens)) << count << " " << changed;
  }
}

TEST(LanguageModel, KeepsWhatItComputedAndSaysTheBitsOfFullPasses) {
  expect_bits_of_full_passes(small_llama());
  // Beyond one block of positions and of keys, and heads that are no whole vectors.
  expect_bits_of_full_passes(model::make_graph(model::make_llama({.vocabulary = 11,
                                                                  .context = 80,
                                                                  .layers = 2,
                                                                  .heads = 6,
                                                                  .key_value_heads = 3,
                                                                  .width = 36,
                                                                  .hidden = 20})));
  expect_bits_of_full_passes(model::make_graph(
      model::make_gpt({.vocabulary = 7, .context = 80, .layers = 2, .heads = 2, .width = 32})));
}

TEST(LanguageModel, WritesBeyondItsContextWhatFullPassesWrite) {
  const model::Graph graph = small_llama();
  LanguageModel model = drawn();
  std::vector<int32_t> text{1, 2};
  for (const int32_t token : model.write(text, {.sampling = {.temperature = 0}, .tokens = 20})) {
    const auto seen = static_cast<int64_t>(std::min<size_t>(text.size(), kContext));
    EXPECT_EQ(token, choose(anew(graph, {text.end() - seen, text.end()}), {.temperature = 0}, 0));
    text.push_back(token);
  }
}

TEST(LanguageModel, ForgetsWhatItComputedWithOtherParameters) {
  LanguageModel model(small_llama(), 1);
  const std::vector<int32_t> prompt{1, 2, 3};
  const auto before = copy(model.logits_after(prompt));
  draw_parameters(model.evaluator());
  const auto after = copy(model.logits_after(prompt));
  EXPECT_NE(after, before);
  EXPECT_EQ(after, anew(small_llama(), prompt));
}

std::string objection(const ModelSpec& spec) {
  try {
    LanguageModel(model::make_graph(spec), 1);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

/// A model of tokens with an op between embedding and logits, on rows of images of one column.
ModelSpec with_op(const Op& op) {
  ModelBuilder b;
  const auto tokens = b.input("tokens", {{kContext}, DType::int32});
  const auto label = b.input("label", {{kContext}, DType::int32});
  const auto embedded = b.add("embedded", Embedding{.vocabulary = kVocabulary, .width = 8}, {tokens});
  const auto image = b.add("image", Reshape{.shape = "6,1,8"}, {embedded});
  const auto rows = b.add("rows", Reshape{.shape = "6,8"}, {b.add("between", op, {image})});
  b.add("loss", SoftmaxCrossEntropy{}, {b.add("out", Linear{.units = kVocabulary}, {rows}), label});
  return b.build();
}

TEST(LanguageModel, RefusesModelsThatCannotWrite) {
  EXPECT_NE(objection(model::make_mlp({})).find("tokens"), std::string::npos);
  ModelSpec seeing = model::make_llama({.vocabulary = 5, .context = 6, .layers = 1, .heads = 2, .width = 8});
  for (auto& layer : seeing.layers)
    if (auto* attention = std::get_if<Attention>(&layer.op)) attention->causal = false;
  EXPECT_NE(objection(seeing).find("layers.0.self_attn.core"), std::string::npos);
  // As many rows as positions: a padded convolution still sees the next ones, and batch norm all.
  for (const Op& op : std::vector<Op>{Conv2d{.channels = 8, .kernel = 3, .padding = 1}, BatchNorm{}})
    EXPECT_NE(objection(with_op(op)).find("between"), std::string::npos) << name_of(op);
  EXPECT_EQ(objection(with_op(Tanh{})), "");
  LanguageModel model = drawn();
  EXPECT_THROW(model.write({}, {.tokens = 1}), ConfigError);
}

TEST(LanguageModel, KeepsTheStatesOfRecurrentLayersLikewise) {
  expect_bits_of_full_passes(model::make_graph(
      model::make_lstm({.vocabulary = kVocabulary, .context = 80, .layers = 2, .width = 4, .units = 6})));
  // Heads of weights that are shared, and units that are whole vectors.
  expect_bits_of_full_passes(
      model::make_graph(model::make_lstm({.vocabulary = 33, .context = 80, .width = 32, .tied_head = true})));
}

/// Attention that is given what an input of the model says of positions.
ModelSpec with_marks(ModelSpec spec, const std::string& input, DType dtype) {
  spec.inputs.push_back({input, {spec.inputs[0].spec.shape, dtype}});
  for (auto& layer : spec.layers)
    if (std::holds_alternative<Attention>(layer.op)) layer.inputs.push_back(input);
  return spec;
}

TEST(LanguageModel, WritesOneDocument) {
  const ModelSpec plain = model::make_llama(
      {.vocabulary = kVocabulary, .context = 80, .layers = 2, .heads = 4, .key_value_heads = 2, .width = 8});
  LanguageModel one(model::make_graph(plain), 1),
      other(model::make_graph(with_marks(plain, "documents", DType::int32)), 1);
  draw_parameters(one.evaluator());
  draw_parameters(other.evaluator());
  std::vector<int32_t> text;
  for (int32_t i = 0; i < 90; ++i) {
    text.push_back(i * i % kVocabulary);
    if (i % 7 == 0 || i > 60) EXPECT_EQ(copy(other.logits_after(text)), copy(one.logits_after(text))) << i;
  }
  EXPECT_THAT(why_it_cannot_write(model::make_graph(with_marks(plain, "mask", DType::float32))),
              testing::HasSubstr("mask"));
}

TEST(LanguageModel, BeginsADocumentWithTheTokenThatBeganThemInTraining) {
  const model::Graph graph = model::make_graph(with_marks(
      model::make_llama({.vocabulary = kVocabulary, .context = 80, .layers = 2, .heads = 4, .width = 8}),
      "documents", DType::int32));
  LanguageModel model(graph, 1, 3), of_one(graph, 1);
  draw_parameters(model.evaluator());
  draw_parameters(of_one.evaluator());
  // Texts that grow by one and by many, beyond the context, too, and begin anew.
  std::vector<int32_t> text;
  for (int32_t i = 0; i < 95; ++i) {
    text.push_back(i % 30 == 20 ? 3 : i * i % 3);
    if (i % 6 != 0 && i < 70) continue;
    const std::vector<int32_t> seen(text.end() - std::min<int64_t>(std::ssize(text), 80), text.end());
    std::vector<int32_t> documents;
    int32_t document = 0;
    for (const int32_t token : seen) documents.push_back(token == 3 ? ++document : document);
    EXPECT_EQ(copy(model.logits_after(text)), anew(graph, seen, documents)) << i;
  }
  // What lies before the document is not seen, unless a text is one.
  const std::vector<int32_t> once{0, 1, 2, 3, 4}, other{4, 4, 0, 3, 4};
  EXPECT_EQ(copy(model.logits_after(once)), copy(model.logits_after(other)));
  EXPECT_NE(copy(of_one.logits_after(once)), copy(of_one.logits_after(other)));
}

TEST(LanguageModel, ForgetsWeightsOfRecurrentLayersThatItHasPacked) {
  const model::Graph graph = model::make_graph(
      model::make_lstm({.vocabulary = kVocabulary, .context = 20, .layers = 2, .width = 4, .units = 6}));
  LanguageModel model(graph, 1), several(graph, 3);
  const std::vector<int32_t> prompt{1, 2, 3};
  const auto before = copy(model.logits_after(prompt));
  draw_parameters(model.evaluator());
  draw_parameters(several.evaluator());
  const auto after = copy(model.logits_after(prompt));
  EXPECT_NE(after, before);
  EXPECT_EQ(after, anew(graph, prompt));
  EXPECT_EQ(copy(several.logits_after(prompt)), after);
}

TEST(LanguageModel, RefusesRecurrentLayersThatSeeWhatFollows) {
  ModelSpec spec =
      model::make_lstm({.vocabulary = kVocabulary, .context = 6, .width = 4, .tied_head = false});
  std::get<Lstm>(spec.layers[1].op).bidirectional = true;
  EXPECT_THAT(why_it_cannot_write(model::make_graph(spec)), testing::HasSubstr("rnn.l0"));
}

}  // namespace
}  // namespace lockstep::infer
