#include "train/checkpoints/known_faults.h"

#include <fmt/format.h>

#include <algorithm>

namespace lockstep::train {
namespace {

/// Whether the value, or a view of it, is a term of a sum.
bool is_added(const model::Graph& graph, int value) {
  while (true) {
    const auto& reader = graph.node(graph.value(value).consumer);
    if (!reader.signature.passes_gradient) return false;
    if (reader.inputs.size() > 1) return true;
    value = reader.outputs[0];
  }
}

/// Whether the output of an op whose gradients come in halves is a term of a sum.
bool adds_to_a_product(const model::Graph& graph) {
  return std::ranges::any_of(graph.nodes, [&](const model::Node& node) {
    return node.signature.backward == ops::BackwardForm::split && !node.parameters.empty() &&
           is_added(graph, node.outputs[0]);
  });
}

}  // namespace

std::string known_fault_of(const checkpoint::Manifest& manifest, const model::Graph& graph) {
  const bool in_halves = manifest.layout.find("schedule=zero_bubble") != std::string::npos;
  if (manifest.numerics_revision >= 1 || !in_halves || !adds_to_a_product(graph)) return "";
  return fmt::format(
      "the checkpoint of step {} was trained with layout '{}' by a version of lockstep whose zero_bubble "
      "computed wrong gradients for models like this one, which add one layer's output directly to "
      "another's: it is no result of this configuration; train again, or go on if its evaluations are good "
      "enough",
      manifest.step, manifest.layout);
}

}  // namespace lockstep::train
