#include "infer/language_model.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/index.h"
#include "base/philox.h"
#include "lockstep/error.h"

namespace lockstep::infer {
namespace {

/// Why the model cannot write; "" if it can. A value of every position, computed from it and those before it.
std::string objection(const model::Graph& graph) {
  const model::Node& loss = graph.node(graph.loss);
  if (!std::holds_alternative<SoftmaxCrossEntropy>(loss.op)) return "its loss is not softmax_cross_entropy";
  const model::Value* tokens = nullptr;
  for (const int input : graph.inputs)
    if (graph.value(input).name == "tokens") tokens = &graph.value(input);
  if (tokens == nullptr || tokens->spec.shape.rank() != 1) return "it has no input 'tokens' of one dimension";
  const int64_t context = tokens->spec.shape[0];
  for (const model::Node& node : graph.nodes) {
    if (const auto* attention = std::get_if<Attention>(&node.op); attention != nullptr && !attention->causal)
      return fmt::format("layer {} sees tokens that follow", node.name);
    for (const int output : node.outputs) {
      const Shape& shape = graph.value(output).spec.shape;
      if (shape.rank() < 1 || shape[0] != context) return fmt::format("layer {} mixes positions", node.name);
    }
  }
  if (graph.value(loss.inputs[0]).spec.shape.rank() != 2) return "it does not predict one token per position";
  return "";
}

model::Graph checked(model::Graph graph) {
  if (const std::string why = objection(graph); !why.empty())
    throw ConfigError(fmt::format("the model cannot write text: {}", why));
  return graph;
}

}  // namespace

LanguageModel::LanguageModel(model::Graph graph, int threads)
    : evaluator_(checked(std::move(graph)), threads) {
  const model::Graph& made = evaluator_.graph();
  const Shape& logits = made.value(made.node(made.loss).inputs[0]).spec.shape;
  context_ = logits[0];
  vocabulary_ = logits[1];
}

std::span<const float> LanguageModel::logits_after(std::span<const int32_t> tokens) {
  const auto seen = tokens.last(std::min(tokens.size(), static_cast<size_t>(context_)));
  auto* input = evaluator_.input("tokens").as<int32_t>();
  // What follows the last token changes nothing before it.
  std::fill_n(std::ranges::copy(seen, input).out, context_ - static_cast<int64_t>(seen.size()), 0);
  const auto* logits = evaluator_.evaluate().as<const float>();
  return {logits + (static_cast<int64_t>(seen.size()) - 1) * vocabulary_, static_cast<size_t>(vocabulary_)};
}

std::vector<int32_t> LanguageModel::write(std::vector<int32_t> prompt, const WritingOptions& options,
                                          const std::function<void(int32_t)>& on_token) {
  check(options.sampling);
  if (prompt.empty()) throw ConfigError("the prompt is empty; give the model something to continue");
  const int64_t known = options.vocabulary > 0 ? std::min(options.vocabulary, vocabulary_) : vocabulary_;
  std::vector<int32_t> written;
  for (int64_t i = 0; i < options.tokens; ++i) {
    const double uniform = philox_uniform(options.seed, RandomPurpose::text_generation, options.sample,
                                          static_cast<uint64_t>(i));
    const auto logits = logits_after(prompt).first(static_cast<size_t>(known));
    const int32_t token = choose(logits, options.sampling, uniform);
    prompt.push_back(token);
    written.push_back(token);
    if (on_token) on_token(token);
    if (token == options.end) break;
  }
  return written;
}

}  // namespace lockstep::infer
