#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "config_testing.h"
#include "mentions.h"
#include "model/presets.h"

namespace lockstep::config {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

ModelSpec read_blocks(const std::string& text) { return model_from_text(text, "m.textproto"); }

std::string refusal_of_blocks(const std::string& text) {
  try {
    read_blocks(text);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

const std::string kInput = R"(input { name: "x" shape: [8, 8, 4] } )";

/// A block whose layers are a convolution "conv", without channels, and a norm.
std::string block_with(const std::string& vary) {
  return kInput + R"(layer { name: "h" block { repeat: 3 )" + vary +
         R"( layer { name: "conv" conv2d { kernel: 3 padding: 1 } } layer { name: "bn" batch_norm {} } } })";
}

template <class Value>
std::vector<Value> of_convolutions(const ModelSpec& spec, Value Conv2d::*field) {
  std::vector<Value> values;
  for (const auto& layer : spec.layers)
    if (const auto* conv = std::get_if<Conv2d>(&layer.op)) values.push_back(conv->*field);
  return values;
}

TEST(Vary, GivesEachRepetitionItsNumbers) {
  const ModelSpec spec = read_blocks(block_with(
      R"(vary { field: "conv.channels" value: [4, 8, 16] } vary { field: "conv.stride" value: [1, 2, 2] }
                    vary { field: "conv.bias" value: [0, 1, 0] } vary { field: "bn.epsilon" value: [1e-5, 1e-4, 0.1] })"));
  EXPECT_THAT(of_convolutions(spec, &Conv2d::channels), ElementsAre(4, 8, 16));
  EXPECT_THAT(of_convolutions(spec, &Conv2d::stride), ElementsAre(1, 2, 2));
  EXPECT_THAT(of_convolutions(spec, &Conv2d::bias), ElementsAre(false, true, false));
  EXPECT_EQ(std::get<BatchNorm>(spec.layers[5].op).epsilon, 0.1f);
}

TEST(Vary, OneListGoesToSeveralFields) {
  const ModelSpec spec =
      read_blocks(block_with(R"(vary { field: ["conv.channels", "conv.groups"] value: [4, 2, 1] })"));
  EXPECT_THAT(of_convolutions(spec, &Conv2d::channels), ElementsAre(4, 2, 1));
  EXPECT_THAT(of_convolutions(spec, &Conv2d::groups), ElementsAre(4, 2, 1));
}

TEST(Vary, ReachesIntoBlocksAndTheirRepetitions) {
  const ModelSpec spec = read_blocks(kInput + R"(
    layer { name: "o" block { repeat: 2
      vary { field: "i.repeat" value: [2, 1] }
      vary { field: "i.a.b.channels" value: [3, 5] }
      layer { name: "i" block {
        layer { name: "a" relu {} }
        layer { name: "a.b" conv2d { kernel: 1 } }
      } }
    } })");
  std::vector<std::string> names;
  for (const auto& layer : spec.layers) names.push_back(layer.name);
  EXPECT_THAT(
      names, ElementsAre("o.0.i.0.a", "o.0.i.0.a.b", "o.0.i.1.a", "o.0.i.1.a.b", "o.1.i.0.a", "o.1.i.0.a.b"));
  EXPECT_THAT(of_convolutions(spec, &Conv2d::channels), ElementsAre(3, 3, 5));
}

TEST(Vary, MistakesAreNamedWithTheirPlace) {
  const auto refused = [](const std::string& vary) { return refusal_of_blocks(block_with(vary)); };
  const std::string channels = R"(vary { field: "conv.channels" value: [4, 4, 4] } )";
  EXPECT_THAT(refused(R"(vary { field: "conv.channels" value: [4, 8] })"),
              Mentions("layer[0].block.vary[0].value: ... 3 ... 2"));
  EXPECT_THAT(refused(channels + R"(vary { field: "conv.channels" value: [4, 8, 16] })"),
              Mentions("vary[1].field[0]: ... 'conv.channels' ... two lists"));
  EXPECT_THAT(refused(R"(vary { field: ["conv.channels", "conv.channels"] value: [4, 8, 16] })"),
              Mentions("vary[0].field[1]: ... 'conv.channels' ... two lists"));
  EXPECT_THAT(refused(R"(vary { field: "conf.channels" value: [4, 8, 16] })"),
              Mentions("layer[0].block.vary[0].field[0]: ... 'conf.channels' ... 'conv'"));
  EXPECT_THAT(refused(R"(vary { field: "conv.chanels" value: [4, 8, 16] })"),
              Mentions("vary[0].field[0]: ... 'chanels' ... 'channels'"));
  EXPECT_THAT(refused(R"(vary { field: "conv.channels" value: [4, 0, 16] })"),
              Mentions("vary[0].value[1]: ... at least 1 ... 0"));
  EXPECT_THAT(refused(R"(vary { field: "conv.channels" value: [4, 2.5, 16] })"),
              Mentions("vary[0].value[1]: ... whole number ... 2.5"));
  EXPECT_THAT(refused(channels + R"(vary { field: "conv.bias" value: [2, 0, 0] })"),
              Mentions("vary[1].value[0]: ... 2"));
  EXPECT_THAT(refused(channels + R"(vary { field: "conv.kernel" value: [1, 1, 1] })"),
              Mentions("vary[1].field[0]: ... 'conv.kernel' ... 3 ... 1"));
  EXPECT_THAT(refused(channels + R"(vary { field: "conv.stride" })"),
              HasSubstr("vary[1].value: is required"));
  EXPECT_THAT(refused(""), HasSubstr("conv2d.channels: is required"));
  EXPECT_THAT(refusal_of_blocks(kInput + R"(layer { name: "h" block { vary { field: "r.shape" value: 1 }
                                           layer { name: "r" reshape { shape: "-1" } } } })"),
              Mentions("'r.shape' ... text"));
}

/// The model of a run that is read again from what it keeps.
TEST(Vary, SurvivesTheKeptConfig) {
  const std::string rest = kSmallConfig.substr(kSmallConfig.find("data"));
  const auto config = parse(R"(model { input { name: "image" shape: 4 } input { name: "label" type: INT32 }
    layer { name: "h" input: "image" block { repeat: 2 vary { field: "fc.units" value: [5, 3] }
      layer { name: "fc" linear {} } } }
    layer { name: "loss" input: "h" input: "label" softmax_cross_entropy {} } }
)" + rest);
  const auto again = parse(config.effective_text);
  EXPECT_EQ(again.model, config.model);
  EXPECT_EQ(again.config_hash, config.config_hash);
  EXPECT_EQ(std::get<Linear>(config.model.layers[1].op).units, 3);
}

const std::string kResnet50 = R"(
input { name: "image" shape: [224, 224, 3] }
input { name: "label" type: INT32 }
layer { name: "conv1" conv2d { channels: 64 kernel: 7 stride: 2 padding: 3 bias: false init_std: 0.0252538137 } }
layer { name: "bn1" batch_norm {} }
layer { name: "relu" relu {} }
layer { name: "maxpool" pool2d { kernel: 3 stride: 2 padding: 1 } }
layer {
  name: "layer"
  block {
    repeat: 4
    vary { field: ["first.conv1.channels", "first.conv2.channels"] value: [64, 128, 256, 512] }
    vary { field: ["rest.conv1.channels", "rest.conv2.channels"] value: [64, 128, 256, 512] }
    vary {
      field: ["first.conv3.channels", "first.downsample.channels", "rest.conv3.channels"]
      value: [256, 512, 1024, 2048]
    }
    vary { field: ["first.conv2.stride", "first.downsample.stride"] value: [1, 2, 2, 2] }
    vary { field: "rest.repeat" value: [2, 3, 5, 2] }
    layer {
      name: "first"
      block {
        layer { name: "conv1" conv2d { kernel: 1 bias: false } }
        layer { name: "bn1" batch_norm {} }
        layer { name: "relu1" relu {} }
        layer { name: "conv2" conv2d { kernel: 3 padding: 1 bias: false } }
        layer { name: "bn2" batch_norm {} }
        layer { name: "relu2" relu {} }
        layer { name: "conv3" conv2d { kernel: 1 bias: false } }
        layer { name: "bn3" batch_norm {} }
        layer { name: "downsample" input: "^" conv2d { kernel: 1 bias: false } }
        layer { name: "downsample_bn" batch_norm {} }
        layer { name: "add" input: "bn3" input: "downsample_bn" add {} }
        layer { name: "relu" relu {} }
      }
    }
    layer {
      name: "rest"
      block {
        layer { name: "conv1" conv2d { kernel: 1 bias: false } }
        layer { name: "bn1" batch_norm {} }
        layer { name: "relu1" relu {} }
        layer { name: "conv2" conv2d { kernel: 3 padding: 1 bias: false } }
        layer { name: "bn2" batch_norm {} }
        layer { name: "relu2" relu {} }
        layer { name: "conv3" conv2d { kernel: 1 bias: false } }
        layer { name: "bn3" batch_norm {} }
        layer { name: "add" input: "bn3" input: "^" add {} }
        layer { name: "relu" relu {} }
      }
    }
  }
}
layer { name: "avgpool" global_pool2d {} }
layer { name: "fc" linear { units: 1000 } }
layer { name: "loss" input: "fc" input: "label" softmax_cross_entropy {} }
)";

/// The op of a layer, without its initialization.
Op without_origin(Op op) {
  if (auto* conv = std::get_if<Conv2d>(&op)) conv->init_std = 0;
  return op;
}

TEST(Vary, MakesAResnet50OfSixtyLines) {
  EXPECT_LT(std::count(kResnet50.begin(), kResnet50.end(), '\n'), 80);
  const ModelSpec written = read_blocks(kResnet50), preset = model::make_resnet({});
  ASSERT_EQ(written.layers.size(), preset.layers.size());
  for (size_t i = 0; i < preset.layers.size(); ++i)
    EXPECT_EQ(without_origin(written.layers[i].op), without_origin(preset.layers[i].op))
        << preset.layers[i].name;
}

}  // namespace
}  // namespace lockstep::config
