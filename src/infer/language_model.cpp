#include "infer/language_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "base/index.h"
#include "base/philox.h"
#include "lockstep/error.h"

namespace lockstep::infer {
namespace {

/// So many positions are computed at once if a text is long: enough for products to be fast.
constexpr int64_t kBlock = 64;
/// From so many on, a whole block is faster than one position after the other.
constexpr int64_t kWorthABlock = 8;

/// The model input that says which document each position belongs to (Attention).
constexpr std::string_view kDocuments = "documents";

bool is_of_documents(const model::Value& input) {
  return input.name == kDocuments && input.spec.dtype == DType::int32;
}

/// Whether a node reads a model input other than the tokens and the documents.
const model::Value* other_input(const model::Graph& graph, const model::Node& node) {
  for (const int input : node.inputs)
    if (const model::Value& value = graph.value(input);
        value.producer < 0 && value.name != "tokens" && !is_of_documents(value))
      return &value;
  return nullptr;
}

}  // namespace

/// Each value must be one of every position, computed from it and those before it.
std::string why_it_cannot_write(const model::Graph& graph) {
  const model::Node& loss = graph.node(graph.loss);
  if (!std::holds_alternative<SoftmaxCrossEntropy>(loss.op)) return "its loss is not softmax_cross_entropy";
  const model::Value* tokens = nullptr;
  for (const int input : graph.inputs)
    if (graph.value(input).name == "tokens") tokens = &graph.value(input);
  if (tokens == nullptr || tokens->spec.shape.rank() != 1) return "it has no input 'tokens' of one dimension";
  const int64_t context = tokens->spec.shape[0];
  for (const model::Node& node : graph.nodes) {
    if (&node == &loss) continue;
    if (const model::Value* other = other_input(graph, node); other != nullptr)
      return fmt::format("layer {} reads input '{}', and a text has only tokens", node.name, other->name);
    if (node.signature.positions == ops::PositionUse::any)
      return fmt::format("layer {} ({}) may see tokens that follow", node.name, name_of(node.op));
    for (const int output : node.outputs) {
      const Shape& shape = graph.value(output).spec.shape;
      if (shape.rank() < 1 || shape[0] != context)
        return fmt::format("layer {} does not keep positions apart", node.name);
    }
  }
  if (graph.value(loss.inputs[0]).spec.shape.rank() != 2) return "it does not predict one token per position";
  return "";
}

namespace {

model::Graph checked(model::Graph graph) {
  if (const std::string why = why_it_cannot_write(graph); !why.empty())
    throw ConfigError(fmt::format("the model cannot write text: {}", why));
  return graph;
}

}  // namespace

LanguageModel::LanguageModel(model::Graph graph, int threads, std::optional<int32_t> begins_document)
    : evaluator_(checked(std::move(graph)), threads), begins_document_(begins_document) {
  const model::Graph& made = evaluator_.graph();
  const Shape& logits = made.value(made.node(made.loss).inputs[0]).spec.shape;
  context_ = logits[0];
  vocabulary_ = logits[1];
  // What follows a text in its block is computed, too.
  std::fill_n(evaluator_.input("tokens").as<int32_t>(), context_, 0);
  for (const int input : made.inputs)
    if (is_of_documents(made.value(input))) {
      const Tensor documents = evaluator_.input(kDocuments);
      std::fill_n(documents.as<int32_t>(), documents.count(), 0);
      has_documents_ = documents.count() == context_;
    }
}

/// Positions [first, end), of tokens that are in the input. What a block computes beyond them is overwritten
/// when its tokens are known.
void LanguageModel::compute(int64_t first, int64_t end) {
  const int64_t block = std::min(kBlock, context_);
  while (first < end) {
    const int64_t rows = end - first >= std::min(kWorthABlock, block) ? block : 1;
    const int64_t begin = std::min(first, context_ - rows);
    evaluator_.evaluate_rows(begin, rows);
    first = begin + rows;
  }
}

/// Numbers the documents of `tokens` from the token `first` on, as data/documents.h does: the token that
/// begins one is part of it. Those before `first` are numbered already.
void LanguageModel::write_documents(std::span<const int32_t> tokens, int64_t first) {
  if (!has_documents_ || !begins_document_) return;
  auto* const documents = evaluator_.input(kDocuments).as<int32_t>();
  int32_t document = first > 0 ? documents[first - 1] : 0;
  for (auto i = static_cast<size_t>(first); i < tokens.size(); ++i) {
    if (tokens[i] == *begins_document_) ++document;
    documents[i] = document;
  }
}

std::span<const float> LanguageModel::logits_after(std::span<const int32_t> tokens) {
  const auto seen = tokens.last(std::min(tokens.size(), static_cast<size_t>(context_)));
  const auto count = static_cast<int64_t>(seen.size());
  const int64_t shared = std::ranges::mismatch(known_, seen).in1 - known_.begin();
  std::ranges::copy(seen.subspan(static_cast<size_t>(shared)),
                    evaluator_.input("tokens").as<int32_t>() + shared);
  write_documents(seen, shared);
  known_.resize(static_cast<size_t>(shared));  // all that is known if this throws
  compute(shared, count);
  known_.assign(seen.begin(), seen.end());
  return {evaluator_.output().as<const float>() + (count - 1) * vocabulary_,
          static_cast<size_t>(vocabulary_)};
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
