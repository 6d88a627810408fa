#include <algorithm>
#include <cstring>
#include <utility>

#include "ops/cpu/loops/documents.h"
#include "ops/cpu/loops/head_memory.h"
#include "ops/cpu/loops/heads.h"
#include "ops/cpu/loops/rows.h"
#include "ops/cpu/loops/tile_product.h"

namespace lockstep::ops {
inline namespace LOCKSTEP_SIMD {
namespace {

/// Backward of one head. With weights P = exp(scale q k - log_sum_exp), dropout factors F and D = sum(dO O)
/// per query:
///   dV = (P F)^T dO, dS = P (F (dO V^T) - D) scale, dK = dS^T Q, dQ = dS K.
class HeadBackward {
 public:
  explicit HeadBackward(const AttentionBackward& head) : head_(head), sizes_(head.context.sizes) {
    float* workspace = head.workspace;
    const int64_t packed = sizes_.positions * sizes_.padded_head();
    const int64_t transposed = sizes_.head_size * sizes_.padded_positions();
    const auto take = [&](int64_t count) { return std::exchange(workspace, workspace + count); };
    weights_ = take(kAttentionBlock * kAttentionBlock);
    gradients_ = take(kAttentionBlock * kAttentionBlock);
    keys_transposed_ = take(transposed);
    values_transposed_ = take(transposed);
    queries_ = take(packed);
    keys_ = take(packed);
    output_gradients_ = take(packed);
    query_gradients_ = take(packed);
    key_gradients_ = take(packed);
    value_gradients_ = take(packed);
    dots_ = take(sizes_.positions);
  }

  void run() {
    pack_transposed(keys_transposed_, head_.key, sizes_);
    pack_transposed(values_transposed_, head_.value, sizes_);
    pack_rows(queries_, head_.query, sizes_);
    pack_rows(keys_, head_.key, sizes_);
    pack_rows(output_gradients_, head_.output_gradient, sizes_);
    for (int64_t t = 0; t < sizes_.positions; ++t)
      dots_[t] = row_sum(sizes_.head_size, [&](const auto& at) {
        return at(head_.output.data + t * head_.output.row_stride, 0.0f) *
               at(head_.output_gradient.data + t * head_.output_gradient.row_stride, 0.0f);
      });
    const bool divides = head_.documents != nullptr;
    if (divides)  // perhaps nobody meets a position
      for (float* gradients : {query_gradients_, key_gradients_, value_gradients_})
        std::fill_n(gradients, sizes_.positions * sizes_.padded_head(), 0.0f);
    for (int64_t first_key = 0; first_key < sizes_.positions; first_key += kAttentionBlock)
      for (int64_t first_query = first_met_by(first_key); first_query < sizes_.positions;
           first_query += kAttentionBlock) {
        const Block block{first_query,
                          std::min(kAttentionBlock, sizes_.positions - first_query),
                          first_key,
                          std::min(kAttentionBlock, sizes_.positions - first_key),
                          sizes_.causal && first_query == first_key,
                          divides || first_query != first_met_by(first_key),
                          divides || first_key > 0};
        if (divides && !shares_documents(block)) continue;
        compute_weights(block);
        add_gradients(block);
      }
    unpack(query_gradients_, head_.query_gradient, false);
    unpack(key_gradients_, head_.key_gradient, head_.adds_keys);
    unpack(value_gradients_, head_.value_gradient, head_.adds_keys);
  }

 private:
  struct Block {
    int64_t first_query, queries, first_key, keys;
    bool masked;                         // on the diagonal: earlier queries do not see later keys
    bool adds_to_keys, adds_to_queries;  // gradients of earlier blocks are there
    /// Keys of the block that its query `row` sees.
    int64_t seen(int64_t row) const { return masked ? row + 1 : keys; }
  };

  /// The first query of the blocks that meet the keys from `first_key` on.
  int64_t first_met_by(int64_t first_key) const { return sizes_.causal ? first_key : 0; }

  bool shares_documents(const Block& block) const {
    return range_of(head_.documents, block.first_query, block.first_query + block.queries)
        .meets(range_of(head_.documents, block.first_key, block.first_key + block.keys));
  }

  /// Leaves P F in weights_ and dS in gradients_, both [queries, kAttentionBlock] with zeros where a query
  /// does not see a key.
  void compute_weights(const Block& block) {
    const int64_t depth = sizes_.padded_head(), width = sizes_.padded_positions();
    for (int64_t row = 0; row < block.queries; row += kTileRows) {
      const int64_t tile = std::min(kTileRows, block.queries - row);
      const int64_t columns = attention_padded(block.seen(row + tile - 1));
      const int64_t query = (block.first_query + row) * depth;
      tile_product(tile, columns, sizes_.head_size, {queries_ + query, depth, 1},
                   keys_transposed_ + block.first_key, width, weights_ + row * kAttentionBlock,
                   kAttentionBlock, false);
      tile_product(tile, columns, sizes_.head_size, {output_gradients_ + query, depth, 1},
                   values_transposed_ + block.first_key, width, gradients_ + row * kAttentionBlock,
                   kAttentionBlock, false);
    }
    for (int64_t row = 0; row < block.queries; ++row) weights_of_row(block, row);
  }

  /// Scores and products with the output's gradient become weights and gradients, in place.
  void weights_of_row(const Block& block, int64_t row) {
    const int64_t query = block.first_query + row, seen = block.seen(row);
    float* weights = weights_ + row * kAttentionBlock;
    float* gradients = gradients_ + row * kAttentionBlock;
    float factors[kAttentionBlock];
    if (head_.context.drops) {
      std::fill(factors, factors + kAttentionBlock, 1.0f);
      drop_weights(factors, head_.context, head_.head, query, head_.sample, block.first_key, seen);
    }
    const Lanes scale = splat(sizes_.scale()), offset = splat(-head_.log_sum_exp[query]);
    const Lanes dot = splat(dots_[query]), minus_dot = splat(-dots_[query]);
    for (int64_t i = 0; i < seen; i += kLanes) {
      const Lanes weight = exponential(fused(scale, load(weights + i), offset)),
                  product = load(gradients + i);
      if (head_.context.drops) {
        const Lanes factor = load(factors + i);
        store(gradients + i, weight * fused(product, factor, minus_dot) * scale);
        store(weights + i, weight * factor);
      } else {
        store(gradients + i, weight * (product - dot) * scale);
        store(weights + i, weight);
      }
    }
    std::fill(weights + seen, weights + kAttentionBlock, 0.0f);
    std::fill(gradients + seen, gradients + kAttentionBlock, 0.0f);
    if (head_.documents == nullptr) return;
    for (float* numbers : {weights, gradients})
      hide_others(numbers, head_.documents, head_.documents[query], block.first_key, block.keys, 0.0f);
  }

  void add_gradients(const Block& block) {
    const int64_t depth = sizes_.padded_head();
    for (int64_t key = 0; key < block.keys; key += kTileRows) {
      const int64_t tile = std::min(kTileRows, block.keys - key);
      const int64_t skipped = block.masked ? key : 0;  // queries before the tile's keys do not see them
      const int64_t query = (block.first_query + skipped) * depth, to = (block.first_key + key) * depth;
      const int64_t inner = block.queries - skipped;
      tile_product(tile, depth, inner, {weights_ + skipped * kAttentionBlock + key, 1, kAttentionBlock},
                   output_gradients_ + query, depth, value_gradients_ + to, depth, block.adds_to_keys);
      tile_product(tile, depth, inner, {gradients_ + skipped * kAttentionBlock + key, 1, kAttentionBlock},
                   queries_ + query, depth, key_gradients_ + to, depth, block.adds_to_keys);
    }
    for (int64_t row = 0; row < block.queries; row += kTileRows) {
      const int64_t tile = std::min(kTileRows, block.queries - row);
      tile_product(tile, depth, block.seen(row + tile - 1),
                   {gradients_ + row * kAttentionBlock, kAttentionBlock, 1}, keys_ + block.first_key * depth,
                   depth, query_gradients_ + (block.first_query + row) * depth, depth, block.adds_to_queries);
    }
  }

  void unpack(const float* from, float* to, bool adds) const {
    for (int64_t t = 0; t < sizes_.positions; ++t) {
      const float* __restrict row = from + t * sizes_.padded_head();
      float* __restrict result = to + t * sizes_.input_channels();
      if (adds)
        for (int64_t d = 0; d < sizes_.head_size; ++d) result[d] += row[d];
      else
        std::memcpy(result, row, static_cast<size_t>(sizes_.head_size) * sizeof(float));
    }
  }

  const AttentionBackward& head_;
  const AttentionSizes& sizes_;
  float *weights_, *gradients_, *keys_transposed_, *values_transposed_, *queries_, *keys_, *output_gradients_,
      *query_gradients_, *key_gradients_, *value_gradients_, *dots_;
};

}  // namespace

void attention_backward(const AttentionBackward& head) { HeadBackward(head).run(); }

}  // namespace LOCKSTEP_SIMD
}  // namespace lockstep::ops
