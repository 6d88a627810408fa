#include "train/programs/golden_models.h"

#include <algorithm>
#include <vector>

#include "lockstep/model.h"

namespace lockstep::train {
namespace {

using Ref = ModelBuilder::Ref;

const TensorSpec kToken{{4}, DType::int32};  // four of them in a sample
const TensorSpec kClass{{}, DType::int32};

Linear linear(int64_t units) { return {.units = units, .bias = false}; }

/// x -> fc, with a bias, -> loss.
ModelSpec one_layer() {
  ModelBuilder b;
  const Ref x = b.input("x", {{3}}), label = b.input("label", kClass);
  b.add("loss", SoftmaxCrossEntropy{}, {b.add("fc", Linear{.units = 8}, {x}), label});
  return b.build();
}

/// x -> fc -> head -> loss.
ModelSpec two_layers(int64_t in, Linear fc, int64_t classes) {
  ModelBuilder b;
  const Ref x = b.input("x", {{in}}), label = b.input("label", kClass);
  b.add("loss", SoftmaxCrossEntropy{}, {b.add("head", linear(classes), {b.add("fc", fc, {x})}), label});
  return b.build();
}

/// tokens -> embed -> fc, gelu -> head -> loss.
ModelSpec embedding_first() {
  ModelBuilder b;
  const Ref x = b.input("x", kToken), label = b.input("label", kToken);
  const Ref embed = b.add("embed", Embedding{.vocabulary = 8, .width = 4}, {x});
  const Ref gelu = b.add("gelu", Gelu{}, {b.add("fc", Linear{.units = 4}, {embed})});
  b.add("loss", SoftmaxCrossEntropy{}, {b.add("head", linear(4), {gelu}), label});
  return b.build();
}

/// tokens -> embed -> `layers` -> head, which is embed's weight again, -> loss.
ModelSpec tied(const std::vector<std::string>& layers) {
  ModelBuilder b;
  const Ref x = b.input("x", kToken), label = b.input("label", kToken);
  Ref last = b.add("embed", Embedding{.vocabulary = 8, .width = 4}, {x});
  for (const std::string& layer : layers) last = b.add(layer, linear(4), {last});
  b.add("loss", SoftmaxCrossEntropy{},
        {b.add("head", linear(8), {last}, {{"weight", "embed.weight"}}), label});
  return b.build();
}

/// x -> layer0 -> ... -> layer3 -> loss.
ModelSpec four_layers() {
  ModelBuilder b;
  Ref last = b.input("x", {{4}});
  const Ref label = b.input("label", kClass);
  for (const char* layer : {"layer0", "layer1", "layer2", "layer3"}) last = b.add(layer, linear(4), {last});
  b.add("loss", SoftmaxCrossEntropy{}, {last, label});
  return b.build();
}

/// x -> (fc -> norm) twice -> loss.
ModelSpec normed_layers() {
  ModelBuilder b;
  Ref last = b.input("x", {{4}});
  const Ref label = b.input("label", kClass);
  for (const std::string layer : {"layer0", "layer1"})
    last = b.add(layer + ".norm", LayerNorm{}, {b.add(layer + ".fc", linear(4), {last})});
  b.add("loss", SoftmaxCrossEntropy{}, {last, label});
  return b.build();
}

struct Recipe {
  const char* golden;
  ModelSpec spec;
  std::vector<std::string> ends;  ///< layers that end a segment; the last one ends with the loss
  int64_t micro_batch;
  int leaves, micro_batches_per_leaf, workers;
  optim::OptimizerKind optimizer;
  double clip_norm;
  DType wire = DType::float32;
  bool error_feedback = false;
};

std::vector<Recipe> recipes() {
  constexpr auto momentum = optim::OptimizerKind::sgd, adam = optim::OptimizerKind::adam,
                 lamb = optim::OptimizerKind::lamb, muon = optim::OptimizerKind::muon;
  const ModelSpec small = two_layers(4, linear(8), 2), with_tie = tied({"fc"});
  return {{"dp1_tree", one_layer(), {}, 4, 2, 1, 1, adam, 0.5},
          {"dp2_boundary", one_layer(), {}, 4, 2, 1, 2, momentum, 0},
          {"dp2_evaluate", small, {"fc"}, 4, 4, 1, 2, momentum, 0},
          {"dp2_fast", embedding_first(), {"embed", "gelu"}, 4, 2, 2, 2, momentum, 0.5},
          {"dp2_feedback", with_tie, {"embed", "fc"}, 4, 4, 1, 2, adam, 0.5, DType::bfloat16, true},
          {"dp2_lamb", two_layers(255, Linear{.units = 512}, 256), {"fc"}, 4, 2, 1, 2, lamb, 0.5},
          {"dp2_muon", small, {"fc"}, 4, 2, 1, 2, muon, 0.5},
          {"dp2_ring", embedding_first(), {"embed", "gelu"}, 4, 2, 2, 2, momentum, 0.5},
          // Half of either bucket ends on the border of a chunk of 65,536 elements.
          {"dp2_sharded", two_layers(255, Linear{.units = 512}, 256), {"fc"}, 4, 2, 1, 2, adam, 0.5},
          {"dp2_tree", with_tie, {"embed", "fc"}, 4, 4, 1, 2, adam, 0.5},
          {"dp2_wire", with_tie, {"embed", "fc"}, 4, 4, 1, 2, adam, 0.5, DType::bfloat16},
          {"dp3_ordered", with_tie, {"embed", "fc"}, 4, 5, 1, 3, adam, 0.5},
          {"pp2_1f1b", tied({"body", "top"}), {"embed", "body"}, 1, 1, 4, 1, momentum, 0.5},
          {"pp2_zero_bubble", normed_layers(), {"layer0.norm"}, 4, 1, 2, 1, momentum, 0},
          {"pp2_interleaved", four_layers(), {"layer0", "layer1", "layer2"}, 4, 1, 2, 1, momentum, 0},
          {"ps_sync", small, {"fc"}, 4, 2, 1, 2, momentum, 0.5}};
}

}  // namespace

std::unique_ptr<program::ModelCode> GoldenModel::code(bool training) const {
  const double terms =
      static_cast<double>(division.global_batch) * static_cast<double>(graph.loss_positions());
  return std::make_unique<program::ModelCode>(
      graph, partition,
      program::ModelCode::Options{
          .micro_batch = division.micro_batch, .training = training, .loss_weight = 1 / terms});
}

std::unique_ptr<GoldenModel> model_of_golden(const std::string& golden) {
  const auto all = recipes();
  const auto recipe =
      std::find_if(all.begin(), all.end(), [&](const Recipe& r) { return r.golden == golden; });
  if (recipe == all.end()) return nullptr;
  auto model = std::make_unique<GoldenModel>();
  model->graph = model::make_graph(recipe->spec);
  std::vector<int> last_nodes;
  const auto& nodes = model->graph.nodes;
  for (int n = 0; n + 1 < static_cast<int>(nodes.size()); ++n)
    if (std::ranges::count(recipe->ends, nodes[static_cast<size_t>(n)].name) > 0) last_nodes.push_back(n);
  last_nodes.push_back(static_cast<int>(nodes.size()) - 1);
  model->partition = model::partition_after(model->graph, last_nodes);
  const int64_t leaf_samples = recipe->micro_batch * recipe->micro_batches_per_leaf;
  model->division = {.global_batch = leaf_samples * recipe->leaves,
                     .leaves = recipe->leaves,
                     .leaf_samples = leaf_samples,
                     .micro_batch = recipe->micro_batch,
                     .micro_batches_per_leaf = recipe->micro_batches_per_leaf,
                     .workers = recipe->workers};
  model->optimizer = {.kind = recipe->optimizer, .learning_rate = 0.1};
  if (recipe->optimizer == optim::OptimizerKind::sgd) model->optimizer.momentum = 0.9;
  if (recipe->optimizer == optim::OptimizerKind::lamb) model->optimizer.weight_decay = 0.1;
  if (recipe->optimizer == optim::OptimizerKind::muon) {
    model->optimizer.momentum = 0.95;
    model->group_rates = {{"fc.weight", {.matrix = {8, 4}}}};
  }
  model->clip_norm = recipe->clip_norm;
  model->wire = recipe->wire;
  model->error_feedback = recipe->error_feedback;
  return model;
}

}  // namespace lockstep::train
