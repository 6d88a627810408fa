#pragma once

#include <cstdint>

#include "base/philox.h"
#include "data/sample_key.h"

namespace lockstep::data {

/// The random numbers of one transform for one sample in one epoch: a pure function of seed, epoch, sample
/// and the transform's place in the list. REQUIRES: places below 256, numbers below 65,536.
class SampleDraws {
 public:
  SampleDraws(const SampleKey& key, uint32_t place) : key_(key), place_(place) {}

  /// Number `index` in [0, 1), with 53 random bits.
  double uniform(uint32_t index) const {
    const auto block = at(index);
    return static_cast<double>((uint64_t{block.word[0]} << 21) ^ (block.word[1] >> 11)) * 0x1p-53;
  }
  double uniform(uint32_t index, double low, double high) const {
    return low + (high - low) * uniform(index);
  }
  /// Uniform in [0, bound). REQUIRES: 0 < bound < 2^32.
  int64_t below(uint32_t index, int64_t bound) const {
    return static_cast<int64_t>((uint64_t{at(index).word[0]} * static_cast<uint64_t>(bound)) >> 32);
  }
  bool chance(uint32_t index, double probability) const { return uniform(index) < probability; }

 private:
  Philox::Block at(uint32_t index) const {
    const auto sample = static_cast<uint64_t>(key_.sample);
    const auto high = static_cast<uint32_t>(sample >> 32);  // no data set has 2^40 samples
    return Philox::generate(
        Philox::Block{{static_cast<uint32_t>(sample), static_cast<uint32_t>(key_.epoch),
                       high << 24 | place_ << 16 | index, static_cast<uint32_t>(RandomPurpose::transforms)}},
        key_.seed);
  }

  SampleKey key_;
  uint32_t place_;
};

}  // namespace lockstep::data
