#pragma once

#include <cstdint>

#include "data/sample_key.h"

namespace lockstep::data {

/// Maps positions of the stream that a run reads to samples. Positions count samples from the start of the
/// run and never end. It is a pure function: any rank computes any position in constant time and memory.
class SampleOrder {
 public:
  /// Epoch after epoch; the epoch is position / dataset_size. File order, or a different permutation for each
  /// (seed, epoch). REQUIRES: dataset_size > 0.
  SampleOrder(uint64_t seed, int64_t dataset_size, bool shuffle);
  /// Each sample once, in file order, then padding without end.
  static SampleOrder once(int64_t dataset_size);

  static constexpr int64_t kPadding = -1;
  /// In [0, dataset_size), or kPadding. REQUIRES: position >= 0.
  int64_t sample(int64_t position) const;
  /// The same, with the epoch and the seed from which its random numbers are drawn.
  SampleKey key(int64_t position) const {
    return {sample(position), kind_ == Kind::once ? 0 : position / size_, seed_};
  }

 private:
  enum class Kind { shuffled, in_order, once };
  SampleOrder(uint64_t seed, int64_t dataset_size, Kind kind);
  uint64_t permute(uint64_t index, uint64_t epoch) const;

  uint64_t seed_;
  int64_t size_;
  Kind kind_;
  uint32_t low_bits_, high_bits_;  // the halves of an index, as the Feistel network sees it
};

}  // namespace lockstep::data
