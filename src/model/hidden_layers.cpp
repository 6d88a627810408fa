#include "model/hidden_layers.h"

#include <algorithm>
#include <limits>
#include <variant>

namespace lockstep::model {
namespace {

bool is_weight_of_layer(const Parameter& parameter) {
  return parameter.spec.role == ops::ParameterRole::weight && parameter.spec.shape.rank() >= 2;
}

/// Whether the op computes with its weight as one matrix.
bool multiplies_by_matrix(const Op& op) {
  if (const auto* convolution = std::get_if<Conv2d>(&op)) return convolution->groups == 1;
  return std::holds_alternative<Linear>(op);
}

}  // namespace

std::optional<MatrixSize> matrix_of(const Parameter& parameter) {
  if (!is_weight_of_layer(parameter) || parameter.uses.size() != 1) return {};
  const int64_t rows = parameter.spec.shape[0], count = parameter.spec.shape.count();
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  if (rows < 1 || rows > kMost || count < 1 || count / rows > kMost) return {};
  return MatrixSize{static_cast<int32_t>(rows), static_cast<int32_t>(count / rows)};
}

std::vector<bool> hidden_matrices(const Graph& graph) {
  const size_t count = graph.nodes.size();
  std::vector<bool> has_weight(count), comes_after(count), comes_before(count);
  for (size_t n = 0; n < count; ++n)
    has_weight[n] = std::ranges::any_of(graph.nodes[n].parameters,
                                        [&](int p) { return is_weight_of_layer(graph.parameter(p)); });
  // Producers come first.
  for (size_t n = 0; n < count; ++n)
    for (const int input : graph.nodes[n].inputs)
      if (const int producer = graph.value(input).producer; producer >= 0) {
        const auto before = static_cast<size_t>(producer);
        comes_after[n] = comes_after[n] || comes_after[before] || has_weight[before];
      }
  for (size_t n = count; n-- > 0;)
    for (const int input : graph.nodes[n].inputs)
      if (const int producer = graph.value(input).producer; producer >= 0) {
        const auto before = static_cast<size_t>(producer);
        comes_before[before] = comes_before[before] || comes_before[n] || has_weight[n];
      }
  std::vector<bool> hidden;
  for (const Parameter& parameter : graph.parameters) {
    const auto node = static_cast<size_t>(parameter.uses.at(0).node);
    hidden.push_back(matrix_of(parameter) && multiplies_by_matrix(graph.nodes[node].op) &&
                     comes_after[node] && comes_before[node]);
  }
  return hidden;
}

}  // namespace lockstep::model
