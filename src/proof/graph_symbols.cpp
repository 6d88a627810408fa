#include "proof/graph_symbols.h"

#include <fmt/format.h>

namespace lockstep::proof {

int GraphSymbols::activation_value(int value) const {
  while (true) {
    const int producer = graph_.value(value).producer;
    if (producer < 0 || !graph_.node(producer).signature.alias) return value;
    value = graph_.node(producer).inputs[0];
  }
}

int GraphSymbols::gradient_value(int value) const {
  while (true) {
    const auto& reader = graph_.node(graph_.value(value).consumer);
    if (!reader.signature.passes_gradient) return value;
    value = reader.outputs[0];
  }
}

std::string GraphSymbols::text(const CallSymbol& symbol) const {
  switch (symbol.kind) {
    case CallSymbol::Kind::nothing:
      return "nothing that is left";
    case CallSymbol::Kind::activation:
      return fmt::format("'{}'", graph_.value(symbol.id).name);
    case CallSymbol::Kind::gradient:
      return fmt::format("the gradient of '{}'", graph_.value(symbol.id).name);
    case CallSymbol::Kind::parameter:
      return fmt::format("parameter '{}'", graph_.parameter(symbol.id).name);
    case CallSymbol::Kind::narrow_parameter:
      return fmt::format("the narrow copy of parameter '{}'", graph_.parameter(symbol.id).name);
    case CallSymbol::Kind::parameter_gradient:
      return fmt::format("the gradient of use {} of parameter '{}'", symbol.number,
                         graph_.parameter(symbol.id).name);
    case CallSymbol::Kind::auxiliary:
      return fmt::format("what '{}' leaves for backward (number {})", graph_.node(symbol.id).name,
                         symbol.number);
    case CallSymbol::Kind::metrics:
      return "metrics";
    case CallSymbol::Kind::constants:
      return "the step's constants";
  }
  return "";
}

}  // namespace lockstep::proof
