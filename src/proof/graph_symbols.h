#pragma once

#include <string>

#include "model/graph.h"

namespace lockstep::proof {

/// What bytes hold while kernels of a graph's nodes run.
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

/// Values that are the same numbers have one symbol. Follows the graph's edges and the ops' signatures, and
/// asks for none of the memory that the graph gives to values.
class GraphSymbols {
 public:
  /// The graph has to outlive it.
  explicit GraphSymbols(const model::Graph& graph) : graph_(graph) {}

  const model::Graph& graph() const { return graph_; }
  /// A view is what it is a view of.
  int activation_value(int value) const;
  /// The value whose gradient a value's is: sums and views pass their gradient on as it is.
  int gradient_value(int value) const;
  CallSymbol activation(int value) const { return {CallSymbol::Kind::activation, activation_value(value)}; }
  CallSymbol gradient(int value) const { return {CallSymbol::Kind::gradient, gradient_value(value)}; }
  /// How messages name it.
  std::string text(const CallSymbol& symbol) const;

 private:
  const model::Graph& graph_;
};

}  // namespace lockstep::proof
