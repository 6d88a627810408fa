#pragma once

// device/cuda/matrix_units.h for the emulated GPU. Written from the PTX ISA's description of each instruction
// alone, not from how kernels use them.

#include <array>
#include <bit>
#include <cstdint>

#include "base/ensure.h"
#include "base/half.h"
#include "base/index.h"
#include "device/emulated/cuda_language.h"

namespace lockstep::device {
namespace emulated {

// Where the elements of a lane lie, "Matrix Fragments for mma.m16n8k16 with floating point type": with
// groupID = lane / 4 and threadID_in_group = lane % 4, element i of a fragment, two in each register, the
// lower half first.
struct Place {
  int row, column;
};
constexpr Place place_in_a(int lane, int i) {
  const int group = lane >> 2, thread = lane % 4;
  return {(0 <= i && i < 2) || (4 <= i && i < 6) ? group : group + 8,
          i < 4 ? thread * 2 + (i & 1) : thread * 2 + (i & 1) + 8};
}
constexpr Place place_in_b(int lane, int i) {
  const int group = lane >> 2, thread = lane % 4;
  return {i < 2 ? thread * 2 + (i & 1) : thread * 2 + (i & 1) + 8, group};
}
constexpr Place place_in_c(int lane, int i) {
  const int group = lane >> 2, thread = lane % 4;
  return {i < 2 ? group : group + 8, thread * 2 + (i & 1)};
}

/// Who holds an element: the inverse of the above.
struct Holder {
  int lane = -1, element = -1;
};
template <int kRows, int kColumns>
using Holders = std::array<std::array<Holder, kColumns>, kRows>;

template <int kRows, int kColumns, int kElements>
constexpr Holders<kRows, kColumns> holders(Place (*place)(int lane, int i)) {
  Holders<kRows, kColumns> all{};
  for (int lane = 0; lane < 32; ++lane)
    for (int i = 0; i < kElements; ++i) {
      const Place at = place(lane, i);
      nth(nth(all, at.row), at.column) = {lane, i};
    }
  return all;
}
inline constexpr Holders<16, 16> kHoldersOfA = holders<16, 16, 8>(place_in_a);
inline constexpr Holders<16, 8> kHoldersOfB = holders<16, 8, 4>(place_in_b);

template <class T>
float element_of(const Words& words, size_t first_word, int element) {
  const auto e = static_cast<size_t>(element);
  T value;
  value.bits = static_cast<uint16_t>(words[first_word + e / 4] >> (16 * (e % 4)));
  return static_cast<float>(value);
}

/// What ldmatrix gives: register r of lane l holds two elements of matrix r, whose rows' addresses lanes 8r
/// ... 8r + 7 gave: of row l / 4 the columns 2 (l % 4) and the next; transposed, of column l / 4 the rows 2
/// (l % 4) and the next.
inline void load_fragments(uint32_t (&to)[4], const void* row, bool transposed) {
  ensure(reinterpret_cast<uintptr_t>(row) % 16 == 0, "ldmatrix: rows must be aligned to 16 bytes");
  const WordsOfWarp& rows = exchange_words({reinterpret_cast<uintptr_t>(row)});
  const auto at = [&](int matrix, int r, int column) {
    uint16_t bits;
    std::memcpy(&bits, reinterpret_cast<const std::byte*>(nth(rows, 8 * matrix + r)[0]) + 2 * column, 2);
    return uint32_t{bits};
  };
  const int group = lane() / 4, pair = 2 * (lane() % 4);
  for (int matrix = 0; matrix < 4; ++matrix)
    to[matrix] = transposed ? at(matrix, pair, group) | at(matrix, pair + 1, group) << 16
                            : at(matrix, group, pair) | at(matrix, group, pair + 1) << 16;
  // Who goes on may write to the rows.
  meet_warp(~0u);
}

}  // namespace emulated

template <class T>
void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  const auto joined = [](uint32_t low, uint32_t high) { return uint64_t{high} << 32 | low; };
  const emulated::WordsOfWarp& warp =
      emulated::exchange_words({joined(a[0], a[1]), joined(a[2], a[3]), joined(b0, b1)});
  for (int i = 0; i < 4; ++i) {
    const auto [row, column] = emulated::place_in_c(emulated::lane(), i);
    for (size_t k = 0; k < 16; ++k) {
      const emulated::Holder in_a = nth(emulated::kHoldersOfA, row)[k];
      const emulated::Holder in_b = nth(emulated::kHoldersOfB[k], column);
      c[i] = std::fma(emulated::element_of<T>(nth(warp, in_a.lane), 0, in_a.element),
                      emulated::element_of<T>(nth(warp, in_b.lane), 2, in_b.element), c[i]);
    }
  }
}

inline void load_matrices(uint32_t (&to)[4], const void* row) { emulated::load_fragments(to, row, false); }
inline void load_transposed(uint32_t (&to)[4], const void* row) { emulated::load_fragments(to, row, true); }

template <int kBytes>
void copy_async(void* shared, const void* from, bool wanted) {
  static_assert(kBytes == 4 || kBytes == 16);
  ensure(reinterpret_cast<uintptr_t>(shared) % kBytes == 0 && reinterpret_cast<uintptr_t>(from) % kBytes == 0,
         "cp.async: both addresses must be aligned to the size");
  emulated::start_copy(shared, wanted ? from : nullptr, kBytes);
}
inline void commit_copies() { emulated::end_group_of_copies(); }
template <int kGroupsLeft>
void wait_for_copies() {
  emulated::wait_for_copies(kGroupsLeft);
}

template <class T>
uint32_t pack_two(float low, float high) {
  return T(low).bits | uint32_t{T(high).bits} << 16;
}

inline int opaque(int value) { return value; }

}  // namespace lockstep::device
