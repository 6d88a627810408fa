#pragma once

// Tiles of two-byte numbers in shared memory: rows of one head, copied from device memory 16 bytes at a time,
// and read as fragments of matrix products. The 16-byte chunks of a row are permuted by the row's number, so
// that eight rows at the same column lie in different banks: neither the copies nor the fragments' loads
// conflict.

#include <bit>

#include "device/cuda/matrix_units.h"
#include "ops/cuda/attention.h"

namespace lockstep::ops {

template <class T, int kHead>
struct AttentionTile {
  static_assert(sizeof(T) == 2 && kHead % 16 == 0);
  static constexpr int kChunks = kHead / 8;
  // Shared memory's 32 banks are 8 chunks wide.
  static constexpr int kPermuted = kChunks < 8 ? kChunks : 8, kRowsPerLine = 8 / kPermuted;

  int first;  // element of the block's dynamic shared memory; a multiple of kHead

  /// Element 8 chunk of a row.
  __device__ T* at(int row, int chunk) const {
    return device::dynamic_shared<T>() + first + place(row, chunk);
  }

  /// Starts to copy rows first ... first + kRows - 1 of a tensor; zeros from row `end` on. All kThreads call
  /// it.
  template <int kRows, int kThreads>
  __device__ void copy_from(const T* from, int stride, int first, int end) const {
    static_assert(kRows * kChunks % kThreads == 0 && kThreads % kChunks == 0);
    const int chunk = static_cast<int>(threadIdx.x) % kChunks;
#pragma unroll
    for (int i = 0; i < kRows * kChunks / kThreads; ++i) {
      const int row = static_cast<int>(threadIdx.x) / kChunks + i * (kThreads / kChunks);
      const bool inside = first + row < end;
      device::copy_async<16>(
          at(row, chunk), from + static_cast<int64_t>(inside ? first + row : 0) * stride + chunk * 8, inside);
    }
  }

  // Fragments of 16×16 pieces: rows row ... row + 15, a multiple of 16, and columns 16 k ... 16 k + 15. What
  // lane l addresses follows from the order of the four 8×8 matrices in the fragments of m16n8k16.

  /// As A.
  __device__ void load_a(uint32_t (&a)[4], int row, int k) const {
    const int lane = static_cast<int>(threadIdx.x) % device::kWarpSize;
    device::load_matrices(a, piece(place(lane % 16, lane / 16), row, k));
  }
  /// The rows as the columns of two Bs: registers 0, 1 and 2, 3.
  __device__ void load_b(uint32_t (&b)[4], int row, int k) const {
    const int lane = static_cast<int>(threadIdx.x) % device::kWarpSize;
    device::load_matrices(b, piece(place(lane / 16 * 8 + lane % 8, lane / 8 % 2), row, k));
  }
  /// The rows as the rows of two Bs, the first of which has the left eight columns.
  __device__ void load_b_by_rows(uint32_t (&b)[4], int row, int k) const {
    const int lane = static_cast<int>(threadIdx.x) % device::kWarpSize;
    device::load_transposed(b, piece(place(lane % 16, lane / 16), row, k));
  }

  /// Writes an accumulator of 16 rows, times a factor for its upper and lower eight.
  __device__ void store(const float (&c)[kHead / 8][4], int row, float upper_factor,
                        float lower_factor) const {
    const int lane = static_cast<int>(threadIdx.x) % device::kWarpSize;
#pragma unroll
    for (int n = 0; n < kHead / 8; ++n) {
      store_two(at(row + lane / 4, n) + lane % 4 * 2,
                device::pack_two<T>(c[n][0] * upper_factor, c[n][1] * upper_factor));
      store_two(at(row + 8 + lane / 4, n) + lane % 4 * 2,
                device::pack_two<T>(c[n][2] * lower_factor, c[n][3] * lower_factor));
    }
  }
  /// Copies rows row ... row + kRows - 1 to rows first ... of a tensor, as far as those are before `end`. One
  /// warp calls it.
  template <int kRows>
  __device__ void copy_to(T* to, int stride, int row, int first, int end) const {
    const int lane = static_cast<int>(threadIdx.x) % device::kWarpSize, chunk = lane % kChunks;
#pragma unroll
    for (int r = lane / kChunks; r < kRows; r += device::kWarpSize / kChunks)
      if (first + r < end)
        *reinterpret_cast<device::Pack<T, 8>*>(to + static_cast<int64_t>(first + r) * stride + chunk * 8) =
            *reinterpret_cast<const device::Pack<T, 8>*>(at(row + r, chunk));
  }

 private:
  __device__ static int place(int row, int chunk) {
    return row * kHead + (chunk ^ (row / kRowsPerLine % kPermuted)) * 8;
  }
  /// The place within piece (0, 0) moved to piece (row, k). Sixteen rows permute alike, and the bits of k are
  /// not carried into: one exclusive or, and a constant that the load adds. Since `first` takes part, a loop
  /// over tiles does not keep all the addresses of a tile in registers.
  __device__ const T* piece(int place_in_piece, int row, int k) const {
    return device::dynamic_shared<T>() + ((first + place_in_piece) ^ (k * 16)) + row * kHead;
  }
  __device__ static void store_two(T* to, uint32_t packed) {
    *reinterpret_cast<device::Pack<T, 2>*>(to) = std::bit_cast<device::Pack<T, 2>>(packed);
  }
};

/// The accumulators of two neighbouring products of 8 columns as a fragment A of 16 columns: the lanes hold
/// what they need.
template <class T>
__device__ inline void pack_accumulators(uint32_t (&a)[4], const float (&left)[4], const float (&right)[4]) {
  a[0] = device::pack_two<T>(left[0], left[1]);
  a[1] = device::pack_two<T>(left[2], left[3]);
  a[2] = device::pack_two<T>(right[0], right[1]);
  a[3] = device::pack_two<T>(right[2], right[3]);
}

// Which weights of 16 rows and 64 columns of accumulators dropout keeps: bit 4 n + i for element i of the
// lane in the n-th eight columns. The lanes that hold a group of four keys share the work of drawing its
// numbers. The loops stay loops, or the generator's registers would be needed eight times over.

/// Rows are queries: two neighbouring lanes hold the halves of a group, in two rows; each draws for one row.
__device__ inline uint32_t kept_by_queries(const AttentionDropout& dropout, int first_query, int first_key) {
  const int lane = static_cast<int>(threadIdx.x) % device::kWarpSize, odd = lane % 2;
  uint32_t all = 0;
#pragma unroll 1
  for (int n = 0; n < 8; ++n) {
    uint32_t kept = dropout.kept(first_query + lane / 4 + 8 * odd, first_key / 4 + 2 * n + lane % 4 / 2)
                    << (4 * odd);
    kept |= __shfl_xor_sync(device::kFullWarp, kept, 1);
    kept >>= 2 * odd;
    all |= ((kept & 3u) | (kept >> 2 & 12u)) << (4 * n);
  }
  return all;
}

/// Rows are keys: four lanes hold a group, and again one eight keys below, of the same two queries; each
/// draws for one query and one group.
__device__ inline uint32_t kept_by_keys(const AttentionDropout& dropout, int first_key, int first_query) {
  const int lane = static_cast<int>(threadIdx.x) % device::kWarpSize, member = lane / 4 % 4;
  const int group = first_key / 4 + lane / 16 + member / 2 * 2;
  uint32_t all = 0;
#pragma unroll 1
  for (int n = 0; n < 8; ++n) {
    uint32_t kept = dropout.kept(first_query + 8 * n + lane % 4 * 2 + member % 2, group) << (4 * member);
    kept |= __shfl_xor_sync(device::kFullWarp, kept, 4);
    kept |= __shfl_xor_sync(device::kFullWarp, kept, 8);
    kept >>= member;
    all |= ((kept & 1u) | (kept >> 3 & 2u) | (kept >> 6 & 4u) | (kept >> 9 & 8u)) << (4 * n);
  }
  return all;
}

}  // namespace lockstep::ops
