#include <gtest/gtest.h>

#include "lockstep/error.h"
#include "lockstep/model.h"

namespace lockstep::model {
namespace {

std::string builder_refusal(ModelBuilder& builder) {
  try {
    builder.build();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(ModelBuilder, WritesLayersInTheOrderOfItsCalls) {
  ModelBuilder b;
  auto x = b.input("image", {{4}});
  auto y = b.input("label", {{}, DType::int32});
  auto h = b.add("fc1", Linear{.units = 3}, {x});
  auto logits = b.add("fc2", Linear{.units = 2}, {b.add("relu", Relu{}, {h})});
  b.add("loss", SoftmaxCrossEntropy{}, {logits, y});
  const ModelSpec expected{.inputs = {{"image", {{4}, DType::float32}}, {"label", {{}, DType::int32}}},
                           .layers = {{"fc1", Linear{.units = 3}, {"image"}, {}},
                                      {"relu", Relu{}, {"fc1"}, {}},
                                      {"fc2", Linear{.units = 2}, {"relu"}, {}},
                                      {"loss", SoftmaxCrossEntropy{}, {"fc2", "label"}, {}}}};
  EXPECT_EQ(b.build(), expected);
}

TEST(ModelBuilder, KeepsTies) {
  ModelBuilder b;
  auto tokens = b.input("tokens", {{5}, DType::int32});
  auto label = b.input("label", {{5}, DType::int32});
  auto x = b.add("wte", Embedding{.vocabulary = 7, .width = 4}, {tokens});
  auto logits = b.add("head", Linear{.units = 7, .bias = false}, {x}, {{"weight", "wte.weight"}});
  b.add("loss", SoftmaxCrossEntropy{}, {logits, label});
  const ModelSpec spec = b.build();
  ASSERT_EQ(spec.layers[1].ties.size(), 1u);
  EXPECT_EQ(spec.layers[1].ties[0], (Tie{"weight", "wte.weight"}));
}

TEST(ModelBuilder, NamesTheLayerWhoseShapesDoNotFit) {
  ModelBuilder b;
  auto x = b.input("image", {{4}});
  auto y = b.input("label", {{}, DType::int32});
  auto a = b.add("narrow", Linear{.units = 3}, {x});
  auto c = b.add("wide", Linear{.units = 5}, {x});
  b.add("loss", SoftmaxCrossEntropy{}, {b.add("sum", Add{}, {a, c}), y});
  EXPECT_NE(builder_refusal(b).find("sum"), std::string::npos) << builder_refusal(b);
}

TEST(ModelBuilder, RefusesANameUsedTwice) {
  ModelBuilder b;
  auto x = b.input("image", {{4}});
  auto y = b.input("label", {{}, DType::int32});
  auto a = b.add("fc", Linear{.units = 3}, {x});
  b.add("loss", SoftmaxCrossEntropy{}, {b.add("fc", Linear{.units = 3}, {a}), y});
  EXPECT_NE(builder_refusal(b).find("'fc'"), std::string::npos) << builder_refusal(b);
}

TEST(ModelBuilder, GivesTheModelAwayAndStartsAnew) {
  ModelBuilder b;
  auto x = b.input("image", {{4}});
  b.add("loss", MeanSquaredError{}, {b.add("fc", Linear{.units = 2}, {x}), b.input("label", {{2}})});
  EXPECT_EQ(b.build().layers.size(), 2u);
  auto z = b.input("image", {{6}});
  b.add("loss", MeanSquaredError{}, {b.add("fc", Linear{.units = 2}, {z}), b.input("label", {{2}})});
  EXPECT_EQ(b.build().inputs.size(), 2u);
}

}  // namespace
}  // namespace lockstep::model
