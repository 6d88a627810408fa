#include "exchange/mapping.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "exchange/exchange_testing.h"
#include "exchange/family.h"
#include "lockstep/error.h"
#include "mentions.h"
#include "model/presets.h"

namespace lockstep::exchange {
namespace {

using test::message_of;
using test::numbers_from;
using test::parameter_of;
using test::small_gpt;
using test::small_llama;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::IsEmpty;

std::vector<float> there_of(const Piece& piece) {
  const auto here = numbers_from(0, piece.shape.count());
  std::vector<float> there(here.size());
  to_there(piece, here.data(), there.data());
  return there;
}

const Piece& piece_of(const Mapping& mapping, const ModelSpec& model, const std::string& parameter,
                      size_t piece = 0) {
  return mapping.pieces[static_cast<size_t>(parameter_of(model, parameter))].at(piece);
}

TEST(Mapping, TransposesMatrices) {
  const Piece piece = transposed("w", Shape{2, 3});
  EXPECT_EQ(piece.shape, (Shape{3, 2}));
  EXPECT_THAT(there_of(piece), ElementsAre(0, 3, 1, 4, 2, 5));
}

TEST(Mapping, PutsChannelsFirst) {
  // [out 2, kh 1, kw 2, in 2] -> [out, in, kh, kw]
  const Piece piece = channels_first("w", Shape{2, 1, 2, 2});
  EXPECT_EQ(piece.shape, (Shape{2, 2, 1, 2}));
  EXPECT_THAT(there_of(piece), ElementsAre(0, 2, 1, 3, 4, 6, 5, 7));
}

TEST(Mapping, ComesBack) {
  const Piece piece = channels_first("w", Shape{3, 2, 5, 4});
  const auto there = there_of(piece);
  std::vector<float> here(there.size());
  to_here(piece, there.data(), here.data());
  EXPECT_EQ(here, numbers_from(0, piece.shape.count()));
}

TEST(Gpt2, HasTransformersNamesAndLayouts) {
  const ModelSpec model = small_gpt();
  const Mapping mapping = families::kGpt2.mapping(model);
  const Piece& projection = piece_of(mapping, model, "h.1.attn.c_attn.weight");
  EXPECT_EQ(projection.name, "transformer.h.1.attn.c_attn.weight");
  EXPECT_EQ(projection.shape, (Shape{4, 12}));
  EXPECT_FALSE(projection.is_as_here());
  EXPECT_TRUE(piece_of(mapping, model, "wte.weight").is_as_here());
  EXPECT_TRUE(piece_of(mapping, model, "h.0.attn.c_attn.bias").is_as_here());
  // The head is the embedding's weight: a second name that files may have, and need not.
  ASSERT_EQ(mapping.implied.size(), 1u);
  EXPECT_EQ(mapping.implied[0].name, "lm_head.weight");
  EXPECT_FALSE(mapping.implied[0].written);
}

TEST(Gpt2, WritesZerosForBiasesThatAModelLacks) {
  const Mapping mapping = families::kGpt2.mapping(small_gpt(/*tied=*/false, /*bias=*/false));
  EXPECT_THAT(mapping.implied, Contains(Field(&Implied::name, "transformer.h.1.mlp.c_fc.bias")));
  EXPECT_THAT(mapping.implied, Contains(Field(&Implied::name, "transformer.ln_f.bias")));
  for (const auto& implied : mapping.implied)
    EXPECT_TRUE(implied.written && implied.parameter < 0) << implied.name;
}

TEST(Gpt2, IsRecognisedByStructureWhateverTheNames) {
  ModelSpec model = small_gpt();
  const auto renamed = [](std::string name) {
    return name == "tokens" || name == "label" ? name : "my/" + name;
  };
  for (auto& layer : model.layers) {
    layer.name = renamed(layer.name);
    for (auto& input : layer.inputs) input = renamed(input);
    for (auto& tie : layer.ties) tie.with = renamed(tie.with);
    if (std::holds_alternative<Add>(layer.op)) std::swap(layer.inputs[0], layer.inputs[1]);
  }
  const Mapping mapping = families::kGpt2.mapping(model);
  EXPECT_EQ(piece_of(mapping, model, "my/h.0.mlp.c_proj.weight").name, "transformer.h.0.mlp.c_proj.weight");
}

/// Attention that is told which document each position belongs to, or which positions count.
ModelSpec with_marks_of(ModelSpec model, const std::string& input, DType dtype) {
  model.inputs.push_back({input, {model.inputs[0].spec.shape, dtype}});
  for (auto& layer : model.layers)
    if (std::holds_alternative<Attention>(layer.op)) layer.inputs.push_back(input);
  return model;
}

TEST(HuggingFace, HasTheWeightsOfModelsOverPackedDocuments) {
  for (const auto& [family, plain] :
       {std::pair(&families::kGpt2, small_gpt()), std::pair(&families::kLlama, small_llama())})
    for (const auto& model :
         {with_marks_of(plain, "documents", DType::int32), with_marks_of(plain, "mask", DType::float32)}) {
      const Mapping mapping = family->mapping(model), expected = family->mapping(plain);
      ASSERT_EQ(mapping.pieces.size(), expected.pieces.size());
      for (size_t p = 0; p < mapping.pieces.size(); ++p) {
        ASSERT_EQ(mapping.pieces[p].size(), expected.pieces[p].size());
        for (size_t i = 0; i < mapping.pieces[p].size(); ++i)
          EXPECT_EQ(mapping.pieces[p][i].name, expected.pieces[p][i].name);
      }
      EXPECT_EQ(family->config_text(model, {}), family->config_text(plain, {}));
    }
}

TEST(Gpt2, IgnoresDropout) {
  const ModelSpec model =
      model::make_gpt({.vocabulary = 7, .context = 5, .layers = 1, .heads = 2, .width = 4, .dropout = 0.25f});
  const auto config = nlohmann::json::parse(families::kGpt2.config_text(model, {}));
  EXPECT_EQ(config.at("attn_pdrop"), 0.25);
  EXPECT_EQ(config.at("embd_pdrop"), 0.25);
  EXPECT_EQ(config.at("resid_pdrop"), 0.25);
}

TEST(Gpt2, IgnoresSmoothedLabels) {
  ModelSpec model = small_gpt();
  for (auto& layer : model.layers)
    if (auto* loss = std::get_if<SoftmaxCrossEntropy>(&layer.op)) loss->label_smoothing = 0.1f;
  EXPECT_EQ(families::kGpt2.mapping(model).pieces.size(), families::kGpt2.mapping(small_gpt()).pieces.size());
}

TEST(Gpt2, RefusesAnotherLayerByName) {
  ModelSpec model = small_gpt();
  for (auto& layer : model.layers)
    if (layer.name == "h.1.mlp.gelu") layer.op = Relu{};
  EXPECT_THAT(message_of<ConfigError>([&] { families::kGpt2.mapping(model); }),
              Mentions("'h.1.mlp.gelu' ... relu ... gelu"));
}

TEST(Gpt2, DescribesItsConfigAndReadsIt) {
  const ModelSpec model = small_gpt();
  const auto config =
      nlohmann::json::parse(families::kGpt2.config_text(model, {.dtype = "bfloat16", .end_of_text = 6}));
  EXPECT_EQ(config.at("n_embd"), 4);
  EXPECT_EQ(config.at("n_positions"), 5);
  EXPECT_EQ(config.at("layer_norm_epsilon"), 1e-5);
  EXPECT_EQ(config.at("eos_token_id"), 6);
  EXPECT_EQ(config.at("torch_dtype"), "bfloat16");
  EXPECT_THAT(families::kGpt2.differences(model, config), IsEmpty());
}

TEST(Gpt2, NamesWhatAConfigHasOtherwise) {
  const ModelSpec model = small_gpt();
  auto config = nlohmann::json::parse(families::kGpt2.config_text(model, {}));
  config["n_head"] = 4;
  EXPECT_THAT(families::kGpt2.differences(model, config), ElementsAre(Mentions("n_head ... 4 ... 2")));
  config["n_head"] = 2;
  for (const char* exact : {"gelu", "gelu_python"}) {
    config["activation_function"] = exact;
    EXPECT_THAT(families::kGpt2.differences(model, config), ElementsAre(Mentions("activation_function")))
        << exact;
  }
  config["activation_function"] = "relu";
  EXPECT_THAT(message_of<ConfigError>([&] { families::kGpt2.differences(model, config); }),
              Mentions("activation_function ... relu ... gelu_new"));
}

TEST(Llama, DividesTheProjectionIntoThree) {
  const ModelSpec model = small_llama();
  const Mapping mapping = families::kLlama.mapping(model);
  const std::string name = "layers.1.self_attn.qkv_proj.weight";
  const Piece &query = piece_of(mapping, model, name, 0), &key = piece_of(mapping, model, name, 1),
              &value = piece_of(mapping, model, name, 2);
  EXPECT_EQ(query.name, "model.layers.1.self_attn.q_proj.weight");
  EXPECT_EQ(query.shape, (Shape{8, 8}));
  EXPECT_EQ(query.first, 0);
  EXPECT_EQ(key.name, "model.layers.1.self_attn.k_proj.weight");
  EXPECT_EQ(key.shape, (Shape{4, 8}));
  EXPECT_EQ(key.first, 64);
  EXPECT_EQ(value.first, 96);
}

TEST(Llama, DescribesScaledPositionsAndReadsThem) {
  ModelSpec model = small_llama();
  for (auto& layer : model.layers)
    if (auto* rotary = std::get_if<RotaryEmbedding>(&layer.op)) {
      rotary->scaling_factor = 8;
      rotary->original_positions = 64;
    }
  auto config = nlohmann::json::parse(families::kLlama.config_text(model, {}));
  for (const char* where : {"rope_parameters", "rope_scaling"}) {
    EXPECT_EQ(config.at(where).at("rope_type"), "llama3");
    EXPECT_EQ(config.at(where).at("factor"), 8);
    EXPECT_EQ(config.at(where).at("original_max_position_embeddings"), 64);
  }
  EXPECT_THAT(families::kLlama.differences(model, config), IsEmpty());
  EXPECT_THAT(families::kLlama.differences(small_llama(), config), ElementsAre(Mentions("factor ... 8")));
  EXPECT_THAT(families::kLlama.preset_text(config, 0),
              Mentions("scaling_factor: 8 ... original_positions: 64"));
  auto unclear = config;
  unclear["rope_scaling"]["low_freq_factor"] = 2.0;
  EXPECT_THAT(message_of<ConfigError>([&] { families::kLlama.differences(model, unclear); }),
              Mentions("rope_parameters ... rope_scaling"));
  unclear["rope_scaling"] = {{"rope_type", "default"}};
  EXPECT_THAT(message_of<ConfigError>([&] { families::kLlama.differences(model, unclear); }),
              Mentions("rope_parameters ... rope_scaling"));
  config.erase("rope_parameters");  // as versions before 5 write it
  EXPECT_THAT(families::kLlama.differences(model, config), IsEmpty());
  config["rope_scaling"]["factor"] = 4.0;
  EXPECT_THAT(families::kLlama.differences(model, config), ElementsAre(Mentions("factor ... 4 ... 8")));
  config["rope_scaling"]["factor"] = 0;
  EXPECT_THAT(message_of<ConfigError>([&] { families::kLlama.differences(model, config); }),
              Mentions("rope_scaling ... positive"));
  config["rope_scaling"]["factor"] = 4.0;
  config["rope_scaling"].erase("high_freq_factor");
  EXPECT_THAT(message_of<ConfigError>([&] { families::kLlama.differences(model, config); }),
              Mentions("high_freq_factor"));
}

TEST(Llama, DescribesItsConfigAndReadsIt) {
  const ModelSpec model = small_llama(/*tied=*/true);
  auto config = nlohmann::json::parse(families::kLlama.config_text(model, {}));
  EXPECT_EQ(config.at("num_key_value_heads"), 2);
  EXPECT_EQ(config.at("rope_parameters").at("rope_theta"), 10000);
  EXPECT_THAT(families::kLlama.differences(model, config), IsEmpty());
  config["rope_parameters"]["rope_theta"] = 500.0;
  EXPECT_THAT(message_of<ConfigError>([&] { families::kLlama.differences(model, config); }),
              Mentions("rope_parameters.rope_theta ... 500 ... rope_theta 10000"));
  config["rope_theta"] = nullptr;
  EXPECT_THAT(families::kLlama.differences(model, config), ElementsAre(Mentions("theta ... 500")));
  config["rope_parameters"]["rope_theta"] = 10000.0;
  config["rope_parameters"]["partial_rotary_factor"] = 1.0;
  EXPECT_THAT(families::kLlama.differences(model, config), IsEmpty());
  for (const nlohmann::json& odd : {nlohmann::json(2.0), nlohmann::json("linear"), nlohmann::json::array(),
                                    nlohmann::json{{"factor", 2.0}}, nlohmann::json{{"rope_type", 3}}}) {
    config["rope_scaling"] = odd;
    EXPECT_THROW(families::kLlama.differences(model, config), ConfigError) << odd;
  }
  config["rope_scaling"] = nullptr;
  config["rope_parameters"]["rope_type"] = "yarn";
  EXPECT_THAT(message_of<ConfigError>([&] { families::kLlama.differences(model, config); }),
              Mentions("rope_parameters ... yarn ... llama3"));
}

TEST(Layers, ReorderTheLinearLayerBehindAFlattenedImage) {
  const ModelSpec model = model::make_lenet({.image = Shape{16, 16, 1}, .batch_norm = true});
  const Mapping mapping = families::kLayers.mapping(model);
  EXPECT_EQ(piece_of(mapping, model, "conv2.weight").shape, (Shape{16, 6, 5, 5}));
  const Piece& first = piece_of(mapping, model, "fc1.weight");
  EXPECT_EQ(first.here, (Shape{120, 2, 2, 16}));
  EXPECT_EQ(first.shape, (Shape{120, 64}));
  EXPECT_TRUE(piece_of(mapping, model, "fc2.weight").is_as_here());
  EXPECT_TRUE(piece_of(mapping, model, "bn1.running_mean").is_as_here());
}

TEST(Layers, ReorderWhatReadsAFlattenedImageOfSeveralChannels) {
  const ModelSpec model = model::make_mlp({.image = Shape{1, 2, 3}, .hidden = {2}, .classes = 2});
  const Mapping mapping = families::kLayers.mapping(model);
  const Piece& first = piece_of(mapping, model, "fc1.weight");
  EXPECT_EQ(first.shape, (Shape{2, 6}));
  // Two pixels of three channels: r0 g0 b0 r1 g1 b1 -> r0 r1 g0 g1 b0 b1.
  EXPECT_THAT(there_of(first), ElementsAre(0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11));
  EXPECT_TRUE(piece_of(mapping, model, "fc1.bias").is_as_here());
}

TEST(Layers, RefuseToMakeAnImageOfFeatures) {
  const auto model = [](const std::string& shape) {
    ModelBuilder builder;
    const auto image = builder.input("image", {{8}}), label = builder.input("label", {{}, DType::int32});
    auto last = builder.add("fc", Linear{.units = 8}, {image});
    last = builder.add("seen", Reshape{.shape = shape}, {last});
    last = builder.add("conv", Conv2d{.channels = 2, .kernel = 1}, {last});
    last = builder.add("flat", Flatten{}, {last});
    last = builder.add("head", Linear{.units = 3}, {last});
    builder.add("loss", SoftmaxCrossEntropy{}, {last, label});
    return builder.build();
  };
  EXPECT_THAT(message_of<ConfigError>([&] { families::kLayers.mapping(model("2,2,2")); }),
              Mentions("'seen' ... image of features"));
  EXPECT_NO_THROW(families::kLayers.mapping(model("2,4,1")));
  EXPECT_NO_THROW(families::kLayers.mapping(model("1,1,8")));
}

TEST(Layers, RefuseToTransposeAnImage) {
  ModelBuilder builder;
  const auto image = builder.input("image", {{4, 4, 3}}), label = builder.input("label", {{}, DType::int32});
  auto last = builder.add("turned", Transpose{.order = "2,0,1"}, {image});
  last = builder.add("flat", Flatten{}, {last});
  last = builder.add("head", Linear{.units = 3}, {last});
  builder.add("loss", SoftmaxCrossEntropy{}, {last, label});
  const ModelSpec model = builder.build();
  EXPECT_THAT(message_of<ConfigError>([&] { families::kLayers.mapping(model); }),
              Mentions("'turned' ... transpose"));
}

TEST(Layers, RefuseAFlattenedImageWhereItsOrderMatters) {
  const auto model = [](const std::string& shape) {
    ModelBuilder builder;
    const auto image = builder.input("image", {{2, 2, 3}}),
               label = builder.input("label", {{}, DType::int32});
    auto last = builder.add("reshaped", Reshape{.shape = shape}, {image});
    last = builder.add("flat", Flatten{}, {last});
    last = builder.add("fc", Linear{.units = 2}, {last});
    builder.add("loss", SoftmaxCrossEntropy{}, {last, label});
    return builder.build();
  };
  EXPECT_THAT(message_of<ConfigError>([&] { families::kLayers.mapping(model("6,2")); }),
              Mentions("'reshaped'"));
  const ModelSpec flat = model("12");
  EXPECT_FALSE(piece_of(families::kLayers.mapping(flat), flat, "fc.weight").is_as_here());
  // A sequence of pixels, each with its channels.
  const ModelSpec sequence = model("4,3");
  EXPECT_TRUE(piece_of(families::kLayers.mapping(sequence), sequence, "fc.weight").is_as_here());
}

/// Features beside a flattened image, in either order, through `joining`.
template <class Join>
std::string refusal_of_image(bool image_first, const Shape& features, const Join& joining) {
  ModelBuilder builder;
  const auto image = builder.input("image", {{4, 4, 3}}), other = builder.input("other", {features}),
             label = builder.input("label", {{}, DType::int32});
  const auto flat = builder.add("flat", Flatten{}, {image});
  const auto joined =
      builder.add("joined", joining, image_first ? std::vector{flat, other} : std::vector{other, flat});
  builder.add("loss", SoftmaxCrossEntropy{}, {builder.add("head", Linear{.units = 3}, {joined}), label});
  const ModelSpec model = builder.build();
  return message_of<ConfigError>([&] { families::kLayers.mapping(model); });
}

TEST(Layers, RefuseAFlattenedImageBesideOtherInputs) {
  for (const bool image_first : {false, true}) {
    EXPECT_THAT(refusal_of_image(image_first, {5}, Concatenate{.axis = 0}),
                Mentions("'joined' ... concatenate"));
    EXPECT_THAT(refusal_of_image(image_first, {48}, Add{}), Mentions("'joined' ... add"));
  }
  // As a mask.
  EXPECT_THAT(refusal_of_image(false, {48, 2}, SequencePool{}), Mentions("'joined' ... sequence_pool"));
}

TEST(Family, NamesWhatAFormatKnows) {
  EXPECT_EQ(family_of(small_gpt(), Format::huggingface).name, "gpt2");
  EXPECT_EQ(family_of(small_llama(), Format::huggingface).name, "llama");
  EXPECT_EQ(family_of(small_llama(), Format::pytorch).name, "layers");
  EXPECT_THAT(message_of<ConfigError>([] { family_of(model::make_mlp({}), Format::huggingface); }),
              Mentions("gpt2 ... llama"));
  EXPECT_THAT(message_of<ConfigError>([] {
                family_of(nlohmann::json{{"model_type", "mistral"}}, "x/config.json");
              }),
              Mentions("x/config.json ... mistral"));
}

std::vector<std::string> names_there(const ModelSpec& model) {
  std::vector<std::string> names;
  for (const auto& pieces : family_of(model, Format::pytorch).mapping(model).pieces)
    for (const Piece& piece : pieces) names.push_back(piece.name);
  return names;
}

TEST(Layers, NameAnLstmsParametersAsPyTorch) {
  EXPECT_THAT(names_there(model::make_lstm(
                  {.vocabulary = 5, .context = 4, .layers = 2, .width = 3, .tied_head = true})),
              ElementsAre("encoder.weight", "rnn.weight_ih_l0", "rnn.weight_hh_l0", "rnn.bias_ih_l0",
                          "rnn.bias_hh_l0", "rnn.weight_ih_l1", "rnn.weight_hh_l1", "rnn.bias_ih_l1",
                          "rnn.bias_hh_l1", "decoder.bias"));
  ModelBuilder builder;
  const auto x = builder.input("image", {{4, 3}});
  const auto label = builder.input("label", {{}, DType::int32});
  const auto states = builder.add("net.lstm", Lstm{.units = 2, .bidirectional = true}, {x});
  const auto ends = builder.add("ends", SequencePool{.kind = SequencePoolKind::ends}, {states});
  builder.add("loss", SoftmaxCrossEntropy{}, {ends, label});
  EXPECT_THAT(
      names_there(builder.build()),
      ElementsAre("net.lstm.weight_ih_l0", "net.lstm.weight_hh_l0", "net.lstm.bias_ih_l0",
                  "net.lstm.bias_hh_l0", "net.lstm.weight_ih_l0_reverse", "net.lstm.weight_hh_l0_reverse",
                  "net.lstm.bias_ih_l0_reverse", "net.lstm.bias_hh_l0_reverse"));
}

struct StackedLstm {
  std::string name;
  Lstm op = {.units = 2};
  bool masked = false;
};

/// LSTMs one behind the other, with `between` behind each.
template <class Between>
ModelSpec lstms(const std::vector<StackedLstm>& layers, const Between& between) {
  ModelBuilder builder;
  auto last = builder.input("image", {{4, 3}});
  const auto mask = builder.input("mask", {{4}}), label = builder.input("label", {{}, DType::int32});
  for (const auto& [name, op, masked] : layers) {
    last = builder.add(name, op, masked ? std::vector{last, mask} : std::vector{last});
    last = builder.add("behind_" + name, between, {last});
  }
  last = builder.add("pool", SequencePool{}, {last, mask});
  builder.add("loss", SoftmaxCrossEntropy{}, {last, label});
  return builder.build();
}

std::string refusal_of(const ModelSpec& model) {
  return message_of<ConfigError>([&] { families::kLayers.mapping(model); });
}

TEST(Layers, RefuseTwoLayersOfOneNameInPyTorch) {
  EXPECT_THAT(refusal_of(lstms({{"rnn"}, {"rnn.l0"}}, Dropout{})),
              Mentions("'rnn.weight_ih' ... 'rnn.l0.weight_ih' ... 'rnn.weight_ih_l0'"));
}

TEST(Layers, RefuseNumberedLstmsThatAreNoneOfPyTorch) {
  EXPECT_THAT(names_there(lstms({{"x.l0", {.units = 2}, true}, {"x.l1", {.units = 2}, true}}, Dropout{0.5f})),
              Contains("x.weight_hh_l1"));
  EXPECT_THAT(refusal_of(lstms({{"x.l0"}, {"x.l2"}}, Dropout{})), Mentions("'x.l2' ... 'x.l1'"));
  EXPECT_THAT(refusal_of(lstms({{"x.l1"}}, Dropout{})), Mentions("'x.l1' ... 'x.l0'"));
  const std::vector<std::vector<StackedLstm>> others{
      {{"x.l1"}, {"x.l0"}},
      {{"x.l0"}, {"x.l1", {.units = 3}}},
      {{"x.l0"}, {"x.l1", {.units = 2, .bidirectional = true}}},
      {{"x.l0", {.units = 2}, true}, {"x.l1"}}};
  for (const auto& layers : others)
    EXPECT_THAT(refusal_of(lstms(layers, Dropout{})), Mentions("'x.l0' ... 'x.l1' ... nn.LSTM"));
  EXPECT_THAT(refusal_of(lstms({{"x.l0"}, {"x.l1"}}, LayerNorm{})),
              Mentions("'x.l0' ... 'x.l1' ... nn.LSTM"));
  EXPECT_THAT(names_there(lstms({{"x.l01"}, {"y.l"}}, LayerNorm{})), Contains("x.l01.weight_hh_l0"));
}

TEST(Layers, NameAnInProjOfOtherModulesPlainly) {
  const auto model = [](int64_t units, const Op& reader) {
    ModelBuilder builder;
    const auto x = builder.input("image", {{4, 2}}), label = builder.input("label", {{}, DType::int32});
    auto last = builder.add("mixer.in_proj", Linear{.units = units}, {x});
    last = builder.add("reader", reader, {last});
    last = builder.add("pool", SequencePool{}, {last});
    builder.add("loss", SoftmaxCrossEntropy{}, {last, label});
    return builder.build();
  };
  EXPECT_THAT(names_there(model(6, Attention{.heads = 2})), Contains("mixer.in_proj_weight"));
  EXPECT_THAT(names_there(model(6, Silu{})), Contains("mixer.in_proj.weight"));
  // Fewer heads of keys and values than nn.MultiheadAttention has.
  EXPECT_THAT(names_there(model(4, Attention{.heads = 2, .key_value_heads = 1})),
              Contains("mixer.in_proj.weight"));
}

TEST(Layers, NameAVisionTransformersParametersAsTorchvision) {
  const ModelSpec model =
      model::make_vit({.image = {8, 8, 3}, .patch = 4, .layers = 1, .heads = 2, .width = 8});
  const auto names = names_there(model);
  const std::string attention = "encoder.layers.encoder_layer_0.self_attention.";
  for (const std::string& name :
       {std::string("class_token"), std::string("encoder.pos_embedding"), attention + "in_proj_weight",
        attention + "in_proj_bias", attention + "out_proj.weight", std::string("heads.head.bias")})
    EXPECT_THAT(names, Contains(name));
  const Mapping mapping = family_of(model, Format::pytorch).mapping(model);
  EXPECT_EQ(piece_of(mapping, model, "class_token.weight").shape, (Shape{1, 1, 8}));
  EXPECT_EQ(piece_of(mapping, model, "encoder.pos_embedding.weight").shape, (Shape{1, 5, 8}));
  EXPECT_EQ(piece_of(mapping, model, "conv_proj.weight").shape, (Shape{8, 3, 4, 4}));
}

}  // namespace
}  // namespace lockstep::exchange
