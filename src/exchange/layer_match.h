#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/model.h"
#include "model/graph.h"

namespace lockstep::exchange {

/// A model whose layers are those of an architecture, whatever their names and the order in which they are
/// written. Dropout, which does nothing in evaluation, may be anywhere, or nowhere.
struct LayerMatch {
  std::map<std::string, std::string> layers;  ///< of the architecture's layers, by its names: the model's
  std::vector<int> parameters;  ///< of the architecture's parameters, in its graph's order: the model's
  std::map<std::string, float> dropout_after;  ///< rates, by the architecture's names of the layers before
};

/// Compares layer by layer, from the loss on. Options that only initialization and training know (init_std,
/// dropout) need not be the same. Throws ConfigError, which names `architecture` ("a GPT-2"), the model's
/// first layer that is another, and what stands there in the architecture.
LayerMatch match_layers(const ModelSpec& model, const ModelSpec& expected, std::string_view architecture);

/// The first layer of a kind; null if there is none.
template <class Kind>
const Kind* first_of(const ModelSpec& model) {
  for (const auto& layer : model.layers)
    if (const auto* kind = std::get_if<Kind>(&layer.op)) return kind;
  return nullptr;
}
/// Likewise a layer. Throws ConfigError if the model has none of this kind.
template <class Kind>
const Kind& need(const ModelSpec& model, std::string_view architecture);

/// Tokens of a sample. Throws ConfigError if the model does not read a sequence of tokens.
int64_t context_of(const ModelSpec& model, std::string_view architecture);
/// Whether the head, which is the loss's first input, uses the weight of the first embedding.
bool has_tied_head(const ModelSpec& model);
template <class Kind>
int64_t count_of(const ModelSpec& model) {
  int64_t count = 0;
  for (const auto& layer : model.layers) count += std::holds_alternative<Kind>(layer.op) ? 1 : 0;
  return count;
}

[[noreturn]] void refuse_without(std::string_view kind, std::string_view architecture);

template <class Kind>
const Kind& need(const ModelSpec& model, std::string_view architecture) {
  const Kind* found = first_of<Kind>(model);
  if (found == nullptr) refuse_without(Kind::kName, architecture);
  return *found;
}

}  // namespace lockstep::exchange
