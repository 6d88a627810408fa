#include "exchange/families/layer_names.h"

#include <fmt/format.h>

#include <map>
#include <optional>
#include <string_view>
#include <variant>

#include "base/index.h"
#include "lockstep/error.h"

namespace lockstep::exchange {
namespace {

using model::Graph;
using model::Node;

/// A layer of an nn.LSTM: "rnn.l1" is number "1" of "rnn".
struct StackedName {
  std::string stack, number;
};

std::optional<StackedName> stacked_name(const std::string& layer) {
  const size_t dot = layer.rfind(".l");
  if (dot == std::string::npos || dot == 0) return std::nullopt;
  const std::string number = layer.substr(dot + 2);
  const bool is_number = !number.empty() && number.find_first_not_of("0123456789") == std::string::npos &&
                         (number == "0" || number[0] != '0');
  return is_number ? std::optional(StackedName{layer.substr(0, dot), number}) : std::nullopt;
}

/// Parameters of the other direction end in "_reverse" in both programs.
std::string lstm_name(const std::string& layer, std::string parameter) {
  const std::string reverse = parameter.ends_with("_reverse") ? "_reverse" : "";
  parameter.resize(parameter.size() - reverse.size());
  const StackedName name = stacked_name(layer).value_or(StackedName{layer, "0"});
  return fmt::format("{}.{}_l{}{}", name.stack, parameter, name.number, reverse);
}

/// Whether a node is a parameter by itself.
bool is_parameter(const Node& node) {
  return std::holds_alternative<PrependToken>(node.op) ||
         (std::holds_alternative<PositionEmbedding>(node.op) && node.name.ends_with("pos_embedding"));
}

constexpr std::string_view kFirstProduct = ".in_proj";

/// Whether a node is the first product of an nn.MultiheadAttention: other modules have an `in_proj`, too.
bool is_first_product(const Graph& graph, const Node& node) {
  const auto* linear = std::get_if<Linear>(&node.op);
  if (linear == nullptr || !node.name.ends_with(kFirstProduct)) return false;
  const int reader = graph.value(node.outputs[0]).consumer;
  const auto* attention = reader < 0 ? nullptr : std::get_if<Attention>(&graph.node(reader).op);
  return attention != nullptr &&
         (attention->key_value_heads == 0 || attention->key_value_heads == attention->heads) &&
         linear->units == 3 * graph.value(node.inputs[0]).spec.shape[-1];
}

/// What a value is, before it was forked; or before dropout, too.
int source_of(const Graph& graph, int value, bool through_dropout) {
  for (int producer = graph.value(value).producer; producer >= 0; producer = graph.value(value).producer) {
    const Node& node = graph.node(producer);
    if (!std::holds_alternative<Fork>(node.op) &&
        !(through_dropout && std::holds_alternative<Dropout>(node.op)))
      break;
    value = node.inputs[0];
  }
  return value;
}

/// Whether `after` is what nn.LSTM has behind its layer `before`.
bool continues(const Graph& graph, const Node& before, const Node& after) {
  const auto& first = std::get<Lstm>(before.op);
  const auto& second = std::get<Lstm>(after.op);
  const auto mask = [&](const Node& node) {
    return node.inputs.size() > 1 ? source_of(graph, node.inputs[1], false) : -1;
  };
  return source_of(graph, after.inputs[0], true) == before.outputs[0] && first.units == second.units &&
         first.bidirectional == second.bidirectional && mask(before) == mask(after);
}

}  // namespace

std::string name_there(const Graph& graph, const Node& node, const std::string& parameter) {
  if (std::holds_alternative<Lstm>(node.op)) return lstm_name(node.name, parameter);
  if (is_parameter(node)) return node.name;
  if (is_first_product(graph, node)) return fmt::format("{}_{}", node.name, parameter);
  return fmt::format("{}.{}", node.name, parameter);
}

/// A parameter by itself is one for all samples of a batch there: [1, ...].
Shape shape_there(const Node& node, const Shape& shape) {
  return is_parameter(node) ? shape.batched(1) : shape;
}

void check_lstm_stacks(const Graph& graph) {
  std::map<std::string, std::map<std::string, const Node*>> stacks;  // by number
  for (const Node& node : graph.nodes)
    if (const auto name = stacked_name(node.name); name && std::holds_alternative<Lstm>(node.op))
      stacks[name->stack].emplace(name->number, &node);
  for (const auto& [stack, layers] : stacks) {
    const Node* before = nullptr;
    for (size_t number = 0; number < layers.size(); ++number) {
      const auto found = layers.find(std::to_string(number));
      if (found == layers.end())
        throw ConfigError(
            fmt::format("layer '{}' (lstm) is a layer of an nn.LSTM '{}' by its name, but there is no "
                        "'{}.l{}': number them from 0 on, or name it otherwise",
                        layers.rbegin()->second->name, stack, stack, number));
      if (before != nullptr && !continues(graph, *before, *found->second))
        throw ConfigError(
            fmt::format("layers '{}' and '{}' (lstm) are layers of one nn.LSTM '{}' by their names, but the "
                        "second does not read the first, with nothing but dropout between and the same "
                        "units, directions and mask: name them otherwise",
                        before->name, found->second->name, stack));
      before = found->second;
    }
  }
}

}  // namespace lockstep::exchange
