#pragma once

// Which tile of which head each block of an attention kernel owns. Blocks start roughly in the order of the
// grid, x first, then y, then z, so that this order decides two things:
//
//  - What is read from memory. Every block of a head reads the head's other rows: keys and values, or queries
//    and gradients. Blocks of one head that run together share them in the GPU's L2 cache.
//  - How the kernel ends. Causal tiles differ in work by as much as a head has tiles. If heavy ones start
//    last, most of the GPU waits for them.
//
// Head after head would serve the first alone: with GPT-2's 8 tiles a head and 264 blocks at a time (forward
// on an H200), 768 heads would take 4 % longer than evenly spread work, 96 heads 37 %. All heaviest tiles
// first would serve the second alone: the GPU would read rows of 264 heads at a time, 69 MB, and each head's
// rows from memory once for each tile. So heads are taken in sections whose rows fit into L2 beside those of
// the section before, and within a section heavy tiles start first: 1.4 % and 20 %. (Reckoned by giving each
// next block to the multiprocessor that is free first, not measured.)

#include <algorithm>
#include <cstdint>

#include "base/host_device.h"

namespace lockstep::ops {

/// Which tiles of a head have the most work under a causal mask.
enum class HeaviestTiles { first, last };

class AttentionOrder {
 public:
  /// What blocks of one section read together. An H200's L2 holds 50 to 60 MB, but may keep two copies of
  /// what all multiprocessors read, and two sections run together when one follows the other.
  static constexpr int64_t kSectionBytes = 8 << 20;

  struct Place {
    unsigned unit;  ///< sample * heads + head
    unsigned tile;
  };

  /// `units`: samples times heads. `unit_bytes`: what the blocks of one of them read together.
  /// REQUIRES: units, tiles and unit_bytes are at least 1.
  AttentionOrder(unsigned units, unsigned tiles, HeaviestTiles heaviest, int64_t unit_bytes)
      : units_(units),
        tiles_(tiles),
        section_units_(
            static_cast<unsigned>(std::clamp<int64_t>(kSectionBytes / unit_bytes, 1, int64_t{units}))),
        last_first_(heaviest == HeaviestTiles::last) {}

  // The grid: units of a section, tiles of a unit, sections. In three dimensions, so that kernels neither
  // divide nor keep in registers what comes of it.
  unsigned section_units() const { return section_units_; }
  unsigned tiles() const { return tiles_; }
  unsigned sections() const { return (units_ + section_units_ - 1) / section_units_; }

  LOCKSTEP_HOST_DEVICE Place of_block(unsigned x, unsigned y, unsigned z) const {
    return {z * section_units_ + x, last_first_ ? tiles_ - 1 - y : y};
  }
  /// Whether a block owns something: the last section may have fewer units than the others.
  LOCKSTEP_HOST_DEVICE bool exists(const Place& place) const { return place.unit < units_; }

 private:
  unsigned units_, tiles_, section_units_;
  bool last_first_;
};

}  // namespace lockstep::ops
