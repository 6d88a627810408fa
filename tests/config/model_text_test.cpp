#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "config_testing.h"
#include "mentions.h"
#include "model/graph.h"
#include "model/presets.h"
#include "ops/op.h"

namespace lockstep::config {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

ModelSpec read_model(const std::string& text) { return model_from_text(text, "m.textproto"); }

std::string refusal_of_model(const std::string& text) {
  try {
    read_model(text);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

const std::string kInputs = R"(input { name: "x" shape: [4, 4] } input { name: "label" type: INT32 }
)";

/// "name(inputs)" of each layer.
std::vector<std::string> wiring(const ModelSpec& spec) {
  std::vector<std::string> lines;
  for (const auto& layer : spec.layers) {
    std::string line = layer.name + "(";
    for (const auto& input : layer.inputs) line += (line.back() == '(' ? "" : ", ") + input;
    lines.push_back(line + ")");
  }
  return lines;
}

void expect_op(const std::string& text, const Op& op) {
  EXPECT_EQ(read_model(kInputs + "layer { name: \"a\" " + text + " }").layers[0].op, op) << text;
}

TEST(Ops, OptionsHaveTheNamesOfTheirFields) {
  expect_op("conv2d { channels: 2 kernel: 3 stride: 4 padding: 5 bias: false }",
            Conv2d{.channels = 2, .kernel = 3, .stride = 4, .padding = 5, .bias = false});
  expect_op("conv2d { channels: 8 kernel: 3 groups: 4 dilation: 2 init_std: 0.25 }",
            Conv2d{.channels = 8, .kernel = 3, .groups = 4, .dilation = 2, .init_std = 0.25f});
  expect_op("batch_norm { zero_weight: true }", BatchNorm{.zero_weight = true});
  expect_op("linear { units: 3 init_range: 0.5 bias_init_std: 0.25 }",
            Linear{.units = 3, .init_range = 0.5f, .bias_init_std = 0.25f});
  expect_op("linear { units: 3 zero_weight: true }", Linear{.units = 3, .zero_weight = true});
  expect_op("pool2d { kind: AVERAGE kernel: 2 }", Pool2d{.kind = PoolKind::average, .kernel = 2});
  expect_op("pool2d { kind: AVERAGE kernel: 3 padding: 1 count_include_pad: true }",
            Pool2d{.kind = PoolKind::average, .kernel = 3, .padding = 1, .count_include_pad = true});
  expect_op("gelu { kind: ERF }", Gelu{GeluKind::erf});
  expect_op("upsample2d { kind: BILINEAR scale: 2 align_corners: true }",
            Upsample2d{.kind = UpsampleKind::bilinear, .scale = 2, .align_corners = true});
  expect_op("upsample2d { scale: 0.7 }", Upsample2d{.scale = 0.7});
  expect_op("upsample2d { height: 5 width: 7 }", Upsample2d{.height = 5, .width = 7});
  expect_op(
      "rotary_embedding { head_size: 8 scaling_factor: 8 low_frequency_factor: 2 high_frequency_factor: 3 "
      "original_positions: 64 }",
      RotaryEmbedding{.head_size = 8,
                      .scaling_factor = 8,
                      .low_frequency_factor = 2,
                      .high_frequency_factor = 3,
                      .original_positions = 64});
  expect_op(
      "custom { name: \"snake\" attribute { name: \"a\" value: 0.1 } attribute { name: \"b\" value: -2 } }",
      Custom{"snake", {{"a", 0.1}, {"b", -2}}});
  expect_op("dropout { rate: 0.25 }", Dropout{.rate = 0.25f});
  expect_op("reshape { shape: \"2,-1\" }", Reshape{"2,-1"});
}

/// Gives each option but `kept` a value that is not its default, and lists all their names.
struct Change {
  Change(std::string_view kept_option, std::vector<std::string>* all) : kept(kept_option), names(all) {}

  template <class T>
  void operator()(const char* name, T& v) const {
    if constexpr (std::is_same_v<T, std::vector<CustomAttribute>>) {  // a list, empty if it is left out
      v = {{"a", 0.25}, {"b", -1e9}};
      return;
    } else {
      change(name, v);
    }
  }

 private:
  template <class T>
  void change(const char* name, T& v) const {
    names->push_back(name);
    if (name == kept) return;
    if constexpr (std::is_same_v<T, int64_t>)
      v += 7;
    else if constexpr (std::is_same_v<T, bool>)
      v = !v;
    else if constexpr (std::is_same_v<T, float>)
      v = 0.3f;
    else if constexpr (std::is_same_v<T, double>)
      v = 0.3;
    else if constexpr (std::is_enum_v<T>)
      v = static_cast<T>(static_cast<int>(v) == 0 ? 1 : 0);
    else
      v = "3, -1";
  }

  std::string_view kept;
  std::vector<std::string>* names;
};

/// An op of the table with all its options changed but `kept`, and their names.
std::pair<ModelSpec, std::vector<std::string>> changed(const ops::OpTableRow& row,
                                                       std::string_view kept = "") {
  Op op = row.make();
  std::vector<std::string> names;
  std::visit([&](auto& options) { options.visit(Change{kept, &names}); }, op);
  return {{.inputs = {{"x", {{2}}}}, .layers = {{"a", op, {"x"}, {}}}}, names};
}

TEST(Ops, EveryOptionSurvivesText) {
  for (const auto& row : ops::op_table()) {
    if (!row.user_visible) continue;
    const auto [spec, names] = changed(row);
    EXPECT_EQ(read_model(model_to_text(spec)), spec) << row.name;
  }
}

/// Without the line that states `option` of an op.
std::string without(std::string text, std::string_view op, const std::string& option) {
  const auto begin = text.find("\n    " + option + ": ", text.find(fmt::format("\n  {} {{", op)));
  if (begin == std::string::npos) return "no " + option + " in " + text;
  return text.erase(begin, text.find('\n', begin + 1) - begin);
}

TEST(Ops, AnOptionThatIsLeftOutIsRequiredOrHasTheDefaultOfTheCode) {
  for (const auto& row : ops::op_table()) {
    if (!row.user_visible) continue;
    const auto [full, names] = changed(row);
    for (const std::string& option : names) {
      const std::string text = without(model_to_text(full), row.name, option);
      const std::string refused = refusal_of_model(text);
      if (refused == "accepted")
        EXPECT_EQ(read_model(text), changed(row, option).first) << text;
      else
        EXPECT_THAT(refused, HasSubstr(fmt::format("{}.{}: is required", row.name, option)));
    }
  }
}

TEST(Ops, ForkIsNotWrittenByUsers) {
  EXPECT_THAT(refusal_of_model("layer { name: \"a\" fork {} }"), HasSubstr("no field 'fork'"));
  const ModelSpec spec{.inputs = {{"x", {{2}}}}, .layers = {{"a", Fork{}, {"x"}, {}}}};
  EXPECT_THROW(model_to_text(spec), ConfigError);
}

TEST(Layers, TakeTheOutputBeforeThem) {
  EXPECT_THAT(wiring(read_model(kInputs + R"(layer { name: "a" relu {} } layer { name: "b" tanh {} }
                                       layer { name: "c" input: "a" input: "b" add {} })")),
              ElementsAre("a(x)", "b(a)", "c(a, b)"));
}

const std::string kResidualBlock = kInputs + R"(
  layer { name: "stem" linear { units: 4 } }
  layer {
    name: "h"
    block {
      repeat: 2
      layer { name: "ln" layer_norm {} }
      layer { name: "fc" linear { units: 4 } }
      layer { name: "sum" input: "^" input: "fc" add {} }
    }
  }
  layer { name: "end" relu {} }
)";

TEST(Blocks, RepeatTheirLayersBehindEachOther) {
  EXPECT_THAT(wiring(read_model(kResidualBlock)),
              ElementsAre("stem(x)", "h.0.ln(stem)", "h.0.fc(h.0.ln)", "h.0.sum(stem, h.0.fc)",
                          "h.1.ln(h.0.sum)", "h.1.fc(h.1.ln)", "h.1.sum(h.0.sum, h.1.fc)", "end(h.1.sum)"));
}

TEST(Blocks, AreReachedByAbsoluteNamesAndByTheirOwn) {
  EXPECT_THAT(
      wiring(read_model(kResidualBlock + R"(layer { name: "p" input: "h.0.fc" input: "h" add {} })")).back(),
      "p(h.0.fc, h.1.sum)");
}

TEST(Blocks, NamesAreLookedUpFromTheInside) {
  EXPECT_THAT(wiring(read_model(kInputs + R"(
    layer { name: "a" relu {} }
    layer { name: "o" block { repeat: 2
      layer { name: "a" tanh {} }
      layer { name: "i" block { layer { name: "b" input: "a" gelu {} } layer { name: "c" input: "x" input: "^" add {} } } }
      layer { name: "d" input: "i.0.b" relu {} }
    } })")),
              ElementsAre("a(x)", "o.0.a(a)", "o.0.i.0.b(o.0.a)", "o.0.i.0.c(x, o.0.a)", "o.0.d(o.0.i.0.b)",
                          "o.1.a(o.0.d)", "o.1.i.0.b(o.1.a)", "o.1.i.0.c(x, o.1.a)", "o.1.d(o.1.i.0.b)"));
}

TEST(Blocks, CanStartFromAnyLayer) {
  EXPECT_THAT(wiring(read_model(kInputs + R"(layer { name: "a" relu {} } layer { name: "b" tanh {} }
                                       layer { name: "h" input: "a" block { layer { name: "c" relu {} } } })")),
              ElementsAre("a(x)", "b(a)", "h.0.c(a)"));
}

TEST(Blocks, TiesAreLookedUpLikeInputs) {
  const auto spec = read_model(kInputs + R"(
    layer { name: "e" linear { units: 4 } }
    layer { name: "h" block { repeat: 2
      layer { name: "f" linear { units: 4 } }
      layer { name: "g" linear { units: 4 } tie { parameter: "weight" with: "f.weight" } tie { parameter: "bias" with: "e.bias" } }
    } })");
  EXPECT_EQ(spec.layers[4].name, "h.1.g");
  EXPECT_THAT(spec.layers[4].ties, ElementsAre(Tie{"weight", "h.1.f.weight"}, Tie{"bias", "e.bias"}));
}

TEST(Layers, MistakesAreNamedWithTheirPlace) {
  EXPECT_EQ(refusal_of_model(kInputs +
                             "layer { name: \"act\" relu {} }\nlayer { name: \"b\" input: \"acd\" relu {} }"),
            "m.textproto:3:19: layer[1].input[0]: 'acd' is neither a model input nor an earlier layer (did "
            "you mean 'act'?)");
  EXPECT_THAT(refusal_of_model(kInputs + R"(layer { name: "a" relu {} } layer { name: "a" relu {} })"),
              Mentions("layer[1].name: ... 'a'"));
  EXPECT_THAT(refusal_of_model(kInputs + R"(layer { name: "a b" relu {} })"), HasSubstr("'a b'"));
  EXPECT_THAT(refusal_of_model(kInputs + R"(layer { name: "a" input: "^" relu {} })"), HasSubstr("'^'"));
  EXPECT_THAT(refusal_of_model(kInputs + R"(layer { name: "a" })"), HasSubstr("layer[0]"));
  EXPECT_THAT(refusal_of_model(kInputs + R"(layer { name: "h" block {} })"),
              HasSubstr("layer[0].block.layer: is required"));
  EXPECT_THAT(refusal_of_model(R"(layer { name: "a" relu {} })"), HasSubstr("no inputs"));
  EXPECT_THAT(refusal_of_model(kInputs),
              Mentions("mlp, lenet, resnet, vgg, vit, gpt, llama or lstm ... inputs ... layers"));
  EXPECT_THAT(refusal_of_model("mlp {} " + kInputs), Mentions("preset ... layers"));
  EXPECT_THAT(
      refusal_of_model(kInputs +
                       R"(layer { name: "h" input: "x" input: "x" block { layer { name: "a" relu {} } } })"),
      HasSubstr("one input, found 2"));
  EXPECT_THAT(refusal_of_model(kInputs + "layer { name: \"" + std::string(513, 'a') + "\" relu {} }"),
              HasSubstr("at most 512 characters"));
}

TEST(Layers, AModelThatExplodesIsRefused) {
  EXPECT_THAT(
      refusal_of_model(kInputs +
                       R"(layer { name: "a" block { repeat: 100000 layer { name: "b" block { repeat: 100000
                                            layer { name: "c" relu {} } } } } })"),
      HasSubstr("at most 100000 layers"));
}

TEST(Layers, ShapesThatDoNotFitAreRefusedWithTheLayersName) {
  EXPECT_THAT(refusal(R"(model { input { name: "image" shape: 4 } input { name: "label" type: INT32 }
                         layer { name: "odd" input: "image" input: "label" add {} } })" +
                      kSmallConfig.substr(kSmallConfig.find("data"))),
              ::testing::AllOf(StartsWith("c.textproto:1:1: model: "), HasSubstr("odd")));
}

TEST(ModelText, PresetsSurviveIt) {
  for (const ModelSpec& spec :
       {model::make_mlp({.dropout = 0.1f}), model::make_lenet({.dropout = 0.3f, .batch_norm = true}),
        model::make_gpt(
            {.vocabulary = 65, .context = 16, .layers = 3, .heads = 2, .width = 8, .dropout = 0.2f})}) {
    const ModelSpec again = read_model(model_to_text(spec));
    EXPECT_EQ(again, spec);
    EXPECT_EQ(model::hash_of(model::make_graph(again)), model::hash_of(model::make_graph(spec)));
  }
}

TEST(ModelText, GptWrittenWithABlockIsThePreset) {
  const auto spec = read_model(R"(
    input { name: "tokens" shape: 16 type: INT32 }
    input { name: "label" shape: 16 type: INT32 }
    layer { name: "wte" embedding { vocabulary: 65 width: 8 } }
    layer { name: "wpe" position_embedding { positions: 16 } }
    layer {
      name: "h"
      block {
        repeat: 2
        layer { name: "ln_1" layer_norm {} }
        layer { name: "attn.c_attn" linear { units: 24 init_std: 0.02 } }
        layer { name: "attn.core" attention { heads: 2 } }
        layer { name: "attn.c_proj" linear { units: 8 init_std: 0.01 } }
        layer { name: "attn.residual" input: "^" input: "attn.c_proj" add {} }
        layer { name: "ln_2" layer_norm {} }
        layer { name: "mlp.c_fc" linear { units: 32 init_std: 0.02 } }
        layer { name: "mlp.gelu" gelu {} }
        layer { name: "mlp.c_proj" linear { units: 8 init_std: 0.01 } }
        layer { name: "mlp.residual" input: "attn.residual" input: "mlp.c_proj" add {} }
      }
    }
    layer { name: "ln_f" layer_norm {} }
    layer { name: "lm_head" linear { units: 65 bias: false init_std: 0.02 } tie { parameter: "weight" with: "wte.weight" } }
    layer { name: "loss" input: "lm_head" input: "label" softmax_cross_entropy {} }
  )");
  EXPECT_EQ(spec, model::make_gpt({.vocabulary = 65, .context = 16, .layers = 2, .heads = 2, .width = 8}));
}

}  // namespace
}  // namespace lockstep::config
