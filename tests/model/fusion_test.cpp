#include "model/fusion.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "model/presets.h"

namespace lockstep::model {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr int64_t kOneSegment = int64_t{1} << 40;

Graph fused_gpt(DType compute, int64_t width = 16) {
  return make_graph(make_gpt({.vocabulary = 32, .context = 8, .layers = 1, .heads = 2, .width = width}),
                    compute);
}

/// "layer: what it does of its neighbours", in graph order.
std::vector<std::string> fused_layers(const Graph& graph, const Fusion& fusion) {
  std::vector<std::string> layers;
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const ops::FusedNeighbors& fused = fusion.neighbors[n];
    std::string text;
    if (fused.add_before) text += " add";
    if (fused.fork_before) text += " fork";
    if (fused.gelu_before) text += " gelu_before";
    if (fused.gelu_behind) text += " gelu_behind";
    if (fused.add_behind) text += " add_behind";
    if (fused.relu_behind) text += " relu_behind";
    if (fused.fork_behind) text += " fork_behind";
    if (!text.empty()) layers.push_back(graph.nodes[n].name + ":" + text);
  }
  return layers;
}

/// "node by node", where another node's kernel does the work.
std::vector<std::string> done_by_others(const Graph& graph, const std::vector<int>& by) {
  std::vector<std::string> nodes;
  for (size_t n = 0; n < by.size(); ++n)
    if (by[n] != static_cast<int>(n))
      nodes.push_back(graph.nodes[n].name + " by " + graph.nodes[static_cast<size_t>(by[n])].name);
  return nodes;
}

TEST(Fusion, LayerNormsAddAndLinearLayersComputeGelus) {
  const Graph graph = fused_gpt(DType::bfloat16);
  const Fusion fusion = fuse_for_gpu(graph, make_partition(graph, kOneSegment), {.gelu = true});
  EXPECT_THAT(fused_layers(graph, fusion),
              ElementsAre("h.0.ln_1: fork", "h.0.ln_2: add fork", "h.0.mlp.c_fc: gelu_behind",
                          "h.0.mlp.c_proj: gelu_before", "ln_f: add"));
  EXPECT_THAT(done_by_others(graph, fusion.forward_node),
              ElementsAre("h.0.attn.residual by h.0.ln_2", "h.0.mlp.gelu by h.0.mlp.c_fc",
                          "h.0.mlp.residual by ln_f"));
  EXPECT_THAT(done_by_others(graph, fusion.backward_node),
              ElementsAre("wpe.fork by h.0.ln_1", "h.0.attn.residual.fork by h.0.ln_2",
                          "h.0.mlp.gelu by h.0.mlp.c_proj"));
}

TEST(Fusion, GelusStayWhereTypesWidthsOrTheUserSaySo) {
  const auto gelus = [](const Graph& graph, bool wanted) {
    const Fusion fusion = fuse_for_gpu(graph, make_partition(graph, kOneSegment), {.gelu = wanted});
    int count = 0;
    for (const auto& fused : fusion.neighbors) count += fused.gelu_before + fused.gelu_behind;
    return count;
  };
  EXPECT_EQ(gelus(fused_gpt(DType::float16), true), 2);
  EXPECT_EQ(gelus(fused_gpt(DType::float16), false), 0);
  EXPECT_EQ(gelus(fused_gpt(DType::float32), true), 0);
  EXPECT_EQ(gelus(make_graph(ModelSpec{{{"x", {{6}, DType::float32}}, {"y", {{4}, DType::float32}}},
                                       {{"in", Linear{.units = 12}, {"x"}, {}},
                                        {"gelu", Gelu{}, {"in"}, {}},
                                        {"out", Linear{.units = 4}, {"gelu"}, {}},
                                        {"loss", MeanSquaredError{}, {"out", "y"}, {}}}},
                             DType::bfloat16),
                  true),
            0)
      << "12 is no multiple of 8";
}

TEST(Fusion, EndsWithTheSegment) {
  const Graph graph = fused_gpt(DType::bfloat16);
  const Partition partition = make_partition(graph, 1);
  ASSERT_GT(partition.segments.size(), 4u);
  const Fusion fusion = fuse_for_gpu(graph, partition, {.gelu = true});
  EXPECT_THAT(fused_layers(graph, fusion),
              ElementsAre("h.0.ln_1: fork", "h.0.ln_2: fork", "h.0.mlp.c_fc: gelu_behind",
                          "h.0.mlp.c_proj: gelu_before"))
      << "sums end segments; GELUs and what surrounds them are one fused group";
}

TEST(Fusion, OfAChainOfLinearLayersAndGelusTwoLayersAreOneGroup) {
  const Graph graph = make_graph(ModelSpec{{{"x", {{8}, DType::float32}}, {"y", {{8}, DType::float32}}},
                                           {{"a", Linear{.units = 8}, {"x"}, {}},
                                            {"a.gelu", Gelu{}, {"a"}, {}},
                                            {"b", Linear{.units = 8}, {"a.gelu"}, {}},
                                            {"b.gelu", Gelu{}, {"b"}, {}},
                                            {"c", Linear{.units = 8}, {"b.gelu"}, {}},
                                            {"c.gelu", Gelu{}, {"c"}, {}},
                                            {"d", Linear{.units = 8}, {"c.gelu"}, {}},
                                            {"loss", MeanSquaredError{}, {"d", "y"}, {}}}},
                                 DType::bfloat16);
  std::vector<int> groups;
  for (const Node& node : graph.nodes) groups.push_back(node.group);
  EXPECT_THAT(groups, ElementsAre(0, 0, 0, 0, 1, 1, 1, 2));
  for (const int64_t bucket_bytes : {kOneSegment, int64_t{1}}) {
    const Partition partition = make_partition(graph, bucket_bytes);
    EXPECT_EQ(partition.segments.size(), bucket_bytes == 1 ? 2u : 1u);
    EXPECT_THAT(
        fused_layers(graph, fuse_for_gpu(graph, partition, {.gelu = true})),
        ElementsAre("a: gelu_behind", "b: gelu_before gelu_behind", "c: gelu_behind", "d: gelu_before"))
        << bucket_bytes;
  }
}

/// "linear layer by node": whose bias's gradient another node's kernel sums; and linear layers whose order of
/// sums is a norm's.
struct Biases {
  std::vector<std::string> summed_by, in_norms_order;
};
Biases biases_of(const Graph& graph, const Partition& partition, const GpuFusions& fusions = {}) {
  const Fusion fusion = fuse_for_gpu(graph, partition, fusions);
  Biases biases;
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const int linear = fusion.bias_of[n];
    EXPECT_EQ(fusion.neighbors[n].bias_before, linear >= 0) << graph.nodes[n].name;
    if (linear >= 0) {
      EXPECT_TRUE(fusion.leaves_bias(linear));
      biases.summed_by.push_back(graph.node(linear).name + " by " + graph.nodes[n].name);
    }
    if (fusion.neighbors[n].norm_behind) biases.in_norms_order.push_back(graph.nodes[n].name);
  }
  return biases;
}

TEST(Fusion, NormsAndActivationsSumTheBiasesBeforeThem) {
  const Graph graph = fused_gpt(DType::bfloat16);
  const Partition whole = make_partition(graph, kOneSegment);
  EXPECT_THAT(
      biases_of(graph, whole).summed_by,
      ElementsAre("h.0.attn.c_proj by h.0.ln_2", "h.0.mlp.c_fc by h.0.mlp.gelu", "h.0.mlp.c_proj by ln_f"));
  EXPECT_THAT(biases_of(graph, whole, {.gelu = true}).summed_by,
              ElementsAre("h.0.attn.c_proj by h.0.ln_2", "h.0.mlp.c_proj by ln_f"))
      << "a GELU whose gradient a product computes has no pass of its own";
}

/// What order a bias is summed in must not depend on where segments end.
TEST(Fusion, EndsOfSegmentsDecideWhoSumsABiasAndNotInWhatOrder) {
  const Graph graph = fused_gpt(DType::bfloat16);
  const Biases whole = biases_of(graph, make_partition(graph, kOneSegment)),
               cut = biases_of(graph, make_partition(graph, 1));
  EXPECT_THAT(cut.summed_by, ElementsAre("h.0.mlp.c_fc by h.0.mlp.gelu")) << "sums end segments";
  EXPECT_THAT(whole.in_norms_order, ElementsAre("h.0.attn.c_proj", "h.0.mlp.c_proj"));
  EXPECT_EQ(cut.in_norms_order, whole.in_norms_order);
}

TEST(Fusion, BiasesThatDoNotLearnOrDoNotExistAreNotSummed) {
  const auto summed = [](bool bias, bool frozen) {
    ModelSpec model{{{"x", {{8}, DType::float32}}, {"y", {{4}, DType::float32}}},
                    {{"first", Linear{.units = 8}, {"x"}, {}},
                     {"a", Linear{.units = 8, .bias = bias}, {"first"}, {}},
                     {"relu", Relu{}, {"a"}, {}},
                     {"b", Linear{.units = 4}, {"relu"}, {}},
                     {"loss", MeanSquaredError{}, {"b", "y"}, {}}}};
    if (frozen) model.frozen = {"a"};
    const Graph graph = make_graph(model);
    return biases_of(graph, make_partition(graph, kOneSegment)).summed_by;
  };
  EXPECT_THAT(summed(true, false), ElementsAre("a by relu"));
  EXPECT_THAT(summed(false, false), IsEmpty());
  EXPECT_THAT(summed(true, true), IsEmpty());
}

TEST(Fusion, ALossWritesItsGradientOverLogitsThatNobodyElseWants) {
  const auto fused = [](const std::vector<Layer>& layers, int64_t bucket_bytes, bool wanted = true) {
    const Graph graph =
        make_graph(ModelSpec{{{"x", {{8}, DType::float32}}, {"y", {{}, DType::int32}}}, layers});
    const Fusion fusion = fuse_for_gpu(graph, make_partition(graph, bucket_bytes), {.loss = wanted});
    return fusion.neighbors.back().gradient_in_forward;
  };
  const Layer linear{"a", Linear{.units = 4}, {"x"}, {}}, relu{"b", Relu{}, {"a"}, {}};
  EXPECT_TRUE(fused({linear, {"loss", SoftmaxCrossEntropy{}, {"a", "y"}, {}}}, kOneSegment));
  EXPECT_FALSE(fused({linear, {"loss", SoftmaxCrossEntropy{}, {"a", "y"}, {}}}, kOneSegment, false));
  EXPECT_FALSE(fused({linear, relu, {"loss", SoftmaxCrossEntropy{}, {"b", "y"}, {}}}, kOneSegment))
      << "its backward reads what it made";
  const Layer sum{"c", Add{}, {"a", "d"}, {}}, other{"d", Linear{.units = 4}, {"a"}, {}};
  EXPECT_FALSE(fused({linear, other, sum, {"loss", SoftmaxCrossEntropy{}, {"c", "y"}, {}}}, 1))
      << "made in another segment";
}

/// The first two blocks of a ResNet, the second of which has another shape.
Graph two_blocks(DType compute = DType::float32) {
  const auto conv = [](int64_t channels, int64_t stride = 1) {
    return Conv2d{.channels = channels, .kernel = 3, .stride = stride, .padding = 1};
  };
  const ModelSpec model{{{"image", {{4, 4, 3}, DType::float32}}, {"label", {{}, DType::int32}}},
                        {{"conv", conv(4), {"image"}, {}},
                         {"bn", BatchNorm{}, {"conv"}, {}},
                         {"relu", Relu{}, {"bn"}, {}},
                         {"a.conv1", conv(4), {"relu"}, {}},
                         {"a.bn1", BatchNorm{}, {"a.conv1"}, {}},
                         {"a.relu1", Relu{}, {"a.bn1"}, {}},
                         {"a.conv2", conv(4), {"a.relu1"}, {}},
                         {"a.bn2", BatchNorm{}, {"a.conv2"}, {}},
                         {"a.add", Add{}, {"a.bn2", "relu"}, {}},
                         {"a.relu", Relu{}, {"a.add"}, {}},
                         {"b.conv1", conv(8, 2), {"a.relu"}, {}},
                         {"b.bn1", BatchNorm{}, {"b.conv1"}, {}},
                         {"b.down", conv(8, 2), {"a.relu"}, {}},
                         {"b.bn", BatchNorm{}, {"b.down"}, {}},
                         {"b.add", Add{}, {"b.bn1", "b.bn"}, {}},
                         {"pool", GlobalPool2d{}, {"b.add"}, {}},
                         {"fc", Linear{.units = 3}, {"pool"}, {}},
                         {"loss", SoftmaxCrossEntropy{}, {"fc", "label"}, {}}}};
  return make_graph(model, compute);
}

TEST(Fusion, OnCpusBatchNormsAddAndComputeReluAndRelusAddGradients) {
  const Graph graph = two_blocks();
  const Fusion fusion = fuse_for_cpu(graph, make_partition(graph, kOneSegment));
  EXPECT_THAT(fused_layers(graph, fusion),
              ElementsAre("bn: relu_behind", "a.bn1: relu_behind", "a.bn2: add_behind relu_behind",
                          "a.relu: fork_behind", "b.bn: add_behind"));
  EXPECT_THAT(
      done_by_others(graph, fusion.forward_node),
      ElementsAre("relu by bn", "a.relu1 by a.bn1", "a.add by a.bn2", "a.relu by a.bn2", "b.add by b.bn"));
  EXPECT_THAT(done_by_others(graph, fusion.backward_node),
              ElementsAre("relu by bn", "a.relu1 by a.bn1", "a.relu.fork by a.relu"))
      << "the gradient behind a sum is also that of its other term";
  std::vector<std::string> unwritten;
  for (size_t v = 0; v < graph.values.size(); ++v)
    if (fusion.is_unwritten(graph, static_cast<int>(v))) unwritten.push_back(graph.values[v].name);
  EXPECT_THAT(unwritten, ElementsAre("bn", "a.bn1", "a.bn2", "a.add", "b.bn"));
}

TEST(Fusion, OnCpusEndsWithTheSegmentAndIsOfFloat32) {
  const Graph graph = two_blocks(), narrow = two_blocks(DType::bfloat16);
  const Fusion cut = fuse_for_cpu(graph, make_partition(graph, 1));
  for (size_t n = 0; n < graph.nodes.size(); ++n)
    for (const int by : {cut.forward_node[n], cut.backward_node[n]}) {
      const auto segment_of = [&](int node) {
        const auto& segments = make_partition(graph, 1).segments;
        return std::ranges::find_if(segments, [node](const auto& s) { return node <= s.last_node; })
            ->first_node;
      };
      EXPECT_EQ(segment_of(by), segment_of(static_cast<int>(n))) << graph.nodes[n].name;
    }
  EXPECT_LT(fused_layers(graph, cut).size(), 5u);
  EXPECT_THAT(fused_layers(narrow, fuse_for_cpu(narrow, make_partition(narrow, kOneSegment))), IsEmpty());
}

TEST(Fusion, WithoutItEveryKernelDoesItsOwnWork) {
  const Graph graph = fused_gpt(DType::bfloat16);
  const Fusion fusion = no_fusion(graph);
  EXPECT_THAT(fused_layers(graph, fusion), IsEmpty());
  EXPECT_THAT(done_by_others(graph, fusion.forward_node), IsEmpty());
  EXPECT_THAT(done_by_others(graph, fusion.backward_node), IsEmpty());
}

TEST(Fusion, LayerNormsDoNotComputeWhatOthersReadFirst) {
  // The sum's first reader is the linear layer: its fork lies before that, and nothing lies right before the
  // layer norm.
  const Graph graph = make_graph(ModelSpec{{{"x", {{8}, DType::float32}}, {"y", {{8}, DType::float32}}},
                                           {{"in", Linear{.units = 8}, {"x"}, {}},
                                            {"more", Linear{.units = 8}, {"in"}, {}},
                                            {"sum", Add{}, {"in", "more"}, {}},
                                            {"branch", Linear{.units = 8}, {"sum"}, {}},
                                            {"ln", LayerNorm{}, {"sum"}, {}},
                                            {"out", Add{}, {"branch", "ln"}, {}},
                                            {"loss", MeanSquaredError{}, {"out", "y"}, {}}}});
  EXPECT_THAT(fused_layers(graph, fuse_for_gpu(graph, make_partition(graph, kOneSegment), {.gelu = true})),
              IsEmpty());
}

TEST(Fusion, RmsNormsAddWhatIsBeforeThemAsLayerNormsDo) {
  const Graph graph = make_graph(ModelSpec{{{"x", {{8}, DType::float32}}, {"y", {{8}, DType::float32}}},
                                           {{"in", Linear{.units = 8}, {"x"}, {}},
                                            {"more", Linear{.units = 8}, {"in"}, {}},
                                            {"sum", Add{}, {"in", "more"}, {}},
                                            {"norm", RmsNorm{}, {"sum"}, {}},
                                            {"out", Add{}, {"sum", "norm"}, {}},
                                            {"loss", MeanSquaredError{}, {"out", "y"}, {}}}});
  const Fusion fusion = fuse_for_gpu(graph, make_partition(graph, kOneSegment), {});
  for (size_t n = 0; n < graph.nodes.size(); ++n)
    if (graph.nodes[n].name == "norm")
      EXPECT_EQ(fusion.neighbors[n],
                (ops::FusedNeighbors{.add_before = true, .fork_before = true, .bias_before = true}));
}

}  // namespace
}  // namespace lockstep::model
