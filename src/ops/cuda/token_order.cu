#include <bit>

#include "base/ensure.h"
#include "device/cuda/kernel.h"
#include "ops/cuda/token_order.h"

namespace lockstep::ops {
namespace {

// A radix sort from the lowest digit up. Each pass has three kernels:
//   count_kernel    digits of each tile of keys
//   offsets_kernel  running sums over (digit, tile): where in the order the tile's keys with that digit go
//   move_kernel     moves keys there, those of one digit in the order they had
// Nine bits make two passes of vocabularies below 262,144; with 65,536 tokens it is six short kernels.
constexpr int kDigitBits = 9;
constexpr int kDigits = 1 << kDigitBits;
constexpr int kThreads = 256, kWarps = kThreads / device::kWarpSize;
constexpr int kRounds = 8;                              // keys of a thread
constexpr int64_t kTile = int64_t{kThreads} * kRounds;  // keys of a block; a warp's follow each other
constexpr int kScanThreads = 1024;

struct Keys {
  const int32_t* tokens;
  const int32_t* positions;  // null before the first pass: a key's position is its place
  int64_t count;
  int vocabulary, shift;

  __device__ int32_t token(int64_t i) const {
    const int32_t token = tokens[i];
    return token < 0 || token > vocabulary ? vocabulary : token;
  }
};

/// Adds the digits of a warp's keys to counts[digit], and tells each thread how many of the warp's earlier
/// keys had its digit. REQUIRES: the counts are 0, seen by the warp.
__device__ void count_digits(const Keys& keys, int* counts, int (&digit)[kRounds], int (&before)[kRounds]) {
  const int lane = static_cast<int>(threadIdx.x) % device::kWarpSize,
            warp = static_cast<int>(threadIdx.x) / device::kWarpSize;
  const int64_t first = blockIdx.x * kTile + int64_t{warp} * kRounds * device::kWarpSize;
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    const int64_t i = first + round * device::kWarpSize + lane;
    digit[round] = i < keys.count ? (keys.token(i) >> keys.shift) % kDigits : kDigits;
  }
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    const unsigned same = __match_any_sync(device::kFullWarp, digit[round]);
    const bool counts_here = digit[round] < kDigits;
    const int earlier_lanes = __popc(same & ((1u << lane) - 1));
    const int earlier_rounds = counts_here ? counts[digit[round]] : 0;
    before[round] = earlier_rounds + earlier_lanes;
    __syncwarp();
    if (counts_here && earlier_lanes == 0) counts[digit[round]] = earlier_rounds + __popc(same);
    __syncwarp();
  }
}

__device__ void clear(int (&counts)[kWarps][kDigits]) {
  for (int i = static_cast<int>(threadIdx.x); i < kWarps * kDigits; i += kThreads)
    counts[i / kDigits][i % kDigits] = 0;
  __syncthreads();
}

__global__ void __launch_bounds__(kThreads) count_kernel(Keys keys, int* tile_counts) {
  __shared__ int counts[kWarps][kDigits];
  clear(counts);
  int digit[kRounds], before[kRounds];
  count_digits(keys, counts[threadIdx.x / device::kWarpSize], digit, before);
  __syncthreads();
  for (int d = static_cast<int>(threadIdx.x); d < kDigits; d += kThreads) {
    int sum = 0;
    for (int warp = 0; warp < kWarps; ++warp) sum += counts[warp][d];
    tile_counts[int64_t{d} * gridDim.x + blockIdx.x] = sum;
  }
}

/// Replaces each number by the sum of those before it; one block.
__global__ void __launch_bounds__(kScanThreads) offsets_kernel(int* numbers, int64_t count) {
  __shared__ int warp_sums[kScanThreads / device::kWarpSize];
  const int thread = static_cast<int>(threadIdx.x), lane = thread % device::kWarpSize,
            warp = thread / device::kWarpSize;
  const int64_t share = (count + kScanThreads - 1) / kScanThreads, begin = thread * share,
                end = begin + share < count ? begin + share : count;
  int sum = 0;
  for (int64_t i = begin; i < end; ++i) sum += numbers[i];
  int up_to_here = sum;
  for (int delta = 1; delta < device::kWarpSize; delta *= 2) {
    const int other = __shfl_up_sync(device::kFullWarp, up_to_here, static_cast<unsigned>(delta));
    if (lane >= delta) up_to_here += other;
  }
  if (lane == device::kWarpSize - 1) warp_sums[warp] = up_to_here;
  __syncthreads();
  int before = up_to_here - sum;
  for (int w = 0; w < warp; ++w) before += warp_sums[w];
  for (int64_t i = begin; i < end; ++i) {
    const int number = numbers[i];
    numbers[i] = before;
    before += number;
  }
}

__global__ void __launch_bounds__(kThreads)
    move_kernel(Keys keys, const int* offsets, int32_t* tokens, int32_t* positions) {
  __shared__ int counts[kWarps][kDigits];
  clear(counts);
  const int lane = static_cast<int>(threadIdx.x) % device::kWarpSize,
            warp = static_cast<int>(threadIdx.x) / device::kWarpSize;
  int digit[kRounds], before[kRounds];
  count_digits(keys, counts[warp], digit, before);
  __syncthreads();
  // Counts become the places of warps' first keys.
  for (int d = static_cast<int>(threadIdx.x); d < kDigits; d += kThreads) {
    int place = offsets[int64_t{d} * gridDim.x + blockIdx.x];
    for (int w = 0; w < kWarps; ++w) {
      const int count = counts[w][d];
      counts[w][d] = place;
      place += count;
    }
  }
  __syncthreads();
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    if (digit[round] == kDigits) continue;
    const int64_t i = blockIdx.x * kTile + (int64_t{warp} * kRounds + round) * device::kWarpSize + lane;
    const int place = counts[warp][digit[round]] + before[round];
    tokens[place] = keys.token(i);
    positions[place] = keys.positions == nullptr ? static_cast<int32_t>(i) : keys.positions[i];
  }
}

int64_t tiles_of(int64_t count) { return count <= kTile ? 1 : (count + kTile - 1) / kTile; }
int64_t aligned(int64_t bytes) { return (bytes + 255) / 256 * 256; }

}  // namespace

int64_t token_order_bytes(int64_t count) {
  return 4 * aligned(count * int64_t{sizeof(int32_t)}) +
         aligned(kDigits * tiles_of(count) * int64_t{sizeof(int)});
}

TokenOrder launch_token_order(device::Stream& stream, const int32_t* tokens, int64_t count,
                              int64_t vocabulary, void* workspace) {
  ensure(count < int64_t{1} << 31 && vocabulary < int64_t{1} << 31, "more tokens than 31 bits count");
  auto* place = static_cast<std::byte*>(workspace);
  int32_t *sorted_tokens[2], *sorted_positions[2];
  for (auto* arrays : {sorted_tokens, sorted_positions})
    for (int side = 0; side < 2; ++side, place += aligned(count * int64_t{sizeof(int32_t)}))
      arrays[side] = reinterpret_cast<int32_t*>(place);
  auto* offsets = reinterpret_cast<int*>(place);

  const auto tiles = static_cast<unsigned>(tiles_of(count));
  const int bits = std::bit_width(static_cast<uint64_t>(vocabulary));
  Keys keys{tokens, nullptr, count, static_cast<int>(vocabulary), 0};
  for (int side = 0; keys.shift < bits; keys.shift += kDigitBits, side = 1 - side) {
    device::launch(stream, {.blocks = tiles, .threads = kThreads}, count_kernel, keys, offsets);
    device::launch(stream, {.blocks = 1, .threads = kScanThreads}, offsets_kernel, offsets,
                   int64_t{kDigits} * tiles);
    device::launch(stream, {.blocks = tiles, .threads = kThreads}, move_kernel, keys, offsets,
                   sorted_tokens[side], sorted_positions[side]);
    keys.tokens = sorted_tokens[side];
    keys.positions = sorted_positions[side];
  }
  return {keys.tokens, keys.positions};
}

}  // namespace lockstep::ops
