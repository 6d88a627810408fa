#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "infer/evaluator.h"
#include "infer/sampling.h"

namespace lockstep::infer {

/// What is to be written.
struct WritingOptions {
  SamplingOptions sampling;
  int64_t tokens = 0;  ///< at most, after the prompt
  uint64_t seed = 0;
  int64_t vocabulary = 0;  ///< only tokens below are written, such as those that stand for text; 0: all
  int32_t end = -1;        ///< the text ends with this token; -1: only when all are written
  uint32_t sample = 0;     ///< of several from one seed: each draws other numbers
};

/// Why a model does not predict the next of the tokens before it, so that it cannot write; "" if it can.
std::string why_it_cannot_write(const model::Graph& graph);

/// A model that predicts the next token, and so can write. What it computed of a text is kept, so that a text
/// that continues it costs one position for each new token, and texts that begin alike share that beginning.
/// Of texts longer than the context the model sees the last `context` tokens: each further token moves all
/// others to other positions, and costs a pass over the whole context. Not thread-safe.
class LanguageModel {
 public:
  /// Throws ConfigError, which says why, if the model cannot write: inputs other than "tokens" and
  /// "documents", another loss, an op that does not say that it leaves later positions alone.
  /// `begins_document`: the token that begins a document of those that "documents" tells apart, as in
  /// training (data::begin_of_documents); nothing: a text is one.
  LanguageModel(model::Graph graph, int threads, std::optional<int32_t> begins_document = {});

  /// For whoever writes parameters: what was computed with others is forgotten.
  Evaluator& evaluator() {
    known_.clear();
    return evaluator_;
  }
  int64_t context() const { return context_; }
  int64_t vocabulary() const { return vocabulary_; }

  /// Logits of what follows `tokens`, valid until the next call; the same bits whatever was computed before.
  /// REQUIRES: there is at least one, and all are in [0, vocabulary).
  std::span<const float> logits_after(std::span<const int32_t> tokens);

  /// Continues `prompt`; passes on each new token as soon as it is chosen. The same for equal arguments.
  /// Throws ConfigError for an empty prompt or bad options, DataError if logits are no numbers.
  std::vector<int32_t> write(std::vector<int32_t> prompt, const WritingOptions& options,
                             const std::function<void(int32_t token)>& on_token = {});

 private:
  void compute(int64_t first, int64_t end);
  void write_documents(std::span<const int32_t> tokens, int64_t first);

  Evaluator evaluator_;
  std::optional<int32_t> begins_document_;
  bool has_documents_ = false;
  int64_t context_ = 0, vocabulary_ = 0;
  std::vector<int32_t> known_;  // tokens whose positions are computed
};

}  // namespace lockstep::infer
