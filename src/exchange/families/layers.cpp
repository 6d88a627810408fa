#include <fmt/format.h>

#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/index.h"
#include "exchange/families/layer_names.h"
#include "exchange/family.h"
#include "lockstep/error.h"
#include "model/graph.h"

namespace lockstep::exchange {
namespace {

// A state dict of PyTorch whose modules have the names of the config's layers, but for what PyTorch itself
// names otherwise (layer_names.h). Images are [channels, height, width] there, so that kernels, and whatever
// has one weight for each element of a flattened image, lie in another order.

bool resembles_any(const ModelSpec&) { return true; }

/// A weight of [..., features], whose last dimension is an image's elements in the order H, W, C here.
Piece features_reordered(std::string name, const Shape& shape, const Shape& image) {
  if (shape.rank() == 1) return {.name = std::move(name), .shape = shape, .here = image, .order = {2, 0, 1}};
  return {.name = std::move(name),
          .shape = shape,
          .here = {shape[0], image[0], image[1], image[2]},
          .order = {0, 3, 1, 2}};
}

/// Whether an op treats each element alike, so that the order of elements passes through it.
bool is_elementwise(const Op& op) {
  return std::holds_alternative<Relu>(op) || std::holds_alternative<Gelu>(op) ||
         std::holds_alternative<Silu>(op) || std::holds_alternative<Sigmoid>(op) ||
         std::holds_alternative<Tanh>(op) || std::holds_alternative<Dropout>(op) ||
         std::holds_alternative<Fork>(op) || std::holds_alternative<Add>(op) ||
         std::holds_alternative<Multiply>(op);
}

bool is_norm(const Op& op) {
  return std::holds_alternative<BatchNorm>(op) || std::holds_alternative<LayerNorm>(op) ||
         std::holds_alternative<RmsNorm>(op);
}

/// Whether an image [H, W, C] has its elements in another order in PyTorch: not with one channel, nor with
/// one pixel.
bool is_of_two_orders(const Shape& shape) {
  return shape.rank() == 3 && shape[2] > 1 && shape[0] * shape[1] > 1;
}

/// Follows the elements of flattened images through the graph.
class Walk {
 public:
  explicit Walk(const model::Graph& graph)
      : graph_(graph), image_of_(graph.values.size()), pieces_(graph.parameters.size()) {}

  std::vector<std::vector<Piece>> pieces() {
    for (const auto& node : graph_.nodes) visit(node);
    return std::move(pieces_);
  }

 private:
  /// The image whose elements the node's inputs are, flattened; nothing if both programs have them in one
  /// order. What has several inputs has to treat each element alike, and to read all in one order.
  std::optional<Shape> image_read_by(const model::Node& node) const {
    const auto& first = nth(image_of_, node.inputs[0]);
    for (const int input : node.inputs)
      if (nth(image_of_, input) != first) refuse(node);
    return first;
  }

  [[noreturn]] void refuse(const model::Node& node) const {
    throw ConfigError(
        fmt::format("layer '{}' ({}) reads a flattened image, whose elements PyTorch has in another order; "
                    "only linear, normalization and elementwise layers can",
                    node.name, name_of(node.op)));
  }

  /// Of a sequence whose channels stay last, pixels follow each other in both programs.
  bool makes_image_of_features(const model::Node& node, const std::optional<Shape>& flattened) const {
    const Shape& made = graph_.value(node.outputs[0]).spec.shape;
    return is_of_two_orders(made) && made != flattened &&
           made[-1] != graph_.value(node.inputs[0]).spec.shape[-1];
  }

  void visit(const model::Node& node) {
    const std::optional<Shape> image = image_read_by(node);
    for (const int parameter : node.parameters) place(parameter, node, image);
    std::optional<Shape> output;
    const Shape& shape = graph_.value(node.inputs[0]).spec.shape;
    const bool has_two_orders = is_of_two_orders(shape);
    if (std::holds_alternative<Flatten>(node.op)) {
      output = has_two_orders ? std::optional(shape) : image;
    } else if (std::holds_alternative<Reshape>(node.op) && has_two_orders) {
      const Shape& made = graph_.value(node.outputs[0]).spec.shape;
      if (made.rank() == 1)
        output = shape;
      else if (made[-1] != shape[2])  // of pixels as a sequence channels stay last
        refuse(node);
    } else if (std::holds_alternative<Reshape>(node.op) && makes_image_of_features(node, image)) {
      throw ConfigError(
          fmt::format("layer '{}' (reshape) makes an image of features: PyTorch would make it channel by "
                      "channel, lockstep makes it pixel by pixel; such models cannot be exported",
                      node.name));
    } else if (std::holds_alternative<Transpose>(node.op) && has_two_orders) {
      throw ConfigError(
          fmt::format("layer '{}' (transpose) reads an image, whose dimensions PyTorch has in another order; "
                      "such models cannot be exported",
                      node.name));
    } else if (image && (is_elementwise(node.op) || is_norm(node.op))) {
      output = image;
    } else if (image && !std::holds_alternative<Linear>(node.op)) {
      refuse(node);
    }
    for (const int value : node.outputs) nth(image_of_, value) = output;
  }

  void place(int parameter, const model::Node& node, const std::optional<Shape>& image) {
    const auto& [full_name, spec, uses, frozen] = graph_.parameter(parameter);
    const std::string name = name_there(graph_, graph_.node(uses[0].node), spec.name);
    Piece piece = as_here(name, shape_there(graph_.node(uses[0].node), spec.shape));
    if (std::holds_alternative<Conv2d>(node.op) && spec.shape.rank() == 4)
      piece = channels_first(name, spec.shape);
    const bool has_features = is_norm(node.op) || spec.shape.rank() == 2;  // a linear layer's bias has units
    if (image && has_features) piece = features_reordered(name, spec.shape, *image);
    auto& known = nth(pieces_, parameter);
    if (!known.empty() && (known[0].order != piece.order || known[0].here != piece.here))
      throw ConfigError(
          fmt::format("layer '{}': its {} is shared with a layer that reads other inputs, so PyTorch has it "
                      "in two orders",
                      node.name, full_name));
    known = {std::move(piece)};
  }

  const model::Graph& graph_;
  std::vector<std::optional<Shape>> image_of_;  // by value
  std::vector<std::vector<Piece>> pieces_;
};

/// What parameters are called besides: a weight that two layers share has two names in a state dict, and what
/// has a name of its own in modules of PyTorch may lie under its layer's name.
std::vector<Implied> second_names(const model::Graph& graph) {
  std::vector<Implied> names;
  for (int p = 0; p < static_cast<int>(graph.parameters.size()); ++p) {
    const auto& parameter = graph.parameter(p);
    for (size_t use = 0; use < parameter.uses.size(); ++use) {
      const auto& node = graph.node(parameter.uses[use].node);
      const std::string& slot = nth(node.signature.parameters, parameter.uses[use].slot).name;
      const std::string name = name_there(graph, node, slot), plain = fmt::format("{}.{}", node.name, slot);
      if (use > 0)
        names.push_back({.name = name,
                         .shape = shape_there(node, parameter.spec.shape),
                         .parameter = p,
                         .written = true});
      if (plain != name) names.push_back({.name = plain, .shape = parameter.spec.shape, .parameter = p});
    }
  }
  return names;
}

/// Throws ConfigError if two tensors have one name.
void check_names(const model::Graph& graph, const Mapping& mapping) {
  std::map<std::string, int> parameters;
  const auto add = [&](const std::string& name, int parameter) {
    const auto [known, is_new] = parameters.emplace(name, parameter);
    if (!is_new)
      throw ConfigError(fmt::format("'{}' and '{}' are both '{}' in PyTorch: rename a layer",
                                    graph.parameter(known->second).name, graph.parameter(parameter).name,
                                    name));
  };
  for (int p = 0; p < static_cast<int>(mapping.pieces.size()); ++p)
    for (const Piece& piece : nth(mapping.pieces, p)) add(piece.name, p);
  for (const Implied& implied : mapping.implied) add(implied.name, implied.parameter);
}

Mapping layers_mapping(const ModelSpec& model) {
  const model::Graph graph = model::make_graph(model);
  check_lstm_stacks(graph);
  Mapping mapping{.family = "layers",
                  .pieces = Walk(graph).pieces(),
                  .implied = second_names(graph),
                  .worthless = {".num_batches_tracked"}};
  check_names(graph, mapping);
  return mapping;
}

}  // namespace

const Family families::kLayers{.name = "layers",
                               .format = Format::pytorch,
                               .resembles = resembles_any,
                               .mapping = layers_mapping,
                               .config_text = nullptr,
                               .differences = nullptr,
                               .preset_text = nullptr};

}  // namespace lockstep::exchange
