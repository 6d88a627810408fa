#include "exchange/layer_match.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <ranges>
#include <set>
#include <type_traits>
#include <utility>
#include <variant>

#include "base/ensure.h"
#include "base/index.h"
#include "base/text.h"
#include "lockstep/error.h"

namespace lockstep::exchange {
namespace {

/// Options that decide what a layer computes from its parameters, as text, without those that are 0 for a
/// default that others state.
std::vector<std::string> options_of(const Op& op) {
  std::vector<std::string> options;
  std::visit(
      [&](auto copy) {
        if constexpr (std::is_same_v<decltype(copy), Attention>)
          if (copy.key_value_heads == 0) copy.key_value_heads = copy.heads;
        copy.visit([&](std::string_view name, const auto& value) {
          constexpr std::string_view kLeftOut[] = {"init_std",      "init_range",     "zero_weight",
                                                   "bias_init_std", "dropout",
                                                   "positions",  // rows that a shorter sample never sees
                                                   "ignore_index",  "label_smoothing"};
          if (std::ranges::find(kLeftOut, name) != std::end(kLeftOut)) return;
          using Value = std::decay_t<decltype(value)>;
          if constexpr (std::is_enum_v<Value>)
            options.push_back(fmt::format("{}: {}", name, static_cast<int>(value)));
          else if constexpr (std::is_same_v<Value, std::vector<CustomAttribute>>)
            for (const auto& attribute : value)
              options.push_back(fmt::format("{}: {}", attribute.name, attribute.value));
          else
            options.push_back(fmt::format("{}: {}", name, value));
        });
      },
      op);
  return options;
}

std::string description_of(const Op& op) {
  const auto options = options_of(op);
  return fmt::format("{}{}", name_of(op), options.empty() ? "" : " { " + join(options, " ") + " }");
}

using Layers = std::map<std::string, const Layer*>;

Layers by_name(const ModelSpec& model) {
  Layers layers;
  for (const auto& layer : model.layers) layers.emplace(layer.name, &layer);
  return layers;
}

/// The layer behind dropout, and the rate of the dropout; the layer itself without one.
std::pair<std::string, float> behind_dropout(const Layers& layers, std::string name) {
  float rate = 0;
  for (auto found = layers.find(name); found != layers.end(); found = layers.find(name)) {
    const auto* dropout = std::get_if<Dropout>(&found->second->op);
    if (dropout == nullptr) break;
    rate = dropout->rate;
    name = found->second->inputs.at(0);
  }
  return {name, rate};
}

const Layer& loss_of(const ModelSpec& model) {
  for (const auto& layer : model.layers)
    if (std::holds_alternative<SoftmaxCrossEntropy>(layer.op) ||
        std::holds_alternative<MeanSquaredError>(layer.op))
      return layer;
  throw ConfigError("the model has no loss");
}

class Matcher {
 public:
  Matcher(const ModelSpec& model, const ModelSpec& expected, std::string_view architecture)
      : model_(model),
        expected_(expected),
        layers_(by_name(model)),
        expected_layers_(by_name(expected)),
        architecture_(architecture) {}

  LayerMatch match() {
    match_.layers[loss_of(expected_).name] = loss_of(model_).name;
    // Whoever reads a layer comes after it.
    for (const Layer& layer : std::views::reverse(expected_.layers))
      if (!std::holds_alternative<Dropout>(layer.op)) follow(layer);
    std::set<std::string> placed;
    for (const auto& [expected, actual] : match_.layers) placed.insert(actual);
    for (const auto& layer : model_.layers)
      if (!std::holds_alternative<Dropout>(layer.op) && !placed.contains(layer.name))
        throw ConfigError(
            fmt::format("layer '{}' ({}) has no place in {}", layer.name, name_of(layer.op), architecture_));
    match_parameters();
    return std::move(match_);
  }

 private:
  void follow(const Layer& expected) {
    const auto place = match_.layers.find(expected.name);
    ensure(place != match_.layers.end(), "every layer of an architecture leads to its loss");
    const Layer& actual = *layers_.at(place->second);
    auto inputs = actual.inputs;
    // What else attention reads says which positions of a sample see each other, and belongs to no parameter.
    if (std::holds_alternative<Attention>(actual.op) && inputs.size() > expected.inputs.size())
      inputs.resize(expected.inputs.size());
    if (actual.op.index() != expected.op.index() || options_of(actual.op) != options_of(expected.op) ||
        inputs.size() != expected.inputs.size())
      throw ConfigError(fmt::format("layer '{}' is {}, but {} has {} there ('{}')", actual.name,
                                    description_of(actual.op), architecture_, description_of(expected.op),
                                    expected.name));
    const bool commutes =
        std::holds_alternative<Add>(actual.op) || std::holds_alternative<Multiply>(actual.op);
    if (commutes && kind_of(layers_, inputs[0]) != kind_of(expected_layers_, expected.inputs[0]))
      std::swap(inputs[0], inputs[1]);
    for (size_t i = 0; i < inputs.size(); ++i) connect(actual, inputs[i], expected.inputs[i]);
  }

  std::string_view kind_of(const Layers& layers, const std::string& name) const {
    const auto found = layers.find(behind_dropout(layers, name).first);
    return found == layers.end() ? "input" : name_of(found->second->op);
  }

  /// `reader` reads `input`, where the architecture has `expected`.
  void connect(const Layer& reader, const std::string& input, const std::string& expected) {
    const auto [name, rate] = behind_dropout(layers_, input);
    const std::string expected_name = behind_dropout(expected_layers_, expected).first;
    const bool is_layer = layers_.contains(name);
    if (is_layer != expected_layers_.contains(expected_name) || (!is_layer && name != expected_name))
      throw ConfigError(fmt::format("layer '{}' reads '{}', but {} has '{}' there", reader.name, name,
                                    architecture_, expected_name));
    if (rate > 0) match_.dropout_after[expected_name] = rate;
    if (!is_layer) return;
    const auto [known, is_new] = match_.layers.emplace(expected_name, name);
    if (!is_new && known->second != name)
      throw ConfigError(fmt::format("layer '{}' reads '{}', but in {} it reads '{}'", reader.name, name,
                                    architecture_, known->second));
  }

  void match_parameters() {
    const model::Graph graph = model::make_graph(model_), expected = model::make_graph(expected_);
    std::map<std::string, const model::Node*> nodes, expected_nodes;
    for (const auto& node : graph.nodes) nodes.emplace(node.name, &node);
    match_.parameters.assign(expected.parameters.size(), -1);
    std::map<int, int> taken;  // of the model's parameters: by which of the architecture's
    for (int p = 0; p < static_cast<int>(expected.parameters.size()); ++p)
      for (const auto& use : expected.parameter(p).uses) {
        const std::string& layer = match_.layers.at(expected.node(use.node).name);
        const int actual = nth(nodes.at(layer)->parameters, use.slot);
        int& known = nth(match_.parameters, p);
        if ((known >= 0 && known != actual) || taken.emplace(actual, p).first->second != p)
          throw ConfigError(fmt::format("layer '{}': {} {}", layer, architecture_,
                                        known >= 0 ? "shares its weight with another layer"
                                                   : "does not share its weight with another layer"));
        known = actual;
      }
  }

  const ModelSpec& model_;
  const ModelSpec& expected_;
  const Layers layers_, expected_layers_;
  const std::string architecture_;
  LayerMatch match_;
};

}  // namespace

LayerMatch match_layers(const ModelSpec& model, const ModelSpec& expected, std::string_view architecture) {
  return Matcher(model, expected, architecture).match();
}

int64_t context_of(const ModelSpec& model, std::string_view architecture) {
  for (const auto& input : model.inputs)
    if (input.name == "tokens" && input.spec.shape.rank() == 1) return input.spec.shape[0];
  throw ConfigError(
      fmt::format("the model has no input 'tokens' of one dimension, which {} has", architecture));
}

bool has_tied_head(const ModelSpec& model) {
  const Layers layers = by_name(model);
  const auto head = layers.find(behind_dropout(layers, loss_of(model).inputs.at(0)).first);
  if (head == layers.end()) return false;
  const model::Graph graph = model::make_graph(model);
  int weight_of_head = -1, weight_of_embedding = -1;
  for (const auto& node : graph.nodes) {
    if (node.name == head->first && !node.parameters.empty()) weight_of_head = node.parameters[0];
    if (weight_of_embedding < 0 && std::holds_alternative<Embedding>(node.op))
      weight_of_embedding = node.parameters[0];
  }
  return weight_of_head >= 0 && weight_of_head == weight_of_embedding;
}

void refuse_without(std::string_view kind, std::string_view architecture) {
  throw ConfigError(fmt::format("the model has no layer {}, which {} has", kind, architecture));
}

}  // namespace lockstep::exchange
