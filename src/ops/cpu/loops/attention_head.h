#pragma once

#include <cmath>
#include <cstdint>

#include "ops/elementwise.h"

namespace lockstep::ops {

// Attention by blocks of 64 queries and 64 keys, after Dao et al., "FlashAttention" (2022): no T×T matrix is
// kept. Forward holds the scores of one block of queries; backward computes the probabilities of each 64×64
// block again from the kept log-sum-exps. Each head of each sample is a piece of work of its own with a fixed
// order inside. Here is what the loops over one head are given.

inline constexpr int64_t kAttentionBlock = 64;
/// Rows of matrices in the workspace are multiples of so many floats.
inline constexpr int64_t kAttentionPadding = 16;

inline int64_t attention_padded(int64_t count) {
  return (count + kAttentionPadding - 1) / kAttentionPadding * kAttentionPadding;
}

struct AttentionSizes {
  int64_t batch = 0, positions = 0, heads = 0, key_heads = 0, head_size = 0;
  bool causal = true;
  int64_t channels() const { return heads * head_size; }  ///< of the output
  int64_t input_channels() const { return (heads + 2 * key_heads) * head_size; }
  int64_t group() const { return heads / key_heads; }  ///< queries that share a key
  /// How many keys `query` sees, from the first on.
  int64_t seen_by(int64_t query) const { return causal ? query + 1 : positions; }
  int64_t padded_positions() const { return attention_padded(positions); }
  int64_t padded_head() const { return attention_padded(head_size); }
  int64_t dropout_groups() const { return (positions + 3) / 4; }
  float scale() const { return 1.0f / std::sqrt(static_cast<float>(head_size)); }

  /// Floats that forward works with: keys transposed, values, scores of a block of queries, their results.
  int64_t forward_workspace() const {
    return attention_padded(head_size * padded_positions() + positions * padded_head() +
                            kAttentionBlock * padded_positions() + kAttentionBlock * padded_head());
  }
  int64_t backward_workspace() const {
    return attention_padded(2 * head_size * padded_positions() + 6 * positions * padded_head() + positions +
                            2 * kAttentionBlock * kAttentionBlock);
  }
};

/// What one call works with besides tensors.
struct AttentionContext {
  AttentionSizes sizes;
  bool drops = false;
  DropoutMask mask;
};

/// One head of one sample, as a piece of a [T, row_stride] tensor.
struct HeadView {
  const float* data;
  int64_t row_stride;
};

struct AttentionForward {
  const AttentionContext& context;
  int64_t head;
  uint32_t sample;  ///< in the global batch
  HeadView query, key, value;
  const int32_t* documents = nullptr;  ///< of each position (ops/attention_documents.h); null: all are of one
  int64_t first_query;                 ///< queries before it are left out
  float* output;                       ///< [T, channels] from this head on
  float* log_sum_exp;                  ///< [T]
  float* workspace;
};

struct AttentionBackward {
  const AttentionContext& context;
  int64_t head;
  uint32_t sample;
  HeadView query, key, value, output, output_gradient;
  const int32_t* documents = nullptr;
  const float* log_sum_exp;
  float *query_gradient, *key_gradient, *value_gradient;  ///< [T, input_channels] from the head's on
  bool adds_keys;  ///< whether gradients of keys and values are added to those of other queries of the group
  float* workspace;
};

}  // namespace lockstep::ops
