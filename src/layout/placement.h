#pragma once

#include <cstdint>
#include <vector>

#include "layout/byte_span.h"
#include "model/graph.h"
#include "model/partition.h"

namespace lockstep::layout {

/// The worker's number with its bits in reverse. Sums by halving, neighbours first, and shards must agree on
/// it: those who have the same low bits then lie next to each other. REQUIRES: `workers` is a power of two.
int reversed_bits(int worker, int workers);

/// What a checkpoint holds of one rank: bytes of a parameter, or of a slot of its optimizer state.
struct SavedPart {
  int parameter = 0;
  int slot = -1;   ///< -1: the parameter itself
  ByteSpan bytes;  ///< of the whole; parameters are saved whole
  bool operator==(const SavedPart&) const = default;
};
int64_t size_bytes_of(const std::vector<SavedPart>& share);

struct PlacementOptions {
  int workers = 1;
  int state_slots = 0;
  bool shard_optimizer = false;  ///< each worker updates a part of its own; otherwise all update everything
  bool reversed = false;         ///< shards lie in the order of the workers' bits reversed; see Placement
};

/// Who updates, holds and saves which bytes of a model: a pure function of graph, partition and layout, and
/// the one thing that everybody asks. Every worker holds all parameters. Optimizer state lies where it is
/// used, with whoever updates the parameter.
///
/// With a sharded optimizer each bucket is cut into one shard for each worker, on borders of 65,536-element
/// chunks of its parameters, so that sums of squares, hashes and shards agree on what they cut. Each cut is
/// made at the border that is nearest to where shares of equal bytes would end, and who has got less in the
/// buckets before gets more in the next. A worker's shards lie at its position: its own number or, for sums
/// that fold workers by halving (neighbours first), its number's bits reversed, since then those who still
/// have parts to exchange own neighbouring bytes.
class Placement {
 public:
  /// `graph` and `partition` must outlive it. REQUIRES: `reversed` only where the number of workers is a
  /// power of two.
  Placement(const model::Graph& graph, const model::Partition& partition, const PlacementOptions& options);

  int workers() const { return options_.workers; }
  bool shards_optimizer() const { return options_.shard_optimizer; }
  int position_of(int worker) const;
  /// Bytes of a segment's parameter buffer that the workers at positions [first, last) update. Without
  /// shards: all.
  ByteSpan updated(int segment, int first, int last) const;
  ByteSpan updated_by(int segment, int worker) const;
  /// Bytes of a segment's bucket with the gradients of what the workers at these positions update, ascending:
  /// of its own parameters, and of later uses of parameters that other segments own.
  std::vector<ByteSpan> gradients(int segment, int first, int last) const;
  /// Bytes of a parameter that a worker updates and whose optimizer state it holds.
  ByteSpan owned(int parameter, int worker) const;
  /// By worker, what it saves: parameters by ascending number, each whole and each once, then optimizer state
  /// by parameter and slot. A worker's list may be empty. Parameters, with their state where that is whole
  /// too, go to whoever has the fewest bytes so far, the largest first; parts of state to whoever holds them.
  std::vector<std::vector<SavedPart>> shares() const;

 private:
  struct Home {
    int segment = 0;
    int64_t offset = 0;  ///< in the segment's parameter buffer
  };
  int64_t size_bytes_of(int parameter) const;
  int slots_of(int parameter) const;

  const model::Graph& graph_;
  const model::Partition& partition_;
  PlacementOptions options_;
  std::vector<Home> homes_;  // by parameter
  std::vector<std::vector<int64_t>>
      cuts_;  // by segment: where the shard at each position begins, and the last ends
};

}  // namespace lockstep::layout
