#include "model/presets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "lockstep/error.h"
#include "mentions.h"
#include "model/graph.h"

namespace lockstep::model {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> layer_names(const ModelSpec& spec) {
  std::vector<std::string> names;
  for (const auto& layer : spec.layers) names.push_back(layer.name);
  return names;
}

std::vector<std::string> parameter_names(const Graph& graph) {
  std::vector<std::string> names;
  for (const auto& parameter : graph.parameters) names.push_back(parameter.name);
  return names;
}

const Parameter& parameter(const Graph& graph, const std::string& name) {
  for (const auto& parameter : graph.parameters)
    if (parameter.name == name) return parameter;
  throw std::out_of_range(name);
}

template <class Options>
std::string refusal(ModelSpec (*make)(const Options&), const Options& options) {
  try {
    make(options);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Mlp, HasTheParametersOf784_256_128_10) {
  // 784*256 + 256 + 256*128 + 128 + 128*10 + 10
  EXPECT_EQ(make_graph(make_mlp({})).parameter_count(), 235146);
}

TEST(Mlp, NamesItsLayers) {
  EXPECT_THAT(layer_names(make_mlp({.hidden = {8}, .dropout = 0.5f})),
              ElementsAre("flatten", "fc1", "relu1", "drop1", "fc2", "loss"));
}

TEST(Mlp, WithoutHiddenLayersIsALinearClassifier) {
  EXPECT_EQ(make_graph(make_mlp({.image = {2, 3, 1}, .hidden = {}, .classes = 4})).parameter_count(), 28);
}

TEST(Mlp, RefusesNonsense) {
  EXPECT_THAT(refusal(make_mlp, {.hidden = {16, 0}}), HasSubstr("hidden[1]"));
  EXPECT_THAT(refusal(make_mlp, {.classes = 1}), HasSubstr("classes"));
  EXPECT_THAT(refusal(make_mlp, {.dropout = 1.0f}), HasSubstr("dropout"));
  EXPECT_THAT(refusal(make_mlp, {.dropout = NAN}), HasSubstr("dropout"));
}

TEST(Lenet, HasTheParametersOfLenet5) { EXPECT_EQ(make_graph(make_lenet({})).parameter_count(), 61706); }

TEST(Lenet, NamesItsLayers) {
  EXPECT_THAT(layer_names(make_lenet({})),
              ElementsAre("conv1", "relu1", "pool1", "conv2", "relu2", "pool2", "flatten", "fc1", "relu3",
                          "fc2", "relu4", "fc3", "loss"));
}

TEST(Lenet, PutsBatchNormBehindConvolutionsAndDropoutBeforeTheLastTwoLinearLayers) {
  EXPECT_THAT(layer_names(make_lenet({.dropout = 0.25f, .batch_norm = true})),
              ElementsAre("conv1", "bn1", "relu1", "pool1", "conv2", "bn2", "relu2", "pool2", "flatten",
                          "fc1", "relu3", "drop1", "fc2", "relu4", "drop2", "fc3", "loss"));
}

TEST(Lenet, RefusesImagesThatShrinkToNothing) {
  EXPECT_THAT(refusal(make_lenet, {.image = {11, 28, 1}}), HasSubstr("12 x 12"));
  EXPECT_THAT(refusal(make_lenet, {.image = {784}}), HasSubstr("12 x 12"));
  EXPECT_NO_THROW(make_lenet({.image = {12, 12, 3}}));
}

GptOptions small_gpt() { return {.vocabulary = 65, .context = 16, .layers = 2, .heads = 4, .width = 32}; }

TEST(Gpt, HasTheParametersOfGpt2Small) {
  const auto graph =
      make_graph(make_gpt({.vocabulary = 50257, .context = 1024, .layers = 12, .heads = 12, .width = 768}));
  EXPECT_EQ(graph.parameter_count(), 124439808);
}

TEST(Gpt, AnUntiedHeadAddsVocabularyTimesWidth) {
  auto options = small_gpt();
  const auto tied = make_graph(make_gpt(options)).parameter_count();
  options.tied_head = false;
  EXPECT_EQ(make_graph(make_gpt(options)).parameter_count(), tied + 65 * 32);
}

TEST(Gpt, WithoutBiasHasOnlyWeights) {
  auto options = small_gpt();
  options.bias = false;
  for (const auto& name : parameter_names(make_graph(make_gpt(options))))
    EXPECT_THAT(name, ::testing::EndsWith(".weight"));
}

TEST(Gpt, NamesParametersAsHuggingFaceDoes) {
  auto options = small_gpt();
  options.layers = 1;
  EXPECT_THAT(
      parameter_names(make_graph(make_gpt(options))),
      ElementsAre("wte.weight", "wpe.weight", "h.0.ln_1.weight", "h.0.ln_1.bias", "h.0.attn.c_attn.weight",
                  "h.0.attn.c_attn.bias", "h.0.attn.c_proj.weight", "h.0.attn.c_proj.bias", "h.0.ln_2.weight",
                  "h.0.ln_2.bias", "h.0.mlp.c_fc.weight", "h.0.mlp.c_fc.bias", "h.0.mlp.c_proj.weight",
                  "h.0.mlp.c_proj.bias", "ln_f.weight", "ln_f.bias"));
}

TEST(Gpt, InitializesAsGpt2) {
  const auto graph = make_graph(make_gpt(small_gpt()));
  const ops::Initializer normal{ops::Initializer::Kind::normal, 0.02f};
  EXPECT_EQ(parameter(graph, "wte.weight").spec.init, normal);
  EXPECT_EQ(parameter(graph, "wpe.weight").spec.init, normal);
  EXPECT_EQ(parameter(graph, "h.1.attn.c_attn.weight").spec.init, normal);
  EXPECT_EQ(parameter(graph, "h.1.mlp.c_fc.bias").spec.init.kind, ops::Initializer::Kind::zero);
  // 0.02 / sqrt(2 * 2 layers)
  EXPECT_FLOAT_EQ(parameter(graph, "h.1.attn.c_proj.weight").spec.init.scale, 0.01f);
  EXPECT_FLOAT_EQ(parameter(graph, "h.0.mlp.c_proj.weight").spec.init.scale, 0.01f);
}

TEST(Gpt, AddsEachBranchToItsOwnInput) {
  auto options = small_gpt();
  options.dropout = 0.1f;
  for (const auto& layer : make_gpt(options).layers) {
    if (layer.name == "h.0.attn.residual") {
      EXPECT_THAT(layer.inputs, ElementsAre("drop", "h.0.attn.drop"));
    }
    if (layer.name == "h.0.mlp.residual") {
      EXPECT_THAT(layer.inputs, ElementsAre("h.0.attn.residual", "h.0.mlp.drop"));
    }
    if (layer.name == "h.1.attn.residual") {
      EXPECT_THAT(layer.inputs, ElementsAre("h.0.mlp.residual", "h.1.attn.drop"));
    }
    if (layer.name == "h.0.attn.core") {
      EXPECT_EQ(std::get<Attention>(layer.op).dropout, 0.1f);
    }
  }
}

TEST(Gpt, RefusesNonsense) {
  auto options = small_gpt();
  options.heads = 5;
  EXPECT_THAT(refusal(make_gpt, options), HasSubstr("nearest are 30 and 35"));
  options = small_gpt();
  options.layers = int64_t{1} << 62;
  EXPECT_THAT(refusal(make_gpt, options), Mentions("1 ... 4096"));
  options = small_gpt();
  options.vocabulary = 0;
  EXPECT_THAT(refusal(make_gpt, options), HasSubstr("vocabulary"));
}

LlamaOptions small_llama() {
  return {.vocabulary = 65,
          .context = 16,
          .layers = 2,
          .heads = 4,
          .key_value_heads = 2,
          .width = 32,
          .hidden = 48};
}

TEST(Llama, HasTheParametersOfLlama32With1B) {
  const auto graph = make_graph(make_llama({.vocabulary = 128256,
                                            .context = 8192,
                                            .layers = 16,
                                            .heads = 32,
                                            .key_value_heads = 8,
                                            .width = 2048,
                                            .hidden = 8192,
                                            .theta = 500000,
                                            .tied_head = true}));
  EXPECT_EQ(graph.parameter_count(), 1235814400);
}

TEST(Llama, NamesParametersAsHuggingFaceDoes) {
  auto options = small_llama();
  options.layers = 1;
  const auto graph = make_graph(make_llama(options));
  EXPECT_THAT(parameter_names(graph),
              ElementsAre("embed_tokens.weight", "layers.0.input_layernorm.weight",
                          "layers.0.self_attn.qkv_proj.weight", "layers.0.self_attn.o_proj.weight",
                          "layers.0.post_attention_layernorm.weight", "layers.0.mlp.gate_proj.weight",
                          "layers.0.mlp.up_proj.weight", "layers.0.mlp.down_proj.weight", "norm.weight",
                          "lm_head.weight"));
  // Four heads of queries, two of keys and two of values, of eight channels each.
  EXPECT_EQ(parameter(graph, "layers.0.self_attn.qkv_proj.weight").spec.shape, (Shape{64, 32}));
}

TEST(Llama, InitializesAsHuggingFaceDoes) {
  auto options = small_llama();
  options.init_std = 0.05f;
  for (const auto& one : make_graph(make_llama(options)).parameters) {
    const bool norm = one.name.find("norm") != std::string::npos;
    EXPECT_EQ(one.spec.init, norm ? ops::Initializer{ops::Initializer::Kind::one}
                                  : (ops::Initializer{ops::Initializer::Kind::normal, 0.05f}))
        << one.name;
  }
}

TEST(Llama, TurnsQueriesAndKeysAndNoValues) {
  for (const auto& layer : make_llama(small_llama()).layers) {
    if (layer.name != "layers.1.self_attn.rotary") continue;
    EXPECT_EQ(std::get<RotaryEmbedding>(layer.op), (RotaryEmbedding{.head_size = 8, .heads = 6}));
    return;
  }
  FAIL() << "there is no such layer";
}

TEST(Llama, FillsInWhatIsLeftOut) {
  LlamaOptions options = small_llama();
  options.hidden = options.key_value_heads = 0;
  const auto graph = make_graph(make_llama(options));
  EXPECT_EQ(parameter(graph, "layers.0.mlp.up_proj.weight").spec.shape, (Shape{128, 32}));
  EXPECT_EQ(parameter(graph, "layers.0.self_attn.qkv_proj.weight").spec.shape, (Shape{96, 32}));
  options.tied_head = true;
  EXPECT_EQ(make_graph(make_llama(options)).parameter_count(), graph.parameter_count() - 65 * 32);
}

TEST(Llama, RefusesNonsense) {
  auto options = small_llama();
  options.heads = 5;
  EXPECT_THAT(refusal(make_llama, options), HasSubstr("nearest are 30 and 35"));
  options = small_llama();
  options.heads = 32;
  EXPECT_THAT(refusal(make_llama, options), HasSubstr("even"));
  options = small_llama();
  options.key_value_heads = 3;
  EXPECT_THAT(refusal(make_llama, options), HasSubstr("key_value_heads"));
}

}  // namespace
}  // namespace lockstep::model
