#pragma once

#include <cstdint>
#include <span>

namespace lockstep::infer {

/// How the next token is chosen among those that the model thinks possible.
struct SamplingOptions {
  double temperature = 1;  ///< logits are divided by it; 0: always the most probable token
  int64_t top_k = 0;       ///< only the k most probable tokens; 0: all
  double top_p = 1;  ///< only the most probable tokens that together have this probability, at least one
};

/// Throws ConfigError unless temperature >= 0, top_k >= 0 and 0 < top_p <= 1.
void check(const SamplingOptions& options);

/// The token that `uniform`, in [0, 1), stands for. Of equal logits the lower token counts as more probable.
/// Throws DataError if no logit is finite, or one is not a number.
int32_t choose(std::span<const float> logits, const SamplingOptions& options, double uniform);

}  // namespace lockstep::infer
