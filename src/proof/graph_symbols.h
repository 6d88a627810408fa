#pragma once

#include <string>

#include "model/graph.h"

namespace lockstep::proof {

/// The contents of bytes while kernels of a graph's nodes run.
struct CallSymbol {
  enum class Kind {
    nothing,
    activation,          ///< id: a value
    gradient,            ///< likewise
    parameter,           ///< id: a parameter
    narrow_parameter,    ///< likewise, in the graph's compute type
    parameter_gradient,  ///< likewise; number: a use
    auxiliary,           ///< id: a node; number: which of its auxiliaries
    metrics,
    constants,
  };
  Kind kind = Kind::nothing;
  int id = -1;
  int number = 0;
  bool operator==(const CallSymbol&) const = default;
};

/// Gives one symbol to values that are the same numbers. It follows the graph's edges and the ops'
/// signatures, and does not use the memory that the graph assigns to values.
class GraphSymbols {
 public:
  /// The graph must outlive it.
  explicit GraphSymbols(const model::Graph& graph) : graph_(graph) {}

  const model::Graph& graph() const { return graph_; }
  /// For a view: the value that it is a view of.
  int activation_value(int value) const;
  /// The value whose gradient is also this value's gradient: sums and views pass their gradient on unchanged.
  int gradient_value(int value) const;
  CallSymbol activation(int value) const { return {CallSymbol::Kind::activation, activation_value(value)}; }
  CallSymbol gradient(int value) const { return {CallSymbol::Kind::gradient, gradient_value(value)}; }
  /// Its name in messages.
  std::string text(const CallSymbol& symbol) const;

 private:
  const model::Graph& graph_;
};

}  // namespace lockstep::proof
