#include "ops/cuda/attention.h"
#include "ops/cuda/attention_tiles.h"

namespace lockstep::ops {
namespace {

// Backward after Dao, "FlashAttention-2" (2023), in two kernels, so that every gradient is summed in
// registers, in one order, and no memory is added to by several blocks. In the one a block owns keys and
// meets the queries that see them; it makes the gradients of keys and values. In the other a block owns
// queries and meets their keys; it makes the gradient of queries. Both compute the weights again, seven
// products in place of five, and are one template: with weights P = exp(scale q k - log_sum_exp), dropout
// factors F and D = sum(dO O) per query,
//
//                  owned rows   met rows   products                    sums
//   owns keys      K, V         Q, dO      S^T = K Q^T, dP^T = V dO^T  dK += dS^T Q, dV += (P F)^T dO
//   owns queries   Q, dO        K, V       S = Q K^T,   dP = dO V^T    dQ += dS K
//
// with dS = P (F dP - D), times scale at the end. A warp owns 16 rows; the accumulators of its products are,
// packed, the left factors of its sums: no weights pass through shared memory. Each kernel moves, at the
// least, a head's query, key, value, gradient of the output and its results once.
constexpr int kMet = 64;  // rows of a tile

template <class T, int kHead, bool kOwnsKeys>
struct Layout {
  using Tile = AttentionTile<T, kHead>;
  static constexpr int kOwned = kHead <= 64 ? 128 : 64;
  static constexpr int kThreads = kOwned / 16 * device::kWarpSize;
  // The owned rows; two stages of met rows; for met queries, two stages of their log-sum-exps and dots.
  static constexpr int kMetPlace = 2 * kOwned * kHead, kStatisticsPlace = kMetPlace + 4 * kMet * kHead;
  static constexpr size_t kSharedBytes = kStatisticsPlace * sizeof(T) + 2 * 2 * kMet * sizeof(float);

  __device__ static Tile owned(int which) { return {which * kOwned * kHead}; }
  __device__ static Tile met(int which, int round) {
    return {kMetPlace + (round % 2 * 2 + which) * kMet * kHead};
  }
  /// Log-sum-exps, or dots, of a tile of met queries.
  __device__ static float* statistics(int which, int round) {
    return reinterpret_cast<float*>(device::dynamic_shared<T>() + kStatisticsPlace) +
           (round % 2 * 2 + which) * kMet;
  }

  /// Queries and gradients of the output, or keys and values, from row `first` on.
  template <bool kQueries, int kRows>
  __device__ static void copy(Tile to_first, Tile to_second, const AttentionCall<T>& call,
                              const AttentionHead& head, int first) {
    const int channels = call.channels(), stride = call.stride();
    if constexpr (kQueries) {
      to_first.template copy_from<kRows, kThreads>(call.qkv + head.query, stride, first, call.positions);
      to_second.template copy_from<kRows, kThreads>(call.output_gradient + head.output, channels, first,
                                                    call.positions);
    } else {
      to_first.template copy_from<kRows, kThreads>(call.qkv + head.key, stride, first, call.positions);
      to_second.template copy_from<kRows, kThreads>(call.qkv + head.value, stride, first, call.positions);
    }
  }
  __device__ static void copy_owned(const AttentionCall<T>& call, const AttentionHead& head, int first) {
    copy<!kOwnsKeys, kOwned>(owned(0), owned(1), call, head, first);
  }
  __device__ static void copy_met(int round, int tile, const AttentionCall<T>& call,
                                  const AttentionHead& head) {
    copy<kOwnsKeys, kMet>(met(0, round), met(1, round), call, head, tile * kMet);
    const int thread = static_cast<int>(threadIdx.x), which = thread / kMet, i = thread % kMet;
    if (kOwnsKeys && which < 2) {
      // Queries beyond the last position are zeros in everything: they add P 0 to dV and P (F 0 - 0) Q to dK.
      const bool inside = tile * kMet + i < call.positions;
      const float* from =
          (which == 0 ? call.log_sum_exp : call.dots) + head.row + (inside ? tile * kMet + i : 0);
      device::copy_async<4>(statistics(which, round) + i, from, inside);
    }
    device::commit_copies();
  }
};

/// c = owned met^T, for 16 owned rows.
template <class T, int kHead, bool kHeld>
__device__ inline void multiply(float (&c)[kMet / 8][4], uint32_t (&held)[kHeld ? kHead / 16 : 1][4],
                                AttentionTile<T, kHead> owned, int row, AttentionTile<T, kHead> met) {
#pragma unroll
  for (int k = 0; k < kHead / 16; ++k) {
    if (!kHeld) owned.load_a(held[0], row, k);
#pragma unroll
    for (int n = 0; n < kMet / 16; ++n) {
      uint32_t b[4];
      met.load_b(b, n * 16, k);
      device::multiply_add<T>(c[2 * n], held[kHeld ? k : 0], b[0], b[1]);
      device::multiply_add<T>(c[2 * n + 1], held[kHeld ? k : 0], b[2], b[3]);
    }
  }
}

/// sum += weights met, for a warp's accumulators as weights.
template <class T, int kHead>
__device__ inline void add_product(float (&sum)[kHead / 8][4], const float (&weights)[kMet / 8][4],
                                   AttentionTile<T, kHead> met) {
#pragma unroll
  for (int k = 0; k < kMet / 16; ++k) {
    uint32_t a[4];
    pack_accumulators<T>(a, weights[2 * k], weights[2 * k + 1]);
#pragma unroll
    for (int n = 0; n < kHead / 16; ++n) {
      uint32_t b[4];
      met.load_b_by_rows(b, k * 16, n);
      device::multiply_add<T>(sum[2 * n], a, b[0], b[1]);
      device::multiply_add<T>(sum[2 * n + 1], a, b[2], b[3]);
    }
  }
}

/// The head of member `member` of a group whose first is `first`, at `unit`.
template <class T>
__device__ inline AttentionHead head_of(const AttentionCall<T>& call, unsigned unit, unsigned member,
                                        const AttentionHead& first) {
  return member == 0 ? first : AttentionHead(call, unit + member);
}

template <class T, int kHead, bool kOwnsKeys, bool kDrops>
__global__ void __launch_bounds__(Layout<T, kHead, kOwnsKeys>::kThreads, kHead <= 64 ? 1 : 2)
    backward_kernel(AttentionCall<T> call, AttentionOrder order, float scale) {
  using Rows = Layout<T, kHead, kOwnsKeys>;
  constexpr bool kHeld =
      kHead <= 64;  // owned rows stay in registers; a wider head's are loaded for each tile again
  const AttentionOrder::Place block = order.of_block(blockIdx.x, blockIdx.y, blockIdx.z);
  if (!order.exists(block)) return;
  // A block that owns keys meets the queries of a group of heads, head after head.
  const unsigned members = kOwnsKeys ? static_cast<unsigned>(call.group) : 1;
  const AttentionHead head(call, block.unit * members);
  const float kept_scale = kDrops ? AttentionDropout(call, head).scale() : 1.0f;

  const int first_owned = static_cast<int>(block.tile) * Rows::kOwned;
  const int lane = static_cast<int>(threadIdx.x) % device::kWarpSize;
  const int warp_row = static_cast<int>(threadIdx.x) / device::kWarpSize * 16,
            warp_owned = first_owned + warp_row;
  const int last_owned = first_owned + Rows::kOwned - 1, last_position = call.positions - 1;
  const int first_tile = kOwnsKeys && call.causal ? first_owned / kMet : 0;
  const int last_tile =
      (kOwnsKeys || !call.causal || last_owned > last_position ? last_position : last_owned) / kMet;
  const int rounds = (last_tile - first_tile + 1) * static_cast<int>(members);

  Rows::copy_owned(call, head, first_owned);
  Rows::copy_met(0, first_tile, call, head);
  uint32_t held[2][kHeld ? kHead / 16 : 1][4];
  float sums[kOwnsKeys ? 2 : 1][kHead / 8][4] = {};
  float row_offset[2] = {}, row_dot[2] = {};  // of owned queries: log-sum-exp as a power of two, and D
  if (!kOwnsKeys)
    for (int half = 0; half < 2; ++half) {
      const int row = warp_owned + lane / 4 + 8 * half;
      row_offset[half] = row <= last_position ? call.log_sum_exp[head.row + row] * kLog2E : 0.0f;
      row_dot[half] = row <= last_position ? call.dots[head.row + row] : 0.0f;
    }

  int tile = first_tile;
  unsigned member = 0;
  for (int round = 0; round < rounds; ++round) {
    const int first_met = tile * kMet;
    const unsigned of_member = member;
    tile = tile < last_tile ? tile + 1 : first_tile;  // the next round's
    member += tile == first_tile ? 1 : 0;
    device::wait_for_copies<0>();
    // All copies of this tile have arrived, and nobody reads the one before, whose place the next one takes.
    __syncthreads();
    if (round + 1 < rounds)
      Rows::copy_met(round + 1, tile, call, head_of(call, block.unit * members, member, head));
    if (kHeld && round == 0)
#pragma unroll
      for (int k = 0; k < kHead / 16; ++k) {
        Rows::owned(0).load_a(held[0][kHeld ? k : 0], warp_row, k);
        Rows::owned(1).load_a(held[1][kHeld ? k : 0], warp_row, k);
      }
    // Nothing to do where no query sees a key, or the warp has no rows.
    if ((call.causal && (kOwnsKeys ? first_met + kMet - 1 < warp_owned : first_met > warp_owned + 15)) ||
        warp_owned > last_position)
      continue;

    float weights[kMet / 8][4] = {}, gradients[kMet / 8][4] = {};
    multiply<T, kHead, kHeld>(weights, held[0], {device::opaque(Rows::owned(0).first)}, warp_row,
                              Rows::met(0, round));
    multiply<T, kHead, kHeld>(gradients, held[1], {device::opaque(Rows::owned(1).first)}, warp_row,
                              Rows::met(1, round));
    const bool masked = kOwnsKeys ? call.causal && first_met < warp_owned + 15
                                  : first_met + kMet - 1 > call.last_seen(warp_owned);
    uint32_t kept = ~0u;
    if constexpr (kDrops) {
      const AttentionDropout dropout(call, head_of(call, block.unit * members, of_member, head));
      kept = kOwnsKeys ? kept_by_keys(dropout, warp_owned, first_met)
                       : kept_by_queries(dropout, warp_owned, first_met);
    }
#pragma unroll
    for (int n = 0; n < kMet / 8; ++n) {
      const int column = n * 8 + lane % 4 * 2;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float offset =
            kOwnsKeys ? Rows::statistics(0, round)[column + i % 2] * kLog2E : row_offset[i / 2];
        const float dot = kOwnsKeys ? Rows::statistics(1, round)[column + i % 2] : row_dot[i / 2];
        const int row = warp_owned + lane / 4 + i / 2 * 8, met = first_met + column + i % 2;
        const bool hidden = masked && (kOwnsKeys ? row > met : met > call.last_seen(row));
        const float weight =
            hidden ? 0.0f : device::fast_exp2(std::fma(weights[n][i], scale * kLog2E, -offset));
        const bool keep = kept >> (4 * n + i) & 1u;
        gradients[n][i] = hidden ? 0.0f : weight * std::fma(gradients[n][i], keep ? kept_scale : 0.0f, -dot);
        weights[n][i] = keep ? weight : 0.0f;
      }
    }
    add_product<T, kHead>(sums[0], gradients, Rows::met(0, round));
    if constexpr (kOwnsKeys) add_product<T, kHead>(sums[1], weights, Rows::met(1, round));
  }

  // The warp's own rows make room for its results, which then leave in whole rows.
  __syncwarp();
  Rows::owned(0).store(sums[0], warp_row, scale, scale);
  if constexpr (kOwnsKeys) Rows::owned(1).store(sums[1], warp_row, kept_scale, kept_scale);
  __syncwarp();
  Rows::owned(0).template copy_to<16>(call.qkv_gradient + (kOwnsKeys ? head.key : head.query), call.stride(),
                                      warp_row, warp_owned, call.positions);
  if constexpr (kOwnsKeys)
    Rows::owned(1).template copy_to<16>(call.qkv_gradient + head.value, call.stride(), warp_row, warp_owned,
                                        call.positions);
}

template <int kHead, bool kOwnsKeys, class T>
void launch_backward(const AttentionCall<T>& call, device::Stream& stream) {
  using Rows = Layout<T, kHead, kOwnsKeys>;
  // The first keys are seen by the most queries, and the last queries see the most keys.
  const AttentionOrder order =
      order_of(call, Rows::kOwned, kOwnsKeys, kOwnsKeys ? HeaviestTiles::first : HeaviestTiles::last);
  const device::Grid grid{
      .blocks = blocks_of(order), .threads = Rows::kThreads, .shared_bytes = Rows::kSharedBytes};
  if (call.dropout > 0) {
    device::launch(stream, grid, backward_kernel<T, kHead, kOwnsKeys, true>, call, order, call.scale());
  } else {
    device::launch(stream, grid, backward_kernel<T, kHead, kOwnsKeys, false>, call, order, call.scale());
  }
}

template <int kHead, class T>
void launch_both(const AttentionCall<T>& call, device::Stream& stream) {
  launch_backward<kHead, true>(call, stream);
  launch_backward<kHead, false>(call, stream);
}

}  // namespace

template <class T>
void attention_backward(const AttentionCall<T>& call, device::Stream& stream) {
  switch (call.head_size) {
    case 32:
      return launch_both<32>(call, stream);
    case 64:
      return launch_both<64>(call, stream);
    default:
      return launch_both<128>(call, stream);
  }
}

template void attention_backward(const AttentionCall<bfloat16>&, device::Stream&);
template void attention_backward(const AttentionCall<float16>&, device::Stream&);

}  // namespace lockstep::ops
