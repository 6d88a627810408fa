#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include "ops/op_testing.h"

namespace lockstep::testing {

inline std::vector<float> random_floats(int64_t count, uint32_t stream) {
  const std::vector<double> drawn = random_values(count, stream);
  return {drawn.begin(), drawn.end()};
}

inline std::vector<uint32_t> bits_of(const std::vector<float>& values) {
  std::vector<uint32_t> bits;
  for (const float value : values) bits.push_back(std::bit_cast<uint32_t>(value));
  return bits;
}

/// The canonical tree over [begin, end), written down as its definition: split at the largest power of two
/// below the length.
template <class Leaf>
float tree_sum(int begin, int end, const Leaf& leaf) {
  if (end - begin == 1) return leaf(begin);
  int half = 1;
  while (2 * half < end - begin) half *= 2;
  const float left = tree_sum(begin, begin + half, leaf), right = tree_sum(begin + half, end, leaf);
  return left + right;
}

/// A chain of fused multiply-adds from `start` on: term(i) returns the two factors.
template <class Term>
float chain(int64_t begin, int64_t end, const Term& term, float start = 0) {
  for (int64_t i = begin; i < end; ++i) {
    const auto [a, b] = term(i);
    start = std::fma(a, b, start);
  }
  return start;
}

}  // namespace lockstep::testing
