#include "model/graph.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/error.h"
#include "mentions.h"

namespace lockstep::model {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

/// x -> fc1 -> relu1 -> {fc2, skip} -> sum -> out -> loss: one value read twice.
ModelSpec residual_model() {
  return {{{"image", {{4}, DType::float32}}, {"label", {{}, DType::int32}}},
          {{"fc1", Linear{.units = 8}, {"image"}, {}},
           {"relu1", Relu{}, {"fc1"}, {}},
           {"fc2", Linear{.units = 8}, {"relu1"}, {}},
           {"sum", Add{}, {"relu1", "fc2"}, {}},
           {"out", Linear{.units = 3}, {"sum"}, {}},
           {"loss", SoftmaxCrossEntropy{}, {"out", "label"}, {}}}};
}

std::string graph_refusal(const ModelSpec& spec) {
  try {
    make_graph(spec);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

std::vector<std::string> node_names(const Graph& graph) {
  std::vector<std::string> names;
  for (const auto& node : graph.nodes) names.push_back(node.name);
  return names;
}

TEST(Graph, StoresFloatingPointValuesAsAskedAndKeepsTheirMeaning) {
  const Graph plain = make_graph(residual_model());
  for (const DType dtype : {DType::bfloat16, DType::float16}) {
    const Graph graph = make_graph(residual_model(), dtype);
    EXPECT_EQ(graph.compute, dtype);
    ASSERT_EQ(graph.values.size(), plain.values.size());
    for (size_t v = 0; v < graph.values.size(); ++v) {
      const TensorSpec& original = plain.values[v].spec;
      EXPECT_EQ(graph.values[v].spec.dtype, original.dtype == DType::float32 ? dtype : original.dtype);
      EXPECT_EQ(graph.values[v].spec.shape, original.shape);
      EXPECT_EQ(graph.logical_spec(static_cast<int>(v)), original);
    }
  }
  EXPECT_THROW(make_graph(residual_model(), DType::int32), ConfigError);
}

TEST(Graph, ForksAValueRightBehindItsProducer) {
  const Graph graph = make_graph(residual_model());
  EXPECT_THAT(node_names(graph), ElementsAre("fc1", "relu1", "relu1.fork", "fc2", "sum", "out", "loss"));
  for (const auto& value : graph.values) EXPECT_GE(value.consumer, 0) << value.name;
}

TEST(Graph, ValueReadThreeTimesPassesTwoForks) {
  ModelSpec spec = residual_model();
  spec.layers[4].inputs = {"sum2"};
  spec.layers.insert(spec.layers.begin() + 4, {"sum2", Add{}, {"sum", "relu1"}, {}});
  const Graph graph = make_graph(spec);
  EXPECT_THAT(node_names(graph),
              ElementsAre("fc1", "relu1", "relu1.fork", "relu1.fork1", "fc2", "sum", "sum2", "out", "loss"));
}

TEST(Graph, ForkSharesActivationsButNotGradients) {
  const Graph graph = make_graph(residual_model());
  const auto& fork = graph.nodes[2];
  const auto value = [&](int id) { return graph.values[static_cast<size_t>(id)]; };
  const int relu = fork.inputs[0];
  EXPECT_EQ(value(fork.outputs[0]).storage, relu);
  EXPECT_EQ(value(fork.outputs[1]).storage, relu);
  EXPECT_EQ(value(fork.outputs[0]).gradient_storage, fork.outputs[0]);
  EXPECT_EQ(value(fork.outputs[1]).gradient_storage, fork.outputs[1]);
}

TEST(Graph, ViewsShareActivationsAndGradients) {
  const Graph graph = make_graph({{{"image", {{2, 2, 1}, DType::float32}}, {"label", {{}, DType::int32}}},
                                  {{"conv", Conv2d{.channels = 3, .kernel = 1}, {"image"}, {}},
                                   {"flat", Flatten{}, {"conv"}, {}},
                                   {"out", Linear{.units = 3}, {"flat"}, {}},
                                   {"loss", SoftmaxCrossEntropy{}, {"out", "label"}, {}}}});
  const auto& flat = graph.values[static_cast<size_t>(graph.nodes[1].outputs[0])];
  EXPECT_EQ(flat.storage, graph.nodes[0].outputs[0]);
  EXPECT_EQ(flat.gradient_storage, graph.nodes[0].outputs[0]);
  EXPECT_EQ(flat.spec.shape, (Shape{12}));
}

TEST(Graph, ASumAndItsTermsShareTheGradientOfTheEarliest) {
  const Graph graph = make_graph(residual_model());
  const auto& fork = graph.nodes[2];
  const auto& sum = graph.nodes[4];
  const int other = fork.outputs[0], branch = sum.inputs[1];
  const int shared = graph.values[static_cast<size_t>(sum.inputs[0])].gradient_storage;
  EXPECT_EQ(shared, sum.inputs[0]);
  EXPECT_EQ(graph.values[static_cast<size_t>(branch)].gradient_storage, shared);
  EXPECT_EQ(graph.values[static_cast<size_t>(sum.outputs[0])].gradient_storage, shared);
  EXPECT_NE(graph.values[static_cast<size_t>(other)].gradient_storage, shared);
  EXPECT_NE(graph.values[static_cast<size_t>(fork.inputs[0])].gradient_storage, shared);
}

TEST(Graph, ATermWithoutParametersHasNoPartInTheSumsGradient) {
  const Graph graph = make_graph(
      {{{"x", {{4}, DType::float32}}, {"bias", {{4}, DType::float32}}, {"y", {{4}, DType::float32}}},
       {{"fc", Linear{.units = 4}, {"x"}, {}},
        {"sum", Add{}, {"bias", "fc"}, {}},
        {"loss", MeanSquaredError{}, {"sum", "y"}, {}}}});
  const auto& sum = graph.nodes[1];
  EXPECT_EQ(graph.values[static_cast<size_t>(sum.outputs[0])].gradient_storage, sum.inputs[1]);
  EXPECT_EQ(graph.values[static_cast<size_t>(sum.inputs[0])].gradient_storage, sum.inputs[0]);
}

TEST(Graph, ElementwiseOpsJoinTheirProducerAndForksTheirReader) {
  const Graph graph = make_graph(residual_model());
  std::vector<int> groups;
  for (const auto& node : graph.nodes) groups.push_back(node.group);
  EXPECT_THAT(groups, ElementsAre(0, 0, 1, 1, 2, 3, 4));
  EXPECT_EQ(graph.group_count, 5);
}

TEST(Graph, GradientsReachOnlyWhatLiesBehindParameters) {
  const Graph graph = make_graph(residual_model());
  EXPECT_FALSE(graph.values[static_cast<size_t>(graph.inputs[0])].needs_gradient);
  EXPECT_TRUE(graph.values[static_cast<size_t>(graph.nodes[0].outputs[0])].needs_gradient);
}

TEST(Graph, TiedParametersAreOneParameterWithTwoUses) {
  ModelSpec spec{{{"tokens", {{5}, DType::int32}}, {"label", {{5}, DType::int32}}},
                 {{"wte", Embedding{.vocabulary = 7, .width = 4}, {"tokens"}, {}},
                  {"head", Linear{.units = 7, .bias = false}, {"wte"}, {{"weight", "wte.weight"}}},
                  {"loss", SoftmaxCrossEntropy{}, {"head", "label"}, {}}}};
  const Graph graph = make_graph(spec);
  ASSERT_EQ(graph.parameters.size(), 1u);
  EXPECT_EQ(graph.parameters[0].name, "wte.weight");
  EXPECT_EQ(graph.parameters[0].uses.size(), 2u);
  EXPECT_EQ(graph.parameter_count(), 28);
  EXPECT_EQ(graph.loss_positions(), 5);

  spec.layers[1].op = Linear{.units = 6, .bias = false};
  EXPECT_THAT(graph_refusal(spec), AllOf(HasSubstr("layer head"), HasSubstr("[6, 4]"), HasSubstr("[7, 4]")));
}

TEST(Graph, RefusalsNameTheLayer) {
  ModelSpec spec = residual_model();
  spec.layers[2].inputs = {"relu"};
  EXPECT_THAT(graph_refusal(spec), Mentions("layer fc2 ... 'relu1'"));

  spec = residual_model();
  spec.layers[2].name = "fc1";
  EXPECT_THAT(graph_refusal(spec), Mentions("'fc1' ... twice"));

  spec = residual_model();
  spec.layers[1].name = "re lu";
  EXPECT_THAT(graph_refusal(spec), HasSubstr("letters, digits"));

  spec = residual_model();
  spec.layers.pop_back();
  EXPECT_THAT(graph_refusal(spec), HasSubstr("no loss"));

  spec = residual_model();
  spec.layers.push_back({"extra", Relu{}, {"sum"}, {}});
  EXPECT_THAT(graph_refusal(spec), Mentions("output ... layer extra"));

  spec = residual_model();
  spec.inputs.push_back({"weight", {{1}, DType::float32}});
  EXPECT_THAT(graph_refusal(spec), HasSubstr("'weight'"));

  spec = residual_model();
  spec.layers[2].ties = {{"wait", "fc1.weight"}};
  EXPECT_THAT(graph_refusal(spec), AllOf(HasSubstr("no parameter 'wait'"), HasSubstr("weight, bias")));

  spec = residual_model();
  spec.layers = {{"loss", SoftmaxCrossEntropy{}, {"image", "label"}, {}}};
  EXPECT_THAT(graph_refusal(spec), HasSubstr("layer loss"));
}

TEST(Graph, HashDependsOnEverythingThatDecidesNumbers) {
  const uint64_t hash = hash_of(make_graph(residual_model()));
  EXPECT_EQ(hash, hash_of(make_graph(residual_model())));
  ModelSpec spec = residual_model();
  spec.layers[4].op = Linear{.units = 3, .init_std = 0.02f};
  EXPECT_NE(hash, hash_of(make_graph(spec)));
  spec = residual_model();
  spec.layers[3].inputs = {"fc2", "relu1"};
  EXPECT_NE(hash, hash_of(make_graph(spec)));
}

}  // namespace
}  // namespace lockstep::model
