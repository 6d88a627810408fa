#include <limits>

#include "ops/cuda/attention.h"
#include "ops/cuda/attention_tiles.h"

namespace lockstep::ops {
namespace {

// Forward after Dao, "FlashAttention-2" (2023). A block of four warps owns 128 queries of one head and meets
// the keys in tiles of 64, from the first key to the diagonal. Each warp owns 32 queries, so that every
// fragment of keys and values that it loads from shared memory serves two products. Scores and weights live
// in registers only; the sums of exponentials are kept per lane and added over lanes at the end. While a tile
// is computed, the next one is copied. Moves, at the least, a head's query, key, value, output and
// log-sum-exps once: 8 bytes for 2 T flops.
constexpr int kQueries = 128, kKeys = 64, kWarps = 4, kThreads = kWarps * device::kWarpSize;
constexpr int kWarpTiles = kQueries / kWarps / 16;  // tiles of 16 queries that a warp owns

template <class T, int kHead>
constexpr size_t kSharedBytes = (kQueries + 2 * 2 * kKeys) * kHead * sizeof(T);

/// Keys and values of two tiles: one is computed with while the other is copied.
template <class T, int kHead>
struct KeyTiles {
  using Tile = AttentionTile<T, kHead>;

  __device__ static Tile keys(int tile) { return {(kQueries + tile % 2 * 2 * kKeys) * kHead}; }
  __device__ static Tile values(int tile) { return {keys(tile).first + kKeys * kHead}; }
  __device__ static void copy(int tile, const AttentionCall<T>& call, const AttentionHead& head) {
    keys(tile).template copy_from<kKeys, kThreads>(call.qkv + head.key, call.stride(), tile * kKeys,
                                                   call.positions);
    values(tile).template copy_from<kKeys, kThreads>(call.qkv + head.value, call.stride(), tile * kKeys,
                                                     call.positions);
    device::commit_copies();
  }
};

/// A warp's queries, and what it knows of them after some tiles of keys.
template <class T, int kHead>
struct Rows {
  using Tile = AttentionTile<T, kHead>;
  // A wider head's queries would take too many registers; they are loaded for each tile again.
  static constexpr bool kHoldsQueries = kHead <= 64;

  uint32_t query[kWarpTiles][kHoldsQueries ? kHead / 16 : 1][4];
  float scores[kWarpTiles][kKeys / 8]
              [4];  // of a tile of keys; then their weights relative to the maximum so far
  float output[kWarpTiles][kHead / 8][4] = {};
  // Of the upper and lower eight queries; sums of weights are those of this lane's keys.
  float maximum[kWarpTiles][2], sum[kWarpTiles][2] = {};

  __device__ Rows() {
    for (auto& halves : maximum) halves[0] = halves[1] = -std::numeric_limits<float>::infinity();
  }

  __device__ void load_queries(Tile queries, int row, int k) {
#pragma unroll
    for (int m = 0; m < kWarpTiles; ++m) queries.load_a(query[m][kHoldsQueries ? k : 0], row + m * 16, k);
  }

  __device__ void compute_scores(Tile queries, int row, Tile keys) {
#pragma unroll
    for (auto& tile : scores)
#pragma unroll
      for (auto& four : tile) four[0] = four[1] = four[2] = four[3] = 0.0f;
#pragma unroll
    for (int k = 0; k < kHead / 16; ++k) {
      if (!kHoldsQueries) load_queries(queries, row, k);
#pragma unroll
      for (int n = 0; n < kKeys / 16; ++n) {
        uint32_t b[4];
        keys.load_b(b, n * 16, k);
#pragma unroll
        for (int m = 0; m < kWarpTiles; ++m) {
          device::multiply_add<T>(scores[m][2 * n], query[m][kHoldsQueries ? k : 0], b[0], b[1]);
          device::multiply_add<T>(scores[m][2 * n + 1], query[m][kHoldsQueries ? k : 0], b[2], b[3]);
        }
      }
    }
  }

  /// Keys that a query does not see get the score of minus infinity: those after it or, if attention is not
  /// causal, those behind the last position.
  __device__ void hide_keys(bool causal, int first_query, int last_position, int first_key) {
    const int lane = static_cast<int>(threadIdx.x) % device::kWarpSize;
    const int before = (causal ? first_query + lane / 4 : last_position) - first_key - lane % 4 * 2;
#pragma unroll
    for (int m = 0; m < kWarpTiles; ++m)
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          if (n * 8 + i % 2 - (causal ? m * 16 + i / 2 * 8 : 0) > before)
            scores[m][n][i] = -std::numeric_limits<float>::infinity();
  }

  /// Scores become weights; what was summed before is scaled to the new maximum.
  __device__ void weigh(int m, int half, float scale_log2) {
    float highest = maximum[m][half];
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n)
      highest = fmaxf(highest, fmaxf(scores[m][n][2 * half], scores[m][n][2 * half + 1]));
    // Four lanes share a row.
    highest = fmaxf(highest, __shfl_xor_sync(device::kFullWarp, highest, 1));
    highest = fmaxf(highest, __shfl_xor_sync(device::kFullWarp, highest, 2));
    const float factor = device::fast_exp2((maximum[m][half] - highest) * scale_log2),
                offset = -highest * scale_log2;
    maximum[m][half] = highest;
    float added = 0;
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
      for (int i = 2 * half; i < 2 * half + 2; ++i) {
        scores[m][n][i] = device::fast_exp2(std::fma(scores[m][n][i], scale_log2, offset));
        added += scores[m][n][i];
      }
    sum[m][half] = std::fma(sum[m][half], factor, added);
#pragma unroll
    for (int n = 0; n < kHead / 8; ++n) {
      output[m][n][2 * half] *= factor;
      output[m][n][2 * half + 1] *= factor;
    }
  }

  __device__ void drop(int m, uint32_t kept) {
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) scores[m][n][i] = kept >> (4 * n + i) & 1u ? scores[m][n][i] : 0.0f;
  }

  __device__ void add_values(Tile values) {
#pragma unroll
    for (int k = 0; k < kKeys / 16; ++k) {
      uint32_t weights[kWarpTiles][4];
#pragma unroll
      for (int m = 0; m < kWarpTiles; ++m)
        pack_accumulators<T>(weights[m], scores[m][2 * k], scores[m][2 * k + 1]);
#pragma unroll
      for (int n = 0; n < kHead / 16; ++n) {
        uint32_t b[4];
        values.load_b_by_rows(b, k * 16, n);
#pragma unroll
        for (int m = 0; m < kWarpTiles; ++m) {
          device::multiply_add<T>(output[m][2 * n], weights[m], b[0], b[1]);
          device::multiply_add<T>(output[m][2 * n + 1], weights[m], b[2], b[3]);
        }
      }
    }
  }

  /// Normalizes the output of half a tile: returns by what it is to be multiplied, and writes the
  /// log-sum-exps.
  __device__ float finish(int m, int half, float scale, float* log_sum_exp, int first_query,
                          int positions) const {
    const int lane = static_cast<int>(threadIdx.x) % device::kWarpSize,
              at = first_query + m * 16 + half * 8 + lane / 4;
    float total = sum[m][half];
    total += __shfl_xor_sync(device::kFullWarp, total, 1);
    total += __shfl_xor_sync(device::kFullWarp, total, 2);
    if (lane % 4 == 0 && at < positions) log_sum_exp[at] = std::fma(maximum[m][half], scale, std::log(total));
    return 1.0f / total;
  }
};

template <class T, int kHead, bool kDrops>
__global__ void __launch_bounds__(kThreads, 2)
    forward_kernel(AttentionCall<T> call, AttentionOrder order, float scale) {
  using Stages = KeyTiles<T, kHead>;
  const AttentionOrder::Place block = order.of_block(blockIdx.x, blockIdx.y, blockIdx.z);
  if (!order.exists(block)) return;
  const AttentionHead head(call, block.unit);
  const int channels = call.channels();
  const AttentionTile<T, kHead> queries{0};

  const int first_query = static_cast<int>(block.tile) * kQueries;
  const int warp_row = static_cast<int>(threadIdx.x) / device::kWarpSize * kWarpTiles * 16;
  const int warp_query = first_query + warp_row;
  const int last_query =
      (first_query + kQueries < call.positions ? first_query + kQueries : call.positions) - 1;
  const int tiles = call.last_seen(last_query) / kKeys + 1;

  queries.template copy_from<kQueries, kThreads>(call.qkv + head.query, call.stride(), first_query,
                                                 call.positions);
  Stages::copy(0, call, head);
  Rows<T, kHead> rows;
  for (int tile = 0; tile < tiles; ++tile) {
    device::wait_for_copies<0>();
    // All copies of this tile have arrived, and nobody reads the one before, whose place the next one takes.
    __syncthreads();
    if (tile + 1 < tiles) Stages::copy(tile + 1, call, head);
    if (rows.kHoldsQueries && tile == 0)
#pragma unroll
      for (int k = 0; k < kHead / 16; ++k) rows.load_queries(queries, warp_row, k);
    const int first_key = tile * kKeys;
    // Nothing to do where none of the warp's queries sees the keys, or the warp has none.
    if ((call.causal && first_key > warp_query + kWarpTiles * 16 - 1) || warp_query >= call.positions)
      continue;

    rows.compute_scores({device::opaque(queries.first)}, warp_row, Stages::keys(tile));
    if (first_key + kKeys - 1 > call.last_seen(warp_query))
      rows.hide_keys(call.causal, warp_query, call.positions - 1, first_key);
#pragma unroll
    for (int m = 0; m < kWarpTiles; ++m) {
      rows.weigh(m, 0, scale * kLog2E);
      rows.weigh(m, 1, scale * kLog2E);
      if constexpr (kDrops)
        rows.drop(m, kept_by_queries(AttentionDropout(call, head), warp_query + m * 16, first_key));
    }
    rows.add_values(Stages::values(tile));
  }

  // The warp's own queries make room for its results, which then leave in whole rows.
  const float kept_scale = kDrops ? AttentionDropout(call, head).scale() : 1.0f;
  __syncwarp();
#pragma unroll
  for (int m = 0; m < kWarpTiles; ++m) {
    float factor[2];
#pragma unroll
    for (int half = 0; half < 2; ++half)
      factor[half] =
          kept_scale * rows.finish(m, half, scale, call.log_sum_exp + head.row, warp_query, call.positions);
    queries.store(rows.output[m], warp_row + m * 16, factor[0], factor[1]);
  }
  __syncwarp();
  queries.template copy_to<kWarpTiles * 16>(call.output + head.output, channels, warp_row, warp_query,
                                            call.positions);
}

template <int kHead, class T>
void launch_forward(const AttentionCall<T>& call, device::Stream& stream) {
  // The last queries see the most keys.
  const AttentionOrder order = order_of(call, kQueries, false, HeaviestTiles::last);
  const device::Grid grid{
      .blocks = blocks_of(order), .threads = kThreads, .shared_bytes = kSharedBytes<T, kHead>};
  if (call.dropout > 0) {
    device::launch(stream, grid, forward_kernel<T, kHead, true>, call, order, call.scale());
  } else {
    device::launch(stream, grid, forward_kernel<T, kHead, false>, call, order, call.scale());
  }
}

}  // namespace

template <class T>
void attention_forward(const AttentionCall<T>& call, device::Stream& stream) {
  switch (call.head_size) {
    case 32:
      return launch_forward<32>(call, stream);
    case 64:
      return launch_forward<64>(call, stream);
    default:
      return launch_forward<128>(call, stream);
  }
}

template void attention_forward(const AttentionCall<bfloat16>&, device::Stream&);
template void attention_forward(const AttentionCall<float16>&, device::Stream&);

}  // namespace lockstep::ops
