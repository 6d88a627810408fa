#include "model/graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <memory>

#include "base/ensure.h"
#include "base/hash.h"
#include "base/index.h"
#include "base/text.h"
#include "lockstep/error.h"
#include "model/shared_graph.h"
#include "ops/fusion.h"
#include "tensor/convert.h"

namespace lockstep::model {
namespace {

bool valid_name(const std::string& name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return std::isalnum(c) || c == '_' || c == '-' || c == '.' || c == '/';
  });
}

/// Lowers a ModelSpec layer by layer. Values are handed out to their readers one by one; a value that several
/// layers read is forked right behind its producer.
class GraphMaker {
 public:
  explicit GraphMaker(const ModelSpec& spec) : spec_(spec) {}

  Graph make() {
    count_readers();
    for (const auto& input : spec_.inputs) add_input(input);
    for (const auto& layer : spec_.layers) add_layer(layer);
    check_ends();
    freeze_parameters();
    form_groups();
    return std::move(graph_);
  }

 private:
  void count_readers() {
    for (const auto& layer : spec_.layers)
      for (const auto& input : layer.inputs) ++readers_[input];
  }

  void claim_name(const std::string& name, std::string_view what) {
    if (!valid_name(name))
      throw ConfigError(
          fmt::format("{} name '{}' must consist of letters, digits, '_', '-', '.' and '/'", what, name));
    if (available_.contains(name) || !used_names_.emplace(name, true).second)
      throw ConfigError(
          fmt::format("the name '{}' is used twice; names of layers and inputs must differ", name));
  }

  int add_value(std::string name, TensorSpec spec, int producer, int producer_output) {
    const int id = static_cast<int>(graph_.values.size());
    graph_.values.push_back({.name = std::move(name),
                             .spec = std::move(spec),
                             .producer = producer,
                             .producer_output = producer_output,
                             .storage = id,
                             .gradient_storage = id});
    return id;
  }

  void add_input(const ModelInput& input) {
    claim_name(input.name, "input");
    if (input.spec.shape.count() <= 0)
      throw ConfigError(
          fmt::format("input {}: shape {} has no elements", input.name, input.spec.shape.to_string()));
    const int value = add_value(input.name, input.spec, -1, 0);
    graph_.inputs.push_back(value);
    offer(input.name, value);
  }

  /// Makes `value` available under `name` to as many readers as the spec has, through forks where there are
  /// several.
  void offer(const std::string& name, int value) {
    auto& ready = available_[name];
    const int readers = readers_.contains(name) ? readers_.at(name) : 0;
    for (int left = readers; left > 1; --left) {
      const int number = readers - left;
      const std::string fork_name = number == 0 ? name + ".fork" : fmt::format("{}.fork{}", name, number);
      const int node = add_node(fork_name, Fork{}, {value});
      ready.push_back(graph_.node(node).outputs[0]);
      value = graph_.node(node).outputs[1];
    }
    ready.push_back(value);
  }

  int take(const Layer& layer, const std::string& input) {
    const auto found = available_.find(input);
    if (found == available_.end()) {
      std::vector<std::string> names;
      for (const auto& [name, values] : available_) names.push_back(name);
      throw ConfigError(
          fmt::format("layer {}: its input '{}' is neither a model input nor an earlier layer{}", layer.name,
                      input, did_you_mean(input, names)));
    }
    auto& ready = found->second;
    ensure(!ready.empty(), "a value ran out of readers");
    const int value = ready.front();
    ready.erase(ready.begin());
    return value;
  }

  bool is_frozen(const std::string& layer) const {
    return std::ranges::any_of(spec_.frozen,
                               [&](const auto& pattern) { return matches_pattern(pattern, layer); });
  }

  int add_node(const std::string& name, const Op& op, const std::vector<int>& inputs, bool frozen = false) {
    const int id = static_cast<int>(graph_.nodes.size());
    std::vector<TensorSpec> specs;
    for (const int input : inputs) specs.push_back(graph_.value(input).spec);
    Node node;
    node.name = name;
    node.op = op;
    node.inputs = inputs;
    try {
      node.signature = ops::infer(op, specs);
    } catch (const ConfigError& error) {
      throw ConfigError(fmt::format("layer {}: {}", name, error.what()));
    }
    const auto& signature = node.signature;
    ensure(signature.differentiable.size() == inputs.size() &&
               signature.backward_needs_input.size() == inputs.size(),
           "an op's signature must speak of each of its inputs");

    const bool has_weights = std::ranges::any_of(
        signature.parameters, [](const auto& p) { return p.role == ops::ParameterRole::weight; });
    node.frozen = frozen && has_weights;
    // Running statistics come from backward, whether the weights beside them learn or not.
    bool gradient = std::ranges::any_of(signature.parameters, [&](const auto& p) {
      return p.role == ops::ParameterRole::statistic || !frozen;
    });
    for (size_t i = 0; i < inputs.size(); ++i) {
      auto& value = graph_.value(inputs[i]);
      value.consumer = id;
      value.consumer_input = static_cast<int>(i);
      if (value.needs_gradient && !signature.differentiable[i])
        throw ConfigError(fmt::format(
            "layer {}: no gradient can flow into its input {} ('{}'), but parameters lie before it", name, i,
            value.name));
      gradient = gradient || value.needs_gradient;
    }
    const bool forks = std::holds_alternative<Fork>(op);
    for (size_t o = 0; o < signature.outputs.size(); ++o) {
      const std::string value_name = forks ? fmt::format("{}:{}", name, o) : name;
      const int output = add_value(value_name, signature.outputs[o], id, static_cast<int>(o));
      auto& value = graph_.value(output);
      value.needs_gradient = gradient;
      if (signature.alias) {
        const auto& source = graph_.value(inputs[0]);
        value.storage = source.storage;
      }
      if (signature.passes_gradient && gradient) share_gradient(output, inputs);
      node.outputs.push_back(output);
    }
    graph_.nodes.push_back(std::move(node));
    return id;
  }

  /// One memory for the gradients of an output and of the inputs that want one: the earliest of theirs, so
  /// that it lives until the first of their producers has read it.
  void share_gradient(int output, const std::vector<int>& inputs) {
    std::vector<int> storages;
    for (const int input : inputs)
      if (const auto& value = graph_.value(input); value.needs_gradient)
        storages.push_back(value.gradient_storage);
    const int shared = *std::min_element(storages.begin(), storages.end());
    for (auto& value : graph_.values)
      if (std::find(storages.begin(), storages.end(), value.gradient_storage) != storages.end())
        value.gradient_storage = shared;
    graph_.value(output).gradient_storage = shared;
  }

  void add_layer(const Layer& layer) {
    claim_name(layer.name, "layer");
    if (std::holds_alternative<Fork>(layer.op))
      throw ConfigError(fmt::format(
          "layer {}: the graph inserts forks itself; use a layer's name twice instead", layer.name));
    std::vector<int> inputs;
    for (const auto& input : layer.inputs) inputs.push_back(take(layer, input));
    const int id = add_node(layer.name, layer.op, inputs, is_frozen(layer.name));
    add_parameters(layer, id);
    auto& node = graph_.node(id);
    if (node.signature.is_loss) {
      if (graph_.loss >= 0)
        throw ConfigError(fmt::format("layer {}: a model has one loss, and {} already is one", layer.name,
                                      graph_.node(graph_.loss).name));
      if (!graph_.value(node.inputs[0]).needs_gradient)
        throw ConfigError(
            fmt::format("layer {}: {} before the loss; there is nothing to train", layer.name,
                        spec_.frozen.empty() ? "no parameter lies" : "no parameter that is not frozen lies"));
      graph_.loss = id;
    } else {
      offer(layer.name, node.outputs[0]);
    }
  }

  void add_parameters(const Layer& layer, int id) {
    std::map<std::string, std::string> ties;
    for (const auto& tie : layer.ties)
      if (!ties.emplace(tie.parameter, tie.with).second)
        throw ConfigError(
            fmt::format("layer {}: its parameter '{}' is tied twice", layer.name, tie.parameter));
    auto& node = graph_.node(id);
    std::vector<std::string> own_names;
    for (size_t slot = 0; slot < node.signature.parameters.size(); ++slot) {
      const auto& spec = node.signature.parameters[slot];
      own_names.push_back(spec.name);
      const Parameter::Use use{id, static_cast<int>(slot)};
      if (const auto tie = ties.find(spec.name); tie != ties.end()) {
        node.parameters.push_back(tie_to(layer, spec, tie->second, use));
        ties.erase(tie);
      } else {
        node.parameters.push_back(static_cast<int>(graph_.parameters.size()));
        graph_.parameters.push_back({.name = layer.name + "." + spec.name, .spec = spec, .uses = {use}});
      }
    }
    if (!ties.empty())
      throw ConfigError(fmt::format("layer {}: it has no parameter '{}' to tie{}; it has: {}", layer.name,
                                    ties.begin()->first, did_you_mean(ties.begin()->first, own_names),
                                    join(own_names, ", ")));
  }

  int tie_to(const Layer& layer, const ops::ParameterSpec& spec, const std::string& with,
             Parameter::Use use) {
    std::vector<std::string> names;
    for (size_t p = 0; p < graph_.parameters.size(); ++p) {
      auto& parameter = graph_.parameters[p];
      names.push_back(parameter.name);
      if (parameter.name != with) continue;
      if (parameter.spec.shape != spec.shape)
        throw ConfigError(fmt::format("layer {}: {} has shape {} and cannot be tied to {} of shape {}",
                                      layer.name, spec.name, spec.shape.to_string(), with,
                                      parameter.spec.shape.to_string()));
      if (parameter.spec.role != ops::ParameterRole::weight || spec.role != ops::ParameterRole::weight)
        throw ConfigError(fmt::format("layer {}: running statistics cannot be tied ({} with {})", layer.name,
                                      spec.name, with));
      parameter.uses.push_back(use);
      return static_cast<int>(p);
    }
    throw ConfigError(fmt::format("layer {}: {} is tied to '{}', which no earlier layer has{}", layer.name,
                                  spec.name, with, did_you_mean(with, names)));
  }

  void check_ends() {
    if (graph_.loss < 0)
      throw ConfigError("the model has no loss; end it with softmax_cross_entropy or mean_squared_error");
    for (const auto& value : graph_.values)
      if (value.consumer < 0)
        throw ConfigError(value.producer < 0
                              ? fmt::format("model input '{}' is used by no layer", value.name)
                              : fmt::format("the output of layer {} is used by no other layer", value.name));
  }

  /// A weight is frozen if all layers that use it are.
  void freeze_parameters() {
    if (spec_.frozen.empty()) return;
    for (const auto& pattern : spec_.frozen) require_frozen_layer(pattern);
    bool learns = false;
    for (auto& parameter : graph_.parameters) {
      if (parameter.spec.role != ops::ParameterRole::weight) continue;
      const Node& first = graph_.node(parameter.uses[0].node);
      parameter.frozen = first.frozen;
      learns = learns || !first.frozen;
      for (const auto& use : parameter.uses)
        if (const Node& other = graph_.node(use.node); other.frozen != first.frozen)
          throw ConfigError(
              fmt::format("frozen: '{}' is shared by the layers {} and {}, and only {} is frozen; freeze "
                          "both or neither",
                          parameter.name, first.name, other.name, first.frozen ? first.name : other.name));
    }
    if (!learns) throw ConfigError("frozen: every weight of the model is frozen; there is nothing to train");
  }

  void require_frozen_layer(const std::string& pattern) const {
    std::vector<std::string> names;
    for (const auto& node : graph_.nodes) {
      if (node.frozen && matches_pattern(pattern, node.name)) return;
      if (!node.parameters.empty()) names.push_back(node.name);
    }
    constexpr size_t kMostNames = 12;
    std::string hint = did_you_mean(pattern, names);
    if (hint.empty()) {
      const bool cut = names.size() > kMostNames;
      if (cut) names.resize(kMostNames);
      hint = fmt::format("; these have: {}{}", join(names, ", "), cut ? ", ..." : "");
    }
    throw ConfigError(fmt::format("frozen: '{}' matches no layer with weights{}", pattern, hint));
  }

  /// A group is an op with what may be computed in one go with it: elementwise ops and views after it, and
  /// the forks before it. Forks belong to their reader, so that a cut before them is crossed by one value and
  /// one gradient. A linear layer may compute the gradient of the GELU before it; but a long chain of both is
  /// no single group, which would be one bucket however small buckets shall be.
  void form_groups() {
    int group = -1, linear_layers = 0;
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      auto& node = graph_.nodes[n];
      bool joins = n > 0 && is_fork(graph_.nodes[n - 1]);
      if (n > 0 && !is_fork(node) && node.inputs.size() == 1 &&
          (node.signature.elementwise || node.signature.alias))
        joins = joins || follows_directly(n);
      const bool is_linear = std::holds_alternative<Linear>(node.op);
      if (n > 0 && is_linear && linear_layers < 2 && ops::is_fusible_gelu(graph_.nodes[n - 1].op))
        joins = joins || follows_directly(n);
      if (!joins) {
        ++group;
        linear_layers = 0;
      }
      if (is_linear) ++linear_layers;
      node.group = group;
    }
    graph_.group_count = group + 1;
  }

  bool follows_directly(size_t n) const {
    return graph_.value(graph_.nodes[n].inputs[0]).producer == static_cast<int>(n) - 1;
  }

  static bool is_fork(const Node& node) { return std::holds_alternative<Fork>(node.op); }

  const ModelSpec& spec_;
  Graph graph_;
  std::map<std::string, int> readers_;
  std::map<std::string, std::vector<int>> available_;
  std::map<std::string, bool> used_names_;
};

struct OptionText {
  std::string_view op;
  std::string text;
  template <class T>
  void operator()(std::string_view field, const T& value) {
    if (is_later_default(field, value)) return;
    if constexpr (std::is_enum_v<T>) {
      text += fmt::format(" {}={}", field, static_cast<int>(value));
    } else {
      text += fmt::format(" {}={}", field, value);
    }
  }
  void operator()(std::string_view, const std::vector<CustomAttribute>& attributes) {
    for (const auto& attribute : attributes) text += fmt::format(" {}={}", attribute.name, attribute.value);
  }

 private:
  /// Of options that came later: profiles from before them are of the same model.
  template <class T>
  bool is_later_default(std::string_view field, const T& value) const {
    constexpr std::string_view kZero[] = {"count_include_pad", "key_value_heads", "zero_weight",
                                          "label_smoothing",   "scaling_factor",  "init_range",
                                          "bias_init_std"};
    if (std::ranges::find(kZero, field) != std::end(kZero) || (op == Conv2d::kName && field == "init_std") ||
        (op == Gelu::kName && field == "kind"))
      return value == T{};
    if constexpr (std::is_arithmetic_v<T>) {
      const auto number = static_cast<double>(value);
      constexpr std::string_view kOne[] = {"causal", "groups", "dilation", "low_frequency_factor"};
      return (std::ranges::find(kOne, field) != std::end(kOne) && number == 1) ||
             (field == "high_frequency_factor" && number == 4) ||
             (field == "original_positions" && number == 8192);
    }
    return false;
  }
};

std::string options_text(Op op) {
  OptionText out{.op = name_of(op), .text = ""};
  std::visit([&](auto& o) { o.visit(out); }, op);
  return out.text;
}

}  // namespace

Graph make_graph(const ModelSpec& spec, DType compute) { return stored_as(GraphMaker(spec).make(), compute); }

std::shared_ptr<const Graph> share_graph(const ModelSpec& spec) {
  return std::make_shared<const Graph>(make_graph(spec));
}

Graph stored_as(Graph graph, DType compute) {
  require(compute == DType::float32 || tensor::is_narrow(compute),
          fmt::format("values cannot be stored as {}; float32, bfloat16 and float16 are possible",
                      name_of(compute)));
  for (auto& value : graph.values)
    if (value.spec.dtype == graph.compute) value.spec.dtype = compute;
  graph.compute = compute;
  return graph;
}

bool Graph::runs_backward(const Node& node) const {
  return node.signature.is_loss ||
         std::ranges::any_of(node.outputs, [this](int output) { return value(output).needs_gradient; });
}

TensorSpec Graph::logical_spec(int value) const {
  TensorSpec spec = nth(values, value).spec;
  if (spec.dtype == compute) spec.dtype = DType::float32;
  return spec;
}

int64_t Graph::parameter_count() const {
  int64_t count = 0;
  for (const auto& parameter : parameters)
    if (parameter.spec.role == ops::ParameterRole::weight) count += parameter.spec.shape.count();
  return count;
}

int64_t Graph::loss_positions() const {
  const auto& node = nth(nodes, loss);
  const auto& prediction = nth(values, node.inputs[0]).spec.shape;
  return std::holds_alternative<SoftmaxCrossEntropy>(node.op) ? prediction.count() / prediction[-1]
                                                              : prediction.count();
}

uint64_t hash_of(const Graph& graph) {
  std::string text;
  for (const int input : graph.inputs) {
    const auto& value = graph.value(input);
    text +=
        fmt::format("input {} {} {}\n", value.name, value.spec.shape.to_string(), name_of(value.spec.dtype));
  }
  for (const auto& node : graph.nodes) {
    text += fmt::format("{} {}{} group={}", node.name, name_of(node.op), options_text(node.op), node.group);
    for (const int input : node.inputs) text += " " + graph.value(input).name;
    for (const int parameter : node.parameters)
      text += fmt::format(" {}{}", graph.parameter(parameter).name,
                          graph.parameter(parameter).spec.shape.to_string());
    if (node.frozen) text += " frozen";
    text += "\n";
  }
  return hash64(text);
}

std::string describe(const Graph& graph) {
  std::string table = fmt::format("{:<24} {:<22} {:<18} {}\n", "layer", "op", "output", "parameters");
  for (const auto& node : graph.nodes) {
    std::string parameters;
    for (const int p : node.parameters) {
      const auto& parameter = graph.parameter(p);
      parameters += fmt::format(
          "{}{}{} ",
          graph.node(parameter.uses[0].node).name == node.name ? parameter.spec.name : "= " + parameter.name,
          parameter.spec.shape.to_string(),
          parameter.spec.role == ops::ParameterRole::statistic ? " (statistic)"
          : parameter.frozen                                   ? " (frozen)"
                                                               : "");
    }
    table += fmt::format("{:<24} {:<22} {:<18} {}\n", node.name, name_of(node.op),
                         node.outputs.empty() ? "loss" : graph.value(node.outputs[0]).spec.shape.to_string(),
                         parameters);
  }
  table += fmt::format("{} parameters in {} layers, {} fused groups\n", graph.parameter_count(),
                       graph.nodes.size(), graph.group_count);
  return table;
}

}  // namespace lockstep::model
