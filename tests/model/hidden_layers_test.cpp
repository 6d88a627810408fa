#include "model/hidden_layers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "lockstep/model.h"

namespace lockstep::model {
namespace {

using Ref = ModelBuilder::Ref;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<std::string> hidden_of(const ModelSpec& spec) {
  const Graph graph = make_graph(spec);
  const std::vector<bool> hidden = hidden_matrices(graph);
  std::vector<std::string> names;
  for (size_t p = 0; p < hidden.size(); ++p)
    if (hidden[p]) names.push_back(graph.parameters[p].name);
  return names;
}

/// x -> convolutions -> linear layers -> loss.
ModelSpec convolutional(int64_t groups) {
  ModelBuilder b;
  const Ref image = b.input("image", {{8, 8, 3}}), label = b.input("label", {{}, DType::int32});
  Ref last = b.add("first", Conv2d{.channels = 4, .kernel = 3}, {image});
  last = b.add("second", Conv2d{.channels = 6, .kernel = 3, .groups = groups}, {last});
  last = b.add("norm", BatchNorm{}, {last});
  last = b.add("hidden", Linear{.units = 5}, {b.add("flatten", Flatten{}, {last})});
  last = b.add("head", Linear{.units = 3}, {b.add("relu", Relu{}, {last})});
  b.add("loss", SoftmaxCrossEntropy{}, {last, label});
  return b.build();
}

TEST(HiddenLayers, AreBetweenLayersWithWeights) {
  EXPECT_THAT(hidden_of(convolutional(1)), ElementsAre("second.weight", "hidden.weight"));
}

TEST(HiddenLayers, HaveOneMatrixEach) {
  EXPECT_THAT(hidden_of(convolutional(2)), ElementsAre("hidden.weight"));
}

TEST(HiddenLayers, OfBranchesAreThoseOnAPathFromWeightsToWeights) {
  ModelBuilder b;
  const Ref x = b.input("x", {{4}}), label = b.input("label", {{}, DType::int32});
  const Ref in = b.add("in", Linear{.units = 4}, {x});
  const Ref one = b.add("one", Linear{.units = 4}, {in}), other = b.add("other", Linear{.units = 4}, {x});
  const Ref sum = b.add("sum", Add{}, {one, other});
  b.add("loss", SoftmaxCrossEntropy{}, {b.add("head", Linear{.units = 3}, {sum}), label});
  EXPECT_THAT(hidden_of(b.build()), ElementsAre("one.weight"));
}

TEST(HiddenLayers, AreNeitherEmbeddingsNorShared) {
  ModelBuilder b;
  const Ref x = b.input("x", {{6}, DType::int32}), label = b.input("label", {{6}, DType::int32});
  const Ref embed = b.add("embed", Embedding{.vocabulary = 8, .width = 4}, {x});
  const Ref hidden = b.add("hidden", Linear{.units = 4}, {embed});
  const Ref head = b.add("head", Linear{.units = 8, .bias = false}, {hidden}, {{"weight", "embed.weight"}});
  b.add("loss", SoftmaxCrossEntropy{}, {head, label});
  const ModelSpec spec = b.build();
  EXPECT_THAT(hidden_of(spec), ElementsAre("hidden.weight"));
  EXPECT_FALSE(matrix_of(make_graph(spec).parameters[0])) << "it is shared";
}

TEST(HiddenLayers, OfASingleLayerAreNone) {
  ModelBuilder b;
  const Ref x = b.input("x", {{4}}), label = b.input("label", {{}, DType::int32});
  b.add("loss", SoftmaxCrossEntropy{}, {b.add("fc", Linear{.units = 3}, {x}), label});
  EXPECT_THAT(hidden_of(b.build()), IsEmpty());
}

TEST(HiddenLayers, AreMatricesOfOutputsAndTheRest) {
  const Graph graph = make_graph(convolutional(1));
  const auto matrix = [&](const std::string& name) -> std::optional<MatrixSize> {
    for (const Parameter& parameter : graph.parameters)
      if (parameter.name == name) return matrix_of(parameter);
    ADD_FAILURE() << name;
    return {};
  };
  EXPECT_EQ(matrix("second.weight"), (MatrixSize{6, 3 * 3 * 4}));
  EXPECT_EQ(matrix("hidden.weight"), (MatrixSize{5, 4 * 4 * 6}));
  EXPECT_EQ(matrix("hidden.bias"), std::nullopt);
  EXPECT_EQ(matrix("norm.running_mean"), std::nullopt);
}

}  // namespace
}  // namespace lockstep::model
