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
std::string preset_refusal(ModelSpec (*make)(const Options&), const Options& options) {
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
  EXPECT_THAT(preset_refusal(make_mlp, {.hidden = {16, 0}}), HasSubstr("hidden[1]"));
  EXPECT_THAT(preset_refusal(make_mlp, {.classes = 1}), HasSubstr("classes"));
  EXPECT_THAT(preset_refusal(make_mlp, {.dropout = 1.0f}), HasSubstr("dropout"));
  EXPECT_THAT(preset_refusal(make_mlp, {.dropout = NAN}), HasSubstr("dropout"));
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
  EXPECT_THAT(preset_refusal(make_lenet, {.image = {11, 28, 1}}), HasSubstr("12 x 12"));
  EXPECT_THAT(preset_refusal(make_lenet, {.image = {784}}), HasSubstr("12 x 12"));
  EXPECT_NO_THROW(make_lenet({.image = {12, 12, 3}}));
}

int64_t parameters_of(const ModelSpec& spec) { return make_graph(spec).parameter_count(); }

TEST(Resnet, HasTheParametersOfTorchvision) {
  EXPECT_EQ(parameters_of(make_resnet({.depth = 18})), 11689512);
  EXPECT_EQ(parameters_of(make_resnet({.depth = 34})), 21797672);
  EXPECT_EQ(parameters_of(make_resnet({.depth = 50})), 25557032);
  EXPECT_EQ(parameters_of(make_resnet({.depth = 101})), 44549160);
  EXPECT_EQ(parameters_of(make_resnet({.depth = 152})), 60192808);
  // resnext50_32x4d and wide_resnet50_2
  EXPECT_EQ(parameters_of(make_resnet({.depth = 50, .groups = 32, .width_per_group = 4})), 25028904);
  EXPECT_EQ(parameters_of(make_resnet({.depth = 50, .width_per_group = 128})), 68883240);
}

TEST(Resnet, NamesItsLayersAsTorchvisionDoes) {
  const auto names = layer_names(make_resnet({.depth = 18}));
  EXPECT_EQ(std::vector(names.begin(), names.begin() + 11),
            (std::vector<std::string>{"conv1", "bn1", "relu", "maxpool", "layer1.0.conv1", "layer1.0.bn1",
                                      "layer1.0.relu1", "layer1.0.conv2", "layer1.0.bn2", "layer1.0.add",
                                      "layer1.0.relu"}));
  EXPECT_THAT(names, ::testing::IsSupersetOf({"layer2.0.downsample.0", "layer2.0.downsample.1",
                                              "layer4.1.conv2", "avgpool", "fc", "loss"}));
  EXPECT_THAT(names, ::testing::Not(::testing::Contains("layer1.0.downsample.0")));
  EXPECT_THAT(layer_names(make_resnet({.depth = 50})), ::testing::Contains("layer1.0.downsample.0"));
}

TEST(Resnet, HasTheStrideInTheThreeByThreeConvolution) {
  for (const auto& layer : make_resnet({.depth = 50}).layers) {
    if (layer.name == "layer2.0.conv1") EXPECT_EQ(std::get<Conv2d>(layer.op).stride, 1);
    if (layer.name == "layer2.0.conv2") EXPECT_EQ(std::get<Conv2d>(layer.op).stride, 2);
    if (layer.name == "layer2.0.downsample.0") EXPECT_EQ(std::get<Conv2d>(layer.op).stride, 2);
    if (layer.name == "layer2.1.conv2") EXPECT_EQ(std::get<Conv2d>(layer.op).stride, 1);
  }
}

TEST(Resnet, InitializesAsTorchvision) {
  const auto graph = make_graph(make_resnet({.depth = 50}));
  const auto normal = [](double deviation) {
    return ops::Initializer{ops::Initializer::Kind::normal, static_cast<float>(deviation)};
  };
  // Of the standard deviations of torchvision's fresh weights: sqrt(2 / fan-out).
  EXPECT_EQ(parameter(graph, "conv1.weight").spec.init, normal(std::sqrt(2.0f / (64 * 49))));
  EXPECT_EQ(parameter(graph, "layer1.0.conv3.weight").spec.init, normal(std::sqrt(2.0f / 256)));
  EXPECT_EQ(parameter(graph, "layer1.0.bn3.weight").spec.init.kind, ops::Initializer::Kind::one);
  EXPECT_EQ(parameter(graph, "fc.bias").spec.init.kind, ops::Initializer::Kind::uniform);
  const auto zeroed = make_graph(make_resnet({.depth = 50, .zero_init = true}));
  EXPECT_EQ(parameter(zeroed, "layer1.0.bn3.weight").spec.init.kind, ops::Initializer::Kind::zero);
  EXPECT_EQ(parameter(zeroed, "layer1.0.bn2.weight").spec.init.kind, ops::Initializer::Kind::one);
  EXPECT_EQ(parameter(zeroed, "layer1.0.downsample.1.weight").spec.init.kind, ops::Initializer::Kind::one);
}

TEST(Resnet, WithASmallStemKeepsSmallImagesLarge) {
  const auto spec = make_resnet({.image = {32, 32, 3}, .depth = 18, .classes = 10, .small_stem = true});
  EXPECT_THAT(layer_names(spec), ::testing::Not(::testing::Contains("maxpool")));
  EXPECT_EQ(parameters_of(spec), 11173962);
  for (const auto& value : make_graph(spec).values)
    if (value.name == "layer4.1.relu") EXPECT_EQ(value.spec.shape, (Shape{4, 4, 512}));
}

TEST(Resnet, RefusesNonsense) {
  EXPECT_THAT(preset_refusal(make_resnet, {.depth = 20}), Mentions("depth ... 18, 34"));
  EXPECT_THAT(preset_refusal(make_resnet, {.image = {224, 224}}), HasSubstr("image"));
  EXPECT_THAT(preset_refusal(make_resnet, {.depth = 18, .groups = 2}), HasSubstr("bottlenecks"));
  EXPECT_THAT(preset_refusal(make_resnet, {.width = 3, .width_per_group = 5}), HasSubstr("multiple of 64"));
}

TEST(Vgg, HasTheParametersOfTorchvision) {
  EXPECT_EQ(parameters_of(make_vgg({.depth = 11})), 132863336);
  EXPECT_EQ(parameters_of(make_vgg({.depth = 13})), 133047848);
  EXPECT_EQ(parameters_of(make_vgg({.depth = 16})), 138357544);
  EXPECT_EQ(parameters_of(make_vgg({.depth = 19})), 143667240);
  EXPECT_EQ(parameters_of(make_vgg({.depth = 11, .batch_norm = true})), 132868840);
  EXPECT_EQ(parameters_of(make_vgg({.depth = 19, .batch_norm = true})), 143678248);
}

TEST(Vgg, NamesItsLayersAsTorchvisionDoes) {
  EXPECT_THAT(
      layer_names(make_vgg({.image = {32, 32, 3}, .depth = 11, .width = 4})),
      ElementsAre("features.0", "features.1", "features.2", "features.3", "features.4", "features.5",
                  "features.6", "features.7", "features.8", "features.9", "features.10", "features.11",
                  "features.12", "features.13", "features.14", "features.15", "features.16", "features.17",
                  "features.18", "features.19", "features.20", "flatten", "classifier.0", "classifier.1",
                  "classifier.2", "classifier.3", "classifier.4", "classifier.5", "classifier.6", "loss"));
}

TEST(Vgg, InitializesAsTorchvision) {
  const auto graph = make_graph(make_vgg({.depth = 11, .batch_norm = true}));
  using enum ops::Initializer::Kind;
  EXPECT_EQ(parameter(graph, "features.0.weight").spec.init,
            (ops::Initializer{normal, std::sqrt(2.0f / (64 * 9))}));
  EXPECT_EQ(parameter(graph, "features.1.weight").spec.init.kind, one);
  EXPECT_EQ(parameter(graph, "classifier.6.weight").spec.init, (ops::Initializer{normal, 0.01f}));
  for (const char* bias : {"features.0.bias", "features.1.bias", "classifier.0.bias"})
    EXPECT_EQ(parameter(graph, bias).spec.init.kind, zero) << bias;
}

TEST(Vgg, RefusesNonsense) {
  EXPECT_THAT(preset_refusal(make_vgg, {.image = {31, 32, 3}}), HasSubstr("32 x 32"));
  EXPECT_THAT(preset_refusal(make_vgg, {.depth = 12}), Mentions("depth ... 11, 13, 16 or 19"));
  EXPECT_THAT(preset_refusal(make_vgg, {.dropout = 1.0f}), HasSubstr("dropout"));
}

TEST(Vit, HasTheParametersOfTorchvision) {
  EXPECT_EQ(parameters_of(make_vit({})), 86567656);                                           // vit_b_16
  EXPECT_EQ(parameters_of(make_vit({.patch = 32})), 88224232);                                // vit_b_32
  EXPECT_EQ(parameters_of(make_vit({.layers = 24, .heads = 16, .width = 1024})), 304326632);  // vit_l_16
}

TEST(Vit, NamesItsLayersAsTorchvisionDoes) {
  const std::string block = "encoder.layers.encoder_layer_0.";
  EXPECT_THAT(
      layer_names(make_vit({.image = {8, 8, 3}, .patch = 4, .layers = 1, .heads = 2, .width = 8})),
      ElementsAre("conv_proj", "patches", "class_token", "encoder.pos_embedding", block + "ln_1",
                  block + "self_attention.in_proj", block + "self_attention.core",
                  block + "self_attention.out_proj", block + "self_attention.residual", block + "ln_2",
                  block + "mlp.0", block + "mlp.1", block + "mlp.3", block + "mlp.residual", "encoder.ln",
                  "class_token.slice", "class_token.flatten", "heads.head", "loss"));
}

TEST(Vit, WithoutAClassTokenTakesTheMean) {
  const auto spec =
      make_vit({.image = {8, 4, 3}, .patch = 4, .layers = 1, .heads = 1, .width = 4, .pools_mean = true});
  const auto graph = make_graph(spec);
  EXPECT_EQ(parameter(graph, "encoder.pos_embedding.weight").spec.shape, (Shape{2, 4}));
  EXPECT_THAT(layer_names(spec), ::testing::Contains("pool"));
  EXPECT_THAT(layer_names(spec), ::testing::Not(::testing::Contains("class_token")));
}

TEST(Vit, InitializesAsTorchvision) {
  const auto graph = make_graph(make_vit({}));  // vit_b_16
  using enum ops::Initializer::Kind;
  const auto init = [&](const std::string& name) { return parameter(graph, name).spec.init; };
  const std::string block = "encoder.layers.encoder_layer_3.";
  EXPECT_EQ(init("conv_proj.weight"), (ops::Initializer{normal, std::sqrt(1.0f / (3 * 16 * 16))}));
  EXPECT_EQ(init("encoder.pos_embedding.weight"), (ops::Initializer{normal, 0.02f}));
  EXPECT_EQ(init(block + "self_attention.in_proj.weight"),
            (ops::Initializer{uniform, std::sqrt(6.0f / (768 + 3 * 768))}));
  EXPECT_EQ(init(block + "self_attention.out_proj.weight"),
            (ops::Initializer{uniform, 1 / std::sqrt(768.0f)}));
  for (const char* layer : {"mlp.0", "mlp.3"}) {
    EXPECT_EQ(init(block + layer + ".weight"), (ops::Initializer{uniform, std::sqrt(6.0f / (768 + 3072))}));
    EXPECT_EQ(init(block + layer + ".bias"), (ops::Initializer{normal, 1e-6f}));
  }
  for (const std::string name :
       {"conv_proj.bias", "class_token.weight", "heads.head.weight", "heads.head.bias"})
    EXPECT_EQ(init(name).kind, zero) << name;
  for (const char* name : {"self_attention.in_proj.bias", "self_attention.out_proj.bias", "ln_1.bias"})
    EXPECT_EQ(init(block + name).kind, zero) << name;
  EXPECT_EQ(init("encoder.ln.weight").kind, one);
}

TEST(Vit, RefusesNonsense) {
  EXPECT_THAT(preset_refusal(make_vit, {.image = {20, 32, 3}}), Mentions("patch"));
  EXPECT_THAT(preset_refusal(make_vit, {.heads = 7}), Mentions("heads"));
  EXPECT_THAT(preset_refusal(make_vit, {.attention_dropout = 1.0f}), Mentions("dropout"));
}

TEST(Lstm, IsALanguageModelOrAClassifier) {
  EXPECT_THAT(
      layer_names(make_lstm({.vocabulary = 9, .context = 5, .layers = 2, .width = 4, .dropout = 0.1f})),
      ElementsAre("encoder", "drop", "rnn.l0", "rnn.drop0", "rnn.l1", "rnn.drop1", "decoder", "loss"));
  const auto classifier = make_lstm(
      {.vocabulary = 9, .context = 5, .width = 4, .classes = 3, .bidirectional = true, .pools_last = true});
  EXPECT_THAT(layer_names(classifier), ElementsAre("encoder", "rnn.l0", "pool", "decoder", "loss"));
  EXPECT_THAT(classifier.layers[1].inputs, ElementsAre("encoder", "mask"));
  EXPECT_EQ(std::get<SequencePool>(classifier.layers[2].op).kind, SequencePoolKind::ends);
  EXPECT_EQ(parameter(make_graph(classifier), "decoder.weight").spec.shape, (Shape{3, 8}));
}

TEST(Lstm, HasPyTorchsParameters) {
  const auto graph = make_graph(make_lstm({.vocabulary = 9, .context = 5, .width = 4, .units = 6}));
  EXPECT_THAT(parameter_names(graph),
              ElementsAre("encoder.weight", "rnn.l0.weight_ih", "rnn.l0.weight_hh", "rnn.l0.bias_ih",
                          "rnn.l0.bias_hh", "decoder.weight", "decoder.bias"));
  EXPECT_EQ(parameter(graph, "rnn.l0.weight_ih").spec.shape, (Shape{24, 4}));
  EXPECT_FLOAT_EQ(parameter(graph, "rnn.l0.bias_hh").spec.init.scale, 1 / std::sqrt(6.0f));
  EXPECT_EQ(
      make_graph(make_lstm({.vocabulary = 9, .context = 5, .width = 4, .tied_head = true})).parameter_count(),
      9 * 4 + 16 * (4 + 4 + 2) + 9);
}

TEST(Lstm, InitializesAsPyTorchsWordLanguageModel) {
  using enum ops::Initializer::Kind;
  for (const int64_t classes : {0, 3}) {
    const auto graph = make_graph(
        make_lstm({.vocabulary = 9, .context = 5, .layers = 2, .width = 4, .units = 6, .classes = classes}));
    for (const auto& one : graph.parameters) {
      const bool is_bias = one.name == "decoder.bias", is_lstm = one.name.starts_with("rnn.");
      EXPECT_EQ(one.spec.init, is_bias ? ops::Initializer{}
                                       : ops::Initializer(uniform, is_lstm ? 1 / std::sqrt(6.0f) : 0.1f))
          << one.name;
    }
  }
}

TEST(Lstm, RefusesNonsense) {
  const LstmOptions language{.vocabulary = 9, .context = 5, .width = 4};
  const auto refuses = [&](const char* word, const auto& change) {
    LstmOptions options = language;
    change(options);
    EXPECT_THAT(preset_refusal(make_lstm, options), Mentions(word));
  };
  refuses("bidirectional", [](auto& options) { options.bidirectional = true; });
  refuses("pool", [](auto& options) { options.pools_last = true; });
  refuses("tied_head", [](auto& options) { options.tied_head = true, options.units = 5; });
  refuses("classes", [](auto& options) { options.classes = 1; });
  refuses("width", [](auto& options) { options.width = 0; });
}

GptOptions small_gpt() { return {.vocabulary = 65, .context = 16, .layers = 2, .heads = 4, .width = 32}; }

TEST(Presets, SmoothLabelsWhereTheyClassify) {
  const auto smoothing_of = [](const ModelSpec& spec) {
    return std::get<SoftmaxCrossEntropy>(spec.layers.back().op).label_smoothing;
  };
  EXPECT_EQ(smoothing_of(make_mlp({.label_smoothing = 0.25f})), 0.25f);
  EXPECT_EQ(smoothing_of(make_lenet({.label_smoothing = 0.25f})), 0.25f);
  EXPECT_EQ(smoothing_of(make_resnet({.label_smoothing = 0.25f})), 0.25f);
  EXPECT_EQ(smoothing_of(make_vgg({.label_smoothing = 0.25f})), 0.25f);
  EXPECT_EQ(smoothing_of(make_vit({.label_smoothing = 0.25f})), 0.25f);
  EXPECT_EQ(smoothing_of(make_resnet({})), 0);
}

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
  EXPECT_THAT(preset_refusal(make_gpt, options), HasSubstr("nearest are 30 and 35"));
  options = small_gpt();
  options.layers = int64_t{1} << 62;
  EXPECT_THAT(preset_refusal(make_gpt, options), Mentions("1 ... 4096"));
  options = small_gpt();
  options.vocabulary = 0;
  EXPECT_THAT(preset_refusal(make_gpt, options), HasSubstr("vocabulary"));
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
  EXPECT_THAT(preset_refusal(make_llama, options), HasSubstr("nearest are 30 and 35"));
  options = small_llama();
  options.heads = 32;
  EXPECT_THAT(preset_refusal(make_llama, options), HasSubstr("even"));
  options = small_llama();
  options.key_value_heads = 3;
  EXPECT_THAT(preset_refusal(make_llama, options), HasSubstr("key_value_heads"));
}

}  // namespace
}  // namespace lockstep::model
