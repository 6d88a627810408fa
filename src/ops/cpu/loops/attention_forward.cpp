#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/cpu/loops/documents.h"
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
        end_key_(sizes_.positions),
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
      if (head_.documents != nullptr && !find_met(first, end)) {
        leave_out(first, end);
        continue;
      }
      compute_scores(first, rows);
      if (head_.documents != nullptr) hide_other_documents(first, rows);
      float inverse_sums[kAttentionBlock];
      normalize(first, rows, inverse_sums);
      weigh_values(first, rows);
      for (int64_t row = 0; row < rows; ++row) {
        float* __restrict to = head_.output + (first + row) * sizes_.channels();
        const float* __restrict from = result_ + row * sizes_.padded_head();
        for (int64_t d = 0; d < sizes_.head_size; ++d) to[d] = from[d] * inverse_sums[row];
        if (head_.documents != nullptr && head_.documents[first + row] < 0)
          leave_out(first + row, first + row + 1);
      }
    }
  }

 private:
  /// Where the keys end that `query` sees.
  int64_t seen_by(int64_t query) const { return std::min(sizes_.seen_by(query), end_key_); }
  /// The same for the queries up to `last`, rounded up to whole vectors.
  int64_t seen(int64_t last) const { return attention_padded(seen_by(last)); }

  /// Sets first_key_ and end_key_ to the blocks of keys of the queries' documents. False: there are none.
  bool find_met(int64_t first, int64_t end) {
    const DocumentRange own = range_of(head_.documents, first, end);
    first_key_ = end_key_ = 0;
    for (int64_t key = 0; key < sizes_.seen_by(end - 1); key += kAttentionBlock) {
      const int64_t key_end = std::min(key + kAttentionBlock, sizes_.positions);
      if (!own.meets(range_of(head_.documents, key, key_end))) continue;
      if (end_key_ == 0) first_key_ = key;
      end_key_ = key_end;
    }
    return end_key_ > 0;
  }

  /// Scores of keys of other documents, to which softmax gives no weight.
  void hide_other_documents(int64_t first, int64_t rows) {
    for (int64_t row = 0; row < rows; ++row)
      hide_others(scores_ + row * sizes_.padded_positions() + first_key_, head_.documents,
                  head_.documents[first + row], first_key_, seen_by(first + row) - first_key_,
                  -std::numeric_limits<float>::infinity());
  }

  /// Results of queries without a document.
  void leave_out(int64_t first, int64_t end) const {
    for (int64_t query = first; query < end; ++query) {
      std::fill_n(head_.output + query * sizes_.channels(), sizes_.head_size, 0.0f);
      head_.log_sum_exp[query] = 0;
    }
  }

  void compute_scores(int64_t first, int64_t rows) {
    const HeadView query = head_.query;
    const int64_t width = sizes_.padded_positions();
    // A panel of keys stays in the first-level cache while all queries of the block meet it.
    for (int64_t key = first_key_; key < seen(first + rows - 1); key += 2 * kLanes)
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
      offsets[row] =
          scale * row_maximum(scores_ + row * width + first_key_, seen_by(first + row) - first_key_);
    for (int64_t row = 0; row < rows && head_.documents != nullptr; ++row)
      if (head_.documents[first + row] < 0) offsets[row] = 0;  // of a row of -infinity
    for (int64_t row = 0; row < rows; ++row)
      sums[row] = weights_of_row(scores_ + row * width + first_key_, seen_by(first + row) - first_key_, scale,
                                 offsets[row]);
    for (int64_t row = 0; row < rows; ++row) {
      head_.log_sum_exp[first + row] = offsets[row] + std::log(sums[row]);
      inverse_sums[row] = 1.0f / sums[row];
    }
    for (int64_t row = 0; row < rows; ++row) {
      float* weights = scores_ + row * width;
      const int64_t count = seen_by(first + row);
      // Later keys that other queries of the tile see have weight 0.
      const int64_t tile_end = std::min(width, first + (row / kTileRows + 1) * kTileRows);
      for (int64_t key = attention_padded(count); key < tile_end; ++key) weights[key] = 0;
      if (head_.context.drops)
        for (int64_t key = first_key_; key < count; key += kAttentionBlock)
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
    for (int64_t key = first_key_; key < seen_by(first); key += kAttentionBlock)
      for (int64_t row = 0; row < rows; row += kTileRows) {
        const int64_t tile = std::min(kTileRows, rows - row);
        const int64_t inner = std::min(kAttentionBlock, seen_by(first + row + tile - 1) - key);
        tile_product(tile, head, inner, {scores_ + row * width + key, width, 1}, values_ + key * head, head,
                     result_ + row * head, head, key > first_key_);
      }
  }

  const AttentionForward& head_;
  const AttentionSizes& sizes_;
  int64_t first_key_ = 0, end_key_;  // keys that the block of queries may see, apart from causality
  float *keys_, *values_, *scores_, *result_;
};

}  // namespace

void attention_forward(const AttentionForward& head) { HeadForward(head).run(); }

}  // namespace LOCKSTEP_SIMD
}  // namespace lockstep::ops
