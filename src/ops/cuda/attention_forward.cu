#include <limits>

#include "ops/cuda/attention.h"
#include "ops/cuda/attention_tiles.h"

namespace lockstep {
namespace {

// Forward after Dao, "FlashAttention-2" (2023). A block of four warps owns 128 queries of one head and meets
// the keys in tiles of 64, from the first key to the diagonal. Each warp owns 32 queries, so that every
// fragment of keys and values that it loads from shared memory serves two products. Scores and weights live
// in registers only; the sums of exponentials are kept per lane and added over lanes at the end. While a tile
// is computed, the next one is copied. Moves, at the least, a head's query, key, value, output and
// log-sum-exps once: 8 bytes for 2 T flops.
constexpr int kQueries = 128, kKeys = 64, kWarps = 4, kThreads = kWarps * kWarpSize;
constexpr int kWarpTiles = kQueries / kWarps / 16;  // tiles of 16 queries that a warp owns

template <class T, int kHead>
constexpr size_t kSharedBytes = (kQueries + 2 * 2 * kKeys) * kHead * sizeof(T);

/// What a warp knows of its queries after some tiles of keys.
template <class T, int kHead>
struct Rows {
  float output[kWarpTiles][kHead / 8][4] = {};
  float maximum[kWarpTiles][2],
      sum[kWarpTiles][2] = {};  // of the upper and lower 8 queries; sums are this lane's

  /// Scores of a tile of keys become weights relative to the maximum so far.
  __device__ void weigh(float (&scores)[kKeys / 8][4], int m, float scale_log2) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float highest = maximum[m][half];
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n)
        highest = fmaxf(highest, fmaxf(scores[n][2 * half], scores[n][2 * half + 1]));
      // Four lanes share a row.
      highest = fmaxf(highest, __shfl_xor_sync(kFullWarp, highest, 1));
      highest = fmaxf(highest, __shfl_xor_sync(kFullWarp, highest, 2));
      const float factor = fast_exp2((maximum[m][half] - highest) * scale_log2),
                  offset = -highest * scale_log2;
      maximum[m][half] = highest;
      float added = 0;
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; ++i) {
          scores[n][i] = fast_exp2(std::fma(scores[n][i], scale_log2, offset));
          added += scores[n][i];
        }
      sum[m][half] = std::fma(sum[m][half], factor, added);
#pragma unroll
      for (int n = 0; n < kHead / 8; ++n) {
        output[m][n][2 * half] *= factor;
        output[m][n][2 * half + 1] *= factor;
      }
    }
  }
};

/// Keys and values of two tiles: one is computed with while the other is copied.
template <class T, int kHead>
struct KeyTiles {
  using Tile = AttentionTile<T, kHead>;

  __device__ static Tile keys(int tile) { return {(kQueries + tile % 2 * 2 * kKeys) * kHead}; }
  __device__ static Tile values(int tile) { return {keys(tile).first + kKeys * kHead}; }
  __device__ static void copy(int tile, const T* key, int64_t channels, int positions) {
    keys(tile).template copy_from<kKeys, kThreads>(key, 3 * channels, tile * kKeys, positions);
    values(tile).template copy_from<kKeys, kThreads>(key + channels, 3 * channels, tile * kKeys, positions);
    commit_copies();
  }
};

template <class T, int kHead, bool kDrops>
__global__ void __launch_bounds__(kThreads, 2) forward_kernel(AttentionCall<T> call, float scale) {
  using Tile = AttentionTile<T, kHead>;
  // A wider head's queries would take too many registers; they are loaded for each tile again.
  constexpr bool kHoldsQueries = kHead <= 64;
  const AttentionHead head(call, blockIdx.x);
  const int64_t channels = call.channels();
  const T* query = call.qkv + head.input;

  using Stages = KeyTiles<T, kHead>;
  const Tile queries{0};

  // The last queries see the most keys: they start first.
  const int first_query = static_cast<int>(gridDim.y - 1 - blockIdx.y) * kQueries;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int warp_row = static_cast<int>(threadIdx.x) / kWarpSize * kWarpTiles * 16,
            warp_query = first_query + warp_row;
  const int last_query =
      (first_query + kQueries < call.positions ? first_query + kQueries : call.positions) - 1;
  const int tiles = last_query / kKeys + 1;

  queries.template copy_from<kQueries, kThreads>(query, 3 * channels, first_query, call.positions);
  Stages::copy(0, query + channels, channels, call.positions);
  uint32_t held[kWarpTiles][kHoldsQueries ? kHead / 16 : 1][4];
  Rows<T, kHead> rows;
  for (auto& halves : rows.maximum) halves[0] = halves[1] = -std::numeric_limits<float>::infinity();

  for (int tile = 0; tile < tiles; ++tile) {
    wait_for_copies<0>();
    // All copies of this tile have arrived, and nobody reads the one before, whose place the next one takes.
    __syncthreads();
    if (tile + 1 < tiles) Stages::copy(tile + 1, query + channels, channels, call.positions);
    if (kHoldsQueries && tile == 0)
#pragma unroll
      for (int m = 0; m < kWarpTiles; ++m)
#pragma unroll
        for (int k = 0; k < kHead / 16; ++k)
          queries.load_a(held[m][kHoldsQueries ? k : 0], warp_row + m * 16, k);
    const int first_key = tile * kKeys;
    if (first_key > warp_query + kWarpTiles * 16 - 1) continue;  // none of the warp's queries sees them

    float scores[kWarpTiles][kKeys / 8][4] = {};
#pragma unroll
    for (int k = 0; k < kHead / 16; ++k) {
      if (!kHoldsQueries)
#pragma unroll
        for (int m = 0; m < kWarpTiles; ++m) queries.load_a(held[m][0], warp_row + m * 16, k);
#pragma unroll
      for (int n = 0; n < kKeys / 16; ++n) {
        uint32_t b[4];
        Stages::keys(tile).load_b(b, n * 16, k);
#pragma unroll
        for (int m = 0; m < kWarpTiles; ++m) {
          multiply_add<T>(scores[m][2 * n], held[m][kHoldsQueries ? k : 0], b[0], b[1]);
          multiply_add<T>(scores[m][2 * n + 1], held[m][kHoldsQueries ? k : 0], b[2], b[3]);
        }
      }
    }
    if (first_key + kKeys - 1 > warp_query)
#pragma unroll
      for (int m = 0; m < kWarpTiles; ++m)
#pragma unroll
        for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
          for (int i = 0; i < 4; ++i)
            if (first_key + n * 8 + lane % 4 * 2 + i % 2 > warp_query + m * 16 + lane / 4 + i / 2 * 8)
              scores[m][n][i] = -std::numeric_limits<float>::infinity();

#pragma unroll
    for (int m = 0; m < kWarpTiles; ++m) {
      rows.weigh(scores[m], m, scale * kLog2E);
      if constexpr (kDrops) {
        const AttentionDropout dropout(call, head);
#pragma unroll
        for (int n = 0; n < kKeys / 8; ++n) {
          const uint32_t kept = kept_by_queries(dropout, warp_query + m * 16, first_key + n * 8);
#pragma unroll
          for (int i = 0; i < 4; ++i) scores[m][n][i] = kept >> i & 1u ? scores[m][n][i] : 0.0f;
        }
      }
    }
#pragma unroll
    for (int k = 0; k < kKeys / 16; ++k) {
      uint32_t weights[kWarpTiles][4];
#pragma unroll
      for (int m = 0; m < kWarpTiles; ++m)
        pack_accumulators<T>(weights[m], scores[m][2 * k], scores[m][2 * k + 1]);
#pragma unroll
      for (int n = 0; n < kHead / 16; ++n) {
        uint32_t b[4];
        Stages::values(tile).load_b_by_rows(b, k * 16, n);
#pragma unroll
        for (int m = 0; m < kWarpTiles; ++m) {
          multiply_add<T>(rows.output[m][2 * n], weights[m], b[0], b[1]);
          multiply_add<T>(rows.output[m][2 * n + 1], weights[m], b[2], b[3]);
        }
      }
    }
  }

  const float kept_scale = kDrops ? AttentionDropout(call, head).scale() : 1.0f;
  // The warp's own queries make room for its results, which then leave in whole rows.
  __syncwarp();
#pragma unroll
  for (int m = 0; m < kWarpTiles; ++m) {
    float factor[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = rows.sum[m][half];
      sum += __shfl_xor_sync(kFullWarp, sum, 1);
      sum += __shfl_xor_sync(kFullWarp, sum, 2);
      factor[half] = kept_scale / sum;
      const int at = warp_query + m * 16 + half * 8 + lane / 4;
      if (lane % 4 == 0 && at < call.positions)
        call.log_sum_exp[head.row + at] = std::fma(rows.maximum[m][half], scale, std::log(sum));
    }
    queries.store(rows.output[m], warp_row + m * 16, factor[0], factor[1]);
  }
  __syncwarp();
  queries.template copy_to<kWarpTiles * 16>(call.output + head.output, channels, warp_row, warp_query,
                                            call.positions);
}

template <int kHead, class T>
void launch_forward(const AttentionCall<T>& call, Stream& stream) {
  const Grid grid{
      .blocks = {static_cast<unsigned>(call.batch * call.heads), blocks_for(call.positions, kQueries)},
      .threads = kThreads,
      .shared_bytes = kSharedBytes<T, kHead>};
  if (call.dropout > 0) {
    launch(stream, grid, forward_kernel<T, kHead, true>, call, call.scale());
  } else {
    launch(stream, grid, forward_kernel<T, kHead, false>, call, call.scale());
  }
}

}  // namespace

template <class T>
void attention_forward(const AttentionCall<T>& call, Stream& stream) {
  switch (call.head_size) {
    case 32:
      return launch_forward<32>(call, stream);
    case 64:
      return launch_forward<64>(call, stream);
    default:
      return launch_forward<128>(call, stream);
  }
}

template void attention_forward(const AttentionCall<bfloat16>&, Stream&);
template void attention_forward(const AttentionCall<float16>&, Stream&);

}  // namespace lockstep
