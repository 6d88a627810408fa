#include "proof/model_flow.h"

#include <set>

#include "base/index.h"
#include "proof/graph_symbols.h"

namespace lockstep::proof {
namespace {

class FlowFinder {
 public:
  FlowFinder(const model::Graph& graph, const model::Partition& partition)
      : graph_(graph), symbols_(graph), segments_(partition.segments.size()) {
    for (size_t s = 0; s < partition.segments.size(); ++s)
      for (int n = partition.segments[s].first_node; n <= partition.segments[s].last_node; ++n)
        segment_of_.push_back(static_cast<int>(s));
  }

  std::vector<SegmentFlow> find() {
    for (int v = 0; v < static_cast<int>(graph_.values.size()); ++v) {
      follow_activation(v);
      if (graph_.value(v).needs_gradient) follow_gradient(v);
    }
    std::vector<SegmentFlow> flows;
    for (const Sets& sets : segments_)
      flows.push_back({list_of(sets.inputs), list_of(sets.outputs), list_of(sets.output_gradients),
                       list_of(sets.input_gradients), list_of(sets.weight_gradients)});
    return flows;
  }

  std::vector<int> segments_of(const model::Parameter& parameter) const {
    std::vector<int> segments;
    for (const auto& use : parameter.uses) segments.push_back(segment_of(use.node));
    return segments;
  }

 private:
  struct Sets {
    std::set<int> inputs, outputs, output_gradients, input_gradients, weight_gradients;
  };

  static std::vector<int> list_of(const std::set<int>& set) { return {set.begin(), set.end()}; }
  int segment_of(int node) const { return node < 0 ? -1 : nth(segment_of_, node); }

  /// From whoever makes it to whoever reads it.
  void follow_activation(int v) {
    const int root = symbols_.activation_value(v);
    const int made = segment_of(graph_.value(root).producer), read = segment_of(graph_.value(v).consumer);
    if (made == read) return;
    if (made >= 0) nth(segments_, made).outputs.insert(root);
    nth(segments_, read).inputs.insert(root);
  }

  /// From whoever computes it to the node that made the value; nodes that only pass it on neither compute nor
  /// use it.
  void follow_gradient(int v) {
    const int producer = graph_.value(v).producer;
    const auto& node = graph_.node(producer);
    if (node.signature.passes_gradient) return;
    const int made = segment_of(graph_.value(symbols_.gradient_value(v)).consumer),
              used = segment_of(producer);
    const int storage = graph_.value(v).gradient_storage;
    if (made != used) {
      nth(segments_, made).input_gradients.insert(storage);
      nth(segments_, used).output_gradients.insert(storage);
    }
    const bool crosses = made != used || segment_of(graph_.value(storage).producer) != used;
    if (node.has_second_half() && crosses) nth(segments_, used).weight_gradients.insert(storage);
  }

  const model::Graph& graph_;
  GraphSymbols symbols_;
  std::vector<Sets> segments_;
  std::vector<int> segment_of_;  // by node
};

}  // namespace

ModelFlow flow_of(const model::Graph& graph, const model::Partition& partition) {
  FlowFinder finder(graph, partition);
  ModelFlow flow{.segments = finder.find(), .parameters = {}, .inputs = graph.inputs, .names = {}};
  for (const auto& value : graph.values) flow.names.push_back(value.name);
  for (const auto& parameter : graph.parameters)
    flow.parameters.push_back(
        {parameter.name, 4 * parameter.spec.shape.count(), finder.segments_of(parameter), parameter.frozen});
  return flow;
}

}  // namespace lockstep::proof
