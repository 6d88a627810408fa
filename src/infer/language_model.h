#pragma once

#include <cstdint>
#include <functional>
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

/// A model that predicts the next token, and so can write. Each token costs a pass over a whole context; of
/// longer texts the model sees the last `context` tokens. Not thread-safe.
class LanguageModel {
 public:
  /// Throws ConfigError, which says why, if the model does not predict the next of the tokens before it:
  /// inputs other than "tokens", another loss, attention that sees what follows, positions that are mixed.
  LanguageModel(model::Graph graph, int threads);

  Evaluator& evaluator() { return evaluator_; }
  int64_t context() const { return context_; }
  int64_t vocabulary() const { return vocabulary_; }

  /// Logits of what follows `tokens`. REQUIRES: there is at least one, and all are in [0, vocabulary).
  std::span<const float> logits_after(std::span<const int32_t> tokens);

  /// Continues `prompt`; passes on each new token as soon as it is chosen. The same for equal arguments.
  /// Throws ConfigError for an empty prompt or bad options, DataError if logits are no numbers.
  std::vector<int32_t> write(std::vector<int32_t> prompt, const WritingOptions& options,
                             const std::function<void(int32_t token)>& on_token = {});

 private:
  Evaluator evaluator_;
  int64_t context_ = 0, vocabulary_ = 0;
};

}  // namespace lockstep::infer
