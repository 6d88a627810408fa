#pragma once

#include <array>
#include <cstdint>

#include "base/host_device.h"

namespace lockstep {

/// Philox4x32-10, the counter-based generator of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3"
/// (SC 2011). A pure function of (counter, key): the same numbers on every thread, rank and device.
struct Philox {
  struct Block {
    uint32_t word[4];
  };

  LOCKSTEP_HOST_DEVICE static Block generate(Block counter, uint64_t key) {
    uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
    for (int round = 0; round < 10; ++round) {
      const uint64_t p0 = uint64_t{0xD2511F53u} * counter.word[0];
      const uint64_t p1 = uint64_t{0xCD9E8D57u} * counter.word[2];
      counter = Block{{static_cast<uint32_t>(p1 >> 32) ^ counter.word[1] ^ k0, static_cast<uint32_t>(p1),
                       static_cast<uint32_t>(p0 >> 32) ^ counter.word[3] ^ k1, static_cast<uint32_t>(p0)}};
      k0 += 0x9E3779B9u;
      k1 += 0xBB67AE85u;
    }
    return counter;
  }

  /// Uniform in [0, 1), with 24 random bits.
  LOCKSTEP_HOST_DEVICE static float uniform(uint32_t word) {
    return static_cast<float>(word >> 8) * 0x1p-24f;
  }
};

/// What a stream of random numbers is for. Streams with different purposes never share numbers; neither do
/// the ops of one graph, which take `op` below as their number in graph order.
enum class RandomPurpose : uint32_t {
  initialization = 1,
  dropout = 2,
  sample_order = 3,
  data_generation = 4,
  transforms = 5,
  text_generation = 6
};

/// Standard normal number `index` of stream (`seed`, `purpose`, `stream`), by Box-Muller in double precision.
double philox_normal(uint64_t seed, RandomPurpose purpose, uint32_t stream, uint64_t index);
/// Uniform number in [0, 1) `index` of stream (`seed`, `purpose`, `stream`).
double philox_uniform(uint64_t seed, RandomPurpose purpose, uint32_t stream, uint64_t index);

}  // namespace lockstep
