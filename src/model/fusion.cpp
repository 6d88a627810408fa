#include "model/fusion.h"

#include <algorithm>
#include <numeric>

#include "base/index.h"
#include "ops/fusion.h"

namespace lockstep::model {
namespace {

class Fuser {
 public:
  Fuser(const Graph& graph, const Partition& partition)
      : graph_(graph), fusion_(no_fusion(graph)), segment_(graph.nodes.size()) {
    for (size_t s = 0; s < partition.segments.size(); ++s)
      for (int n = partition.segments[s].first_node; n <= partition.segments[s].last_node; ++n)
        nth(segment_, n) = static_cast<int>(s);
  }

  Fusion fuse_on_cpu() {
    for (int n = 0; n < static_cast<int>(graph_.nodes.size()); ++n)
      if (holds<BatchNorm>(n)) fuse_batch_norm(n);
    for (int n = 0; n < static_cast<int>(graph_.nodes.size()); ++n)
      if (holds<Relu>(n) && fusion_.runs_backward(n)) fuse_fork_behind(n);
    return std::move(fusion_);
  }

  Fusion fuse(const GpuFusions& fusions) {
    const int nodes = static_cast<int>(graph_.nodes.size());
    for (int n = 0; n < nodes; ++n) {
      if (is_norm(n)) fuse_norm(n);
      if (fusions.gelu && ops::is_fusible_gelu(node(n).op)) fuse_gelu(n);
      if (fusions.loss && holds<SoftmaxCrossEntropy>(n)) fuse_loss(n);
    }
    for (int n = 0; n < nodes; ++n)
      if (is_norm(n) || (is_activation(n) && fusion_.runs_backward(n))) fuse_bias(n);
    return std::move(fusion_);
  }

 private:
  const Node& node(int n) const { return graph_.node(n); }
  template <class OpType>
  bool holds(int n) const {
    return std::holds_alternative<OpType>(node(n).op);
  }
  ops::FusedNeighbors& neighbors(int n) { return nth(fusion_.neighbors, n); }
  const Value& input(int n) const { return graph_.value(node(n).inputs[0]); }

  bool is_norm(int n) const { return holds<LayerNorm>(n) || holds<RmsNorm>(n); }
  bool is_activation(int n) const {
    return holds<Relu>(n) || holds<Gelu>(n) || holds<Silu>(n) || holds<Sigmoid>(n) || holds<Tanh>(n);
  }

  /// Whether `before` makes the only input of the node right behind it; in the same segment.
  bool is_behind(int before, int n) const {
    return before >= 0 && n == before + 1 && input(n).producer == before;
  }
  bool feeds(int before, int n) const {
    return is_behind(before, n) && nth(segment_, before) == nth(segment_, n);
  }

  bool can_fuse_gelu(int linear) const {
    return lockstep::ops::can_fuse_gelu(std::get<Linear>(node(linear).op),
                                        graph_.logical_spec(node(linear).inputs[0]), graph_.compute);
  }

  void fuse_norm(int n) {
    int source = n;  // what stands between the sum and the norm: a fork, if anything
    if (feeds(n - 1, n) && holds<Fork>(n - 1)) {
      source = n - 1;
      if (input(source).needs_gradient) {
        neighbors(n).fork_before = true;
        nth(fusion_.backward_node, source) = n;
      }
    }
    if (!feeds(source - 1, source) || !holds<Add>(source - 1)) return;
    neighbors(n).add_before = true;
    nth(fusion_.forward_node, source - 1) = n;
  }

  /// Whether the next node reads what `n` makes; in the same segment.
  bool is_read_next(int n) const {
    return n + 1 < static_cast<int>(graph_.nodes.size()) &&
           graph_.value(node(n).outputs[0]).consumer == n + 1 && nth(segment_, n) == nth(segment_, n + 1);
  }

  void fuse_batch_norm(int n) {
    int last = n;
    if (is_read_next(last) && holds<Add>(last + 1)) {
      nth(fusion_.forward_node, ++last) = n;
      neighbors(n).add_behind = true;
    }
    if (!is_read_next(last) || !holds<Relu>(last + 1)) return;
    nth(fusion_.forward_node, ++last) = n;
    neighbors(n).relu_behind = true;
    // Backward of a batch norm runs in any case: running statistics come from it.
    if (!neighbors(n).add_behind) nth(fusion_.backward_node, last) = n;
  }

  void fuse_fork_behind(int n) {
    if (!is_read_next(n) || !holds<Fork>(n + 1) || !input(n).needs_gradient) return;
    neighbors(n).fork_behind = true;
    nth(fusion_.backward_node, n + 1) = n;
  }

  void fuse_gelu(int n) {
    if (feeds(n - 1, n) && holds<Linear>(n - 1) && can_fuse_gelu(n - 1)) {
      neighbors(n - 1).gelu_behind = true;
      nth(fusion_.forward_node, n) = n - 1;
    }
    const int reader = n + 1;
    if (reader < static_cast<int>(graph_.nodes.size()) && feeds(n, reader) && holds<Linear>(reader) &&
        node(n).group == node(reader).group && input(n).needs_gradient && can_fuse_gelu(reader)) {
      neighbors(reader).gelu_before = true;
      nth(fusion_.backward_node, n) = reader;
    }
  }

  /// The linear layer whose output's gradient backward of a norm or an activation writes, if its bias learns;
  /// or -1. A norm writes the gradient of the fork before it if they are in one segment; otherwise the fork
  /// does.
  int linear_before(int n) const {
    const Value* written = &input(n);
    if (is_norm(n) && is_behind(n - 1, n) && holds<Fork>(n - 1)) written = &input(n - 1);
    if (!written->needs_gradient || written->spec.shape.rank() == 0) return -1;
    for (int before = n - 1; before >= 0; --before) {
      if (!holds<Linear>(before)) continue;
      const Node& linear = node(before);
      const Value& output = graph_.value(linear.outputs[0]);
      if (output.gradient_storage != written->gradient_storage) continue;
      const bool learns = linear.parameters.size() == 2 && !graph_.parameter(linear.parameters[1]).frozen &&
                          linear.has_second_half();
      return learns && output.spec.shape[-1] == written->spec.shape[-1] ? before : -1;
    }
    return -1;
  }

  void fuse_bias(int n) {
    const int linear = linear_before(n);
    if (linear < 0) return;
    if (is_norm(n)) neighbors(linear).norm_behind = true;
    const bool forks = is_norm(n) && is_behind(n - 1, n) && holds<Fork>(n - 1);
    if (nth(segment_, linear) != nth(segment_, n) || (forks && !neighbors(n).fork_before)) return;
    neighbors(n).bias_before = true;
    nth(fusion_.bias_of, n) = linear;
  }

  void fuse_loss(int n) {
    const Value& logits = input(n);
    neighbors(n).gradient_in_forward =
        feeds(n - 1, n) && logits.needs_gradient && logits.storage == node(n).inputs[0] &&
        logits.gradient_storage == logits.storage && !node(n - 1).signature.backward_needs_output;
  }

  const Graph& graph_;
  Fusion fusion_;
  std::vector<int> segment_;  // by node
};

}  // namespace

bool Fusion::leaves_bias(int node) const { return std::ranges::find(bias_of, node) != bias_of.end(); }

bool Fusion::is_unwritten(const Graph& graph, int value) const {
  const Value& of = graph.value(value);
  if (of.producer < 0 || of.consumer < 0) return false;
  const int by = nth(forward_node, of.producer);
  const ops::FusedNeighbors& fused = nth(neighbors, by);
  return by != of.consumer && nth(forward_node, of.consumer) == by && (fused.add_behind || fused.relu_behind);
}

int Fusion::other_term(const Graph& graph, int node) const {
  if (!nth(neighbors, node).add_behind) return -1;
  const Value& output = graph.value(graph.node(node).outputs[0]);
  return nth(graph.node(output.consumer).inputs, 1 - output.consumer_input);
}

int Fusion::last_made(const Graph& graph, int node) const {
  const ops::FusedNeighbors& fused = nth(neighbors, node);
  int value = graph.node(node).outputs[0];
  for (int behind = fused.add_behind + fused.relu_behind; behind > 0; --behind)
    value = graph.node(graph.value(value).consumer).outputs[0];
  return value;
}

std::vector<int> Fusion::gradients_read(const Graph& graph, int node) const {
  const ops::FusedNeighbors& fused = nth(neighbors, node);
  if (fused.fork_behind) return graph.node(graph.value(graph.node(node).outputs[0]).consumer).outputs;
  if (fused.relu_behind && !fused.add_behind) return {last_made(graph, node)};
  return graph.node(node).outputs;
}

Fusion no_fusion(const Graph& graph) {
  Fusion fusion{.neighbors = std::vector<ops::FusedNeighbors>(graph.nodes.size()),
                .forward_node = std::vector<int>(graph.nodes.size()),
                .backward_node = {},
                .bias_of = std::vector<int>(graph.nodes.size(), -1)};
  std::iota(fusion.forward_node.begin(), fusion.forward_node.end(), 0);
  fusion.backward_node = fusion.forward_node;
  return fusion;
}

Fusion fuse_for_cpu(const Graph& graph, const Partition& partition) {
  return graph.compute == DType::float32 ? Fuser(graph, partition).fuse_on_cpu() : no_fusion(graph);
}

Fusion fuse_for_gpu(const Graph& graph, const Partition& partition, const GpuFusions& fusions) {
  return Fuser(graph, partition).fuse(fusions);
}

}  // namespace lockstep::model
