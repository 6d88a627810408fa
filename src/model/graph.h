#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/index.h"
#include "lockstep/model.h"
#include "ops/op.h"

namespace lockstep::model {

/// One tensor of the graph. After forks are inserted, every value has at most one reader.
struct Value {
  std::string name;
  TensorSpec spec;    ///< per sample, in the type in which it is stored
  int producer = -1;  ///< node, or -1 for a model input
  int producer_output = 0;
  int consumer = -1;  ///< node, or -1 if nobody reads it
  int consumer_input = 0;
  int storage = -1;             ///< the value whose memory this one is (itself, unless its op is an alias)
  int gradient_storage = -1;    ///< likewise for the gradient: views share it, and a sum with its terms; the
                                ///< two ends of a fork do not
  bool needs_gradient = false;  ///< a parameter that learns, or a statistic, lies upstream
};

/// A parameter and the nodes that use it, in graph order. The first use owns its place in the flat buffers.
struct Parameter {
  std::string name;  ///< "layer.parameter"
  ops::ParameterSpec spec;
  struct Use {
    int node;
    int slot;  ///< index among the node's parameters
  };
  std::vector<Use> uses;
  bool frozen = false;  ///< it never changes: no gradient, no update

  /// Whether the optimizer keeps state of it.
  bool has_state() const { return spec.role == ops::ParameterRole::weight && !frozen; }
};

struct Node {
  std::string name;
  Op op;
  ops::OpSignature signature;
  std::vector<int> inputs, outputs;  ///< values
  std::vector<int> parameters;       ///< by slot
  int group = -1;                    ///< fused group: nodes of one group are consecutive and never separated
  bool frozen = false;               ///< none of its weights changes

  /// Whether backward has gradients of parameters to compute apart from those of inputs.
  bool has_second_half() const {
    return signature.backward == ops::BackwardForm::split && !parameters.empty() && !frozen;
  }
  /// Whether backward reads the value of input `i`. Of ops whose backward is split only the gradients of
  /// parameters need it.
  bool backward_needs_input(size_t i) const {
    const bool first_half_alone = frozen && signature.backward == ops::BackwardForm::split;
    return signature.backward_needs_input[i] && !first_half_alone;
  }
};

/// The model with shapes, forks and fused groups; everything after it uses this form. Presets, text configs
/// and ModelBuilder lead to the same graph. Nodes are in an order in which producers come first.
struct Graph {
  std::vector<Value> values;
  std::vector<Node> nodes;
  std::vector<Parameter> parameters;
  std::vector<int> inputs;  ///< values fed by the data set
  int loss = -1;            ///< node
  int group_count = 0;
  DType compute = DType::float32;  ///< in which all values that are float32 to the ops are stored

  /// Whether a node has work in backward: it is the loss, or what learns lies at or before it.
  bool runs_backward(const Node& node) const;

  const Value& value(int id) const { return nth(values, id); }
  const Node& node(int id) const { return nth(nodes, id); }
  const Parameter& parameter(int id) const { return nth(parameters, id); }
  Value& value(int id) { return nth(values, id); }
  Node& node(int id) { return nth(nodes, id); }
  Parameter& parameter(int id) { return nth(parameters, id); }

  /// A value as shape rules and make_kernel() see it: float32 if it is stored in `compute`.
  TensorSpec logical_spec(int value) const;

  int64_t parameter_count() const;  ///< elements of weights, tied ones once
  int64_t loss_positions()
      const;  ///< terms of the loss in one sample (1 for a classifier, T for a language model)
};

/// Infers shapes, inserts forks, marks gradients and forms fused groups. Throws ConfigError, which names the
/// layer. `compute` is float32, bfloat16 or float16.
Graph make_graph(const ModelSpec& spec, DType compute = DType::float32);

/// Hash of everything in the graph that decides numbers (names, ops, options, shapes, ties).
uint64_t hash_of(const Graph& graph);

/// The spec as a table of layers: name, op, output shape, parameters, for `lockstep inspect`.
std::string describe(const Graph& graph);

}  // namespace lockstep::model
