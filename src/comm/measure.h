#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "comm/communicator.h"

namespace lockstep::comm {

/// Times of messages between rank 0 and another rank, in seconds: medians.
struct PairTimes {
  int peer = 1;
  double latency = 0;             ///< half of the round trip of a message of 8 bytes
  double one_way_per_byte = 0;    ///< of a long message
  double both_ways_per_byte = 0;  ///< per byte each way, for two long messages in opposite directions
  bool operator==(const PairTimes&) const = default;
};

/// The slowest rank's time to sum `bytes` of float32 over all ranks: the median, in seconds.
struct SumTime {
  int64_t bytes = 0;
  double seconds = 0;
  bool operator==(const SumTime&) const = default;
};

struct MeasureOptions {
  int64_t long_message_bytes = 4 << 20;
  double seconds = 0.2;  ///< for each figure, about; three repetitions at least
};

/// COLLECTIVE: measures rank 0 with each of `peers`, one after the other. The same on every rank. REQUIRES:
/// host memory.
std::vector<PairTimes> measure_pairs(Communicator& world, device::Stream& stream,
                                     const std::vector<int>& peers, const MeasureOptions& options = {});
/// COLLECTIVE: measures the communicator's all_reduce. The same on every rank. REQUIRES: host memory.
std::vector<SumTime> measure_sums(Communicator& world, device::Stream& stream,
                                  const std::vector<int64_t>& sizes_bytes,
                                  const MeasureOptions& options = {});

/// Seconds per byte that this thread takes to add one array of float32 to another, if both come from memory.
double measure_addition();
/// Bytes per second that this thread moves, to memory and from it, if it copies an array of so many bytes
/// again and again: the best of some milliseconds. Small arrays stay in caches.
double measure_copying(int64_t bytes);

}  // namespace lockstep::comm
