#pragma once

#include <cstdint>
#include <span>

#include "base/philox.h"

namespace lockstep {

// Many consecutive numbers of one stream, about ten times as fast as one by one and with the same bits as
// Philox::generate, philox_normal and philox_uniform, whatever the instruction set. A stream may be drawn in
// any pieces, on any threads.

/// Which stream of random numbers: what philox_normal and philox_uniform take besides an index.
struct PhiloxStream {
  uint64_t seed = 0;
  RandomPurpose purpose = RandomPurpose::initialization;
  uint32_t number = 0;
};

/// Consecutive blocks of a stream, word by word: word[w][b] is word w of block b.
struct PhiloxBlocks {
  static constexpr int64_t kCount = 128;  // 2 KiB: a caller's other arrays fit into the first-level cache too
  alignas(64) uint32_t word[4][kCount];
};

/// `count` blocks of `stream` from number `first` on; the rest of `blocks` is left in any state.
/// REQUIRES: 0 <= count <= PhiloxBlocks::kCount.
void draw_blocks(const PhiloxStream& stream, uint64_t first, int64_t count, PhiloxBlocks& blocks);

/// values[i] = scale * (normal number `first` + i of `stream`), in double precision, rounded to float.
/// REQUIRES: `scale` is finite.
void draw_normals(const PhiloxStream& stream, uint64_t first, float scale, std::span<float> values);

/// values[i] = scale * (2 u - 1) with u = uniform number `first` + i of `stream`, in double precision,
/// rounded to float.
void draw_uniforms(const PhiloxStream& stream, uint64_t first, float scale, std::span<float> values);

}  // namespace lockstep
