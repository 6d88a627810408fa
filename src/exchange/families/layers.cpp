#include <fmt/format.h>

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/index.h"
#include "exchange/family.h"
#include "lockstep/error.h"
#include "model/graph.h"

namespace lockstep::exchange {
namespace {

// A state dict of PyTorch whose modules have the names of the config's layers. Images are [channels, height,
// width] there, so that kernels, and whatever has one weight for each element of a flattened image, lie in
// another order.

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
  /// order.
  std::optional<Shape> image_read_by(const model::Node& node) const {
    const auto& first = nth(image_of_, node.inputs[0]);
    for (const int input : node.inputs)
      if (std::holds_alternative<Add>(node.op) || std::holds_alternative<Multiply>(node.op))
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
    } else if (image && (is_elementwise(node.op) || is_norm(node.op))) {
      output = image;
    } else if (image && !std::holds_alternative<Linear>(node.op)) {
      refuse(node);
    }
    for (const int value : node.outputs) nth(image_of_, value) = output;
  }

  void place(int parameter, const model::Node& node, const std::optional<Shape>& image) {
    const auto& [name, spec, uses, frozen] = graph_.parameter(parameter);
    Piece piece = as_here(name, spec.shape);
    if (std::holds_alternative<Conv2d>(node.op) && spec.shape.rank() == 4)
      piece = channels_first(name, spec.shape);
    const bool has_features = is_norm(node.op) || spec.shape.rank() == 2;  // a linear layer's bias has units
    if (image && has_features) piece = features_reordered(name, spec.shape, *image);
    auto& known = nth(pieces_, parameter);
    if (!known.empty() && (known[0].order != piece.order || known[0].here != piece.here))
      throw ConfigError(
          fmt::format("layer '{}': its {} is shared with a layer that reads other inputs, so PyTorch has it "
                      "in two orders",
                      node.name, name));
    known = {std::move(piece)};
  }

  const model::Graph& graph_;
  std::vector<std::optional<Shape>> image_of_;  // by value
  std::vector<std::vector<Piece>> pieces_;
};

Mapping layers_mapping(const ModelSpec& model) {
  const model::Graph graph = model::make_graph(model);
  Mapping mapping{.family = "layers", .pieces = Walk(graph).pieces(), .worthless = {".num_batches_tracked"}};
  // A weight that two layers share has two names in a state dict.
  for (int p = 0; p < static_cast<int>(graph.parameters.size()); ++p) {
    const auto& parameter = graph.parameter(p);
    for (size_t use = 1; use < parameter.uses.size(); ++use) {
      const auto& node = graph.node(parameter.uses[use].node);
      const std::string& slot = nth(node.signature.parameters, parameter.uses[use].slot).name;
      mapping.implied.push_back({.name = fmt::format("{}.{}", node.name, slot),
                                 .shape = nth(mapping.pieces, p)[0].shape,
                                 .parameter = p,
                                 .written = true});
    }
  }
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
