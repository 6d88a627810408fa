#pragma once

#include <cstdint>

namespace lockstep::data {

/// Which sample, and from where its random numbers are drawn: the same key gives the same bits on every
/// thread, rank and layout.
struct SampleKey {
  // A sample's number alone is the sample as it is in the first epoch of seed 0.
  SampleKey(int64_t number) : sample(number) {}  // NOLINT(google-explicit-constructor)
  SampleKey(int64_t number, int64_t in_epoch, uint64_t from_seed)
      : sample(number), epoch(in_epoch), seed(from_seed) {}

  int64_t sample;  ///< in [0, size) of the data set
  int64_t epoch = 0;
  uint64_t seed = 0;  ///< of the run
  bool operator==(const SampleKey&) const = default;
};

}  // namespace lockstep::data
