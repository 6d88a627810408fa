#pragma once

#include <algorithm>
#include <cstring>

#include "base/simd.h"
#include "ops/cpu/loops/attention_head.h"
#include "ops/cpu/loops/elementwise.h"
#include "ops/cpu/loops/panels.h"

namespace lockstep::ops {
inline namespace LOCKSTEP_SIMD {

static_assert(kAttentionPadding == kLanes);

/// to [T, padded head]: rows of a head, padded with zeros.
inline void pack_rows(float* to, HeadView from, const AttentionSizes& sizes) {
  const int64_t width = sizes.padded_head();
  for (int64_t t = 0; t < sizes.positions; ++t) {
    std::memcpy(to + t * width, from.data + t * from.row_stride,
                static_cast<size_t>(sizes.head_size) * sizeof(float));
    std::fill(to + t * width + sizes.head_size, to + (t + 1) * width, 0.0f);
  }
}

/// to [head size, padded T]: the transpose, padded with zeros. A few rows of it at a time, so that their
/// lines stay in the first cache until they are full.
inline void pack_transposed(float* to, HeadView from, const AttentionSizes& sizes) {
  constexpr int64_t kRowsAtOnce = 16;
  const int64_t width = sizes.padded_positions();
  for (int64_t d = 0; d < sizes.head_size; d += kRowsAtOnce)
    transpose(to + d * width, width, from.data + d, from.row_stride, sizes.positions,
              std::min(kRowsAtOnce, sizes.head_size - d), nullptr);
  for (int64_t d = 0; d < sizes.head_size && sizes.positions < width; ++d)
    std::fill(to + d * width + sizes.positions, to + (d + 1) * width, 0.0f);
}

/// Multiplies weights of row `query`, keys [first_key, first_key + count) by their dropout factors.
/// REQUIRES: first_key is a multiple of 4; count <= kAttentionBlock.
inline void drop_weights(float* weights, const AttentionContext& context, int64_t head, int64_t query,
                         uint32_t sample, int64_t first_key, int64_t count) {
  float factors[kAttentionBlock];
  const int64_t row = (head * context.sizes.positions + query) * context.sizes.dropout_groups();
  dropout_factors(context.mask, static_cast<uint32_t>(row + first_key / 4), sample, (count + 3) / 4, factors);
  for (int64_t i = 0; i < count; ++i) weights[i] *= factors[i];
}

}  // namespace LOCKSTEP_SIMD
}  // namespace lockstep::ops
