#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lockstep/ops.h"
#include "lockstep/tensor.h"

#pragma GCC visibility push(default)
namespace lockstep {

/// Uses another layer's parameter: `{"weight", "wte.weight"}`.
struct Tie {
  std::string parameter;  ///< name within this layer
  std::string with;       ///< full name of the other parameter, "layer.parameter"; it has the same shape
  bool operator==(const Tie&) const = default;
};

struct Layer {
  std::string name;
  Op op;
  std::vector<std::string> inputs;  ///< names of layers or of model inputs
  std::vector<Tie> ties;
  bool operator==(const Layer&) const = default;
};

struct ModelInput {
  std::string name;  ///< the data set's field: "image", "tokens", "label", ...
  TensorSpec spec;   ///< per sample
  bool operator==(const ModelInput&) const = default;
};

/// A model as its author writes it: a list of layers, in which a layer's inputs come before it. It never
/// mentions ranks, devices or batch sizes. Exactly one layer is a loss. Presets, configs and ModelBuilder all
/// make one.
struct ModelSpec {
  std::vector<ModelInput> inputs;
  std::vector<Layer> layers;
  /// Layers whose weights never change: names, or patterns in which `*` stands for any characters and `?` for
  /// one.
  std::vector<std::string> frozen;
  bool operator==(const ModelSpec&) const = default;
};

/// Writes a ModelSpec layer by layer:
///
///     ModelBuilder b;
///     auto x = b.input("image", {{28, 28, 1}});
///     auto y = b.input("label", {{}, DType::int32});
///     auto h = b.add("fc1", Linear{.units = 128}, {b.add("flat", Flatten{}, {x})});
///     b.add("loss", SoftmaxCrossEntropy{}, {b.add("fc2", Linear{.units = 10}, {b.add("relu", Relu{}, {h})}),
///     y}); ModelSpec model = b.build();
///
/// Names are unique and consist of letters, digits, '_', '-', '.' and '/'. Errors (ConfigError) name the
/// layer.
class ModelBuilder {
 public:
  /// A handle to a value: the name of the layer or input that makes it.
  struct Ref {
    std::string name;
  };

  Ref input(std::string name, TensorSpec spec);
  Ref add(std::string name, Op op, std::vector<Ref> inputs, std::vector<Tie> ties = {});
  /// Checks shapes and names of the whole model (throws ConfigError) and returns it.
  ModelSpec build();

 private:
  ModelSpec spec_;
};

}  // namespace lockstep
#pragma GCC visibility pop
