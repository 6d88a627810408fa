#include <algorithm>
#include <cmath>

#include "ops/cpu/loops/head_memory.h"
#include "ops/cpu/loops/heads.h"
#include "ops/cpu/loops/rows.h"
#include "ops/cpu/loops/tile_product.h"

namespace lockstep::ops {
inline namespace LOCKSTEP_SIMD {
namespace {

/// Forward of one head. Workspace: keys transposed, values, scores of a block of queries, their results.
class HeadForward {
 public:
  explicit HeadForward(const AttentionForward& head)
      : head_(head),
        sizes_(head.context.sizes),
        keys_(head.workspace),
        values_(keys_ + sizes_.head_size * sizes_.padded_positions()),
        scores_(values_ + sizes_.positions * sizes_.padded_head()),
        result_(scores_ + kAttentionBlock * sizes_.padded_positions()) {}

  void run() {
    pack_transposed(keys_, head_.key, sizes_);
    pack_rows(values_, head_.value, sizes_);
    for (int64_t first = head_.first_query, end; first < sizes_.positions; first = end) {
      // Blocks end where those of all queries do: a block's queries see keys of the same blocks.
      end = std::min(first / kAttentionBlock * kAttentionBlock + kAttentionBlock, sizes_.positions);
      const int64_t rows = end - first;
      compute_scores(first, rows);
      float inverse_sums[kAttentionBlock];
      normalize(first, rows, inverse_sums);
      weigh_values(first, rows);
      for (int64_t row = 0; row < rows; ++row) {
        float* __restrict to = head_.output + (first + row) * sizes_.channels();
        const float* __restrict from = result_ + row * sizes_.padded_head();
        for (int64_t d = 0; d < sizes_.head_size; ++d) to[d] = from[d] * inverse_sums[row];
      }
    }
  }

 private:
  /// Keys that the queries up to `last` see, rounded up to whole vectors.
  int64_t seen(int64_t last) const { return attention_padded(sizes_.seen_by(last)); }

  void compute_scores(int64_t first, int64_t rows) {
    const HeadView query = head_.query;
    const int64_t width = sizes_.padded_positions();
    // A panel of keys stays in the first-level cache while all queries of the block meet it.
    for (int64_t key = 0; key < seen(first + rows - 1); key += 2 * kLanes)
      for (int64_t row = 0; row < rows; row += kTileRows) {
        const int64_t tile = std::min(kTileRows, rows - row);
        const int64_t columns = std::min(2 * kLanes, seen(first + row + tile - 1) - key);
        if (columns <= 0) continue;
        tile_product(tile, columns, sizes_.head_size,
                     {query.data + (first + row) * query.row_stride, query.row_stride, 1}, keys_ + key, width,
                     scores_ + row * width + key, width, false);
      }
  }

  /// Scores to unnormalised weights, in place; leaves 1 / their sums in `inverse_sums`. Loops over rows one
  /// after another rather than one loop: within a row each step waits for the one before it.
  void normalize(int64_t first, int64_t rows, float* inverse_sums) {
    const int64_t width = sizes_.padded_positions();
    const float scale = sizes_.scale();
    float offsets[kAttentionBlock], sums[kAttentionBlock];
    for (int64_t row = 0; row < rows; ++row)
      offsets[row] = scale * row_maximum(scores_ + row * width, sizes_.seen_by(first + row));
    for (int64_t row = 0; row < rows; ++row)
      sums[row] = weights_of_row(scores_ + row * width, sizes_.seen_by(first + row), scale, offsets[row]);
    for (int64_t row = 0; row < rows; ++row) {
      head_.log_sum_exp[first + row] = offsets[row] + std::log(sums[row]);
      inverse_sums[row] = 1.0f / sums[row];
    }
    for (int64_t row = 0; row < rows; ++row) {
      float* weights = scores_ + row * width;
      const int64_t count = sizes_.seen_by(first + row);
      // Later keys that other queries of the tile see have weight 0.
      const int64_t tile_end = std::min(width, first + (row / kTileRows + 1) * kTileRows);
      for (int64_t key = attention_padded(count); key < tile_end; ++key) weights[key] = 0;
      if (head_.context.drops)
        for (int64_t key = 0; key < count; key += kAttentionBlock)
          drop_weights(weights + key, head_.context, head_.head, first + row, head_.sample, key,
                       std::min(kAttentionBlock, count - key));
    }
  }

  /// exp(scale score - offset) in place, 0 for the lanes beyond `count`; returns their sum.
  static float weights_of_row(float* row, int64_t count, float scale, float offset) {
    Lanes sum = splat(0.0f);
    for (int64_t i = 0; i < count; i += kLanes) {
      Lanes weights = exponential(fused(load(row + i), splat(scale), splat(-offset)));
      if (i + kLanes > count) weights = keep_first(weights, count - i, 0.0f);
      store(row + i, weights);
      sum += weights;
    }
    return fold_sum(sum);
  }

  void weigh_values(int64_t first, int64_t rows) {
    const int64_t width = sizes_.padded_positions(), head = sizes_.padded_head();
    for (int64_t key = 0; key < sizes_.seen_by(first); key += kAttentionBlock)
      for (int64_t row = 0; row < rows; row += kTileRows) {
        const int64_t tile = std::min(kTileRows, rows - row);
        const int64_t inner = std::min(kAttentionBlock, sizes_.seen_by(first + row + tile - 1) - key);
        tile_product(tile, head, inner, {scores_ + row * width + key, width, 1}, values_ + key * head, head,
                     result_ + row * head, head, key > 0);
      }
  }

  const AttentionForward& head_;
  const AttentionSizes& sizes_;
  float *keys_, *values_, *scores_, *result_;
};

}  // namespace

void attention_forward(const AttentionForward& head) { HeadForward(head).run(); }

}  // namespace LOCKSTEP_SIMD
}  // namespace lockstep::ops
