#pragma once

#include <algorithm>
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

/// Ranks that follow each other.
struct RankRange {
  int first = 0, count = 0;
  int end() const { return first + count; }
  bool contains(int rank) const { return first <= rank && rank < end(); }
  bool operator==(const RankRange&) const = default;
};

struct PlacementOptions {
  int workers = 1;  ///< ranks from 0, which compute
  /// Of each replica of the model, of which each worker computes one, stage by stage: the replicas of one
  /// stage are neighbours. REQUIRES: divides `workers`. What a stage computes are the pieces of the partition
  /// whose number, modulo stages, is its own.
  int stages = 1;
  int state_slots = 0;
  /// Ranks that update: each byte is one owner's. None: all workers update everything that their stage
  /// computes. Owners that are no workers are servers, for all stages. Otherwise, with several stages, those
  /// of the first one, and as many of the first replicas of each other stage own what that computes.
  RankRange owners = {};
  bool reversed = false;  ///< shards lie in the order of the owners' bits reversed; see Placement
  bool whole = false;     ///< an owner has all of a parameter, or nothing
  int savers = 0;         ///< workers that save parameters, from the first on; 0: all
  /// Workers add later uses of a parameter to its first before anything meets, if all that their segment has
  /// of them belong to its own stage. What meets is then as large as the parameters, and sums associate in
  /// another way.
  bool ties_first = false;
};

/// Who updates, holds and saves which bytes of a model: a pure function of graph, partition and layout, and
/// the one thing that everybody asks. Every worker holds all parameters of its stage, a server those that it
/// owns. Optimizer state lies where it is used, with whoever updates the parameter.
///
/// A parameter belongs to the stage of its first use. Stages that use it again (tied weights) hold copies, of
/// the bytes of the owning segment's parameters from the first to the last that they use, and update nothing
/// of them.
///
/// With owners (a sharded optimizer: all workers; parameter servers: they) each bucket is cut into one shard
/// for each owner, on borders of 65,536-element chunks of its parameters, so that sums of squares, hashes and
/// shards agree on what they cut, or on borders of parameters. Each cut is made at the border that is nearest
/// to where shares of equal bytes would end, and who has got less in the buckets before gets more in the
/// next. An owner's shards lie at its position: its number among the owners or, for sums that fold workers by
/// halving (neighbours first), its number's bits reversed, since then those who still have parts to exchange
/// own neighbouring bytes.
class Placement {
 public:
  /// `graph` and `partition` must outlive it. REQUIRES: `reversed` only where all workers own, and their
  /// number in a stage is a power of two.
  Placement(const model::Graph& graph, const model::Partition& partition, const PlacementOptions& options);

  int workers() const { return options_.workers; }
  bool is_worker(int rank) const { return rank < options_.workers; }
  int stages() const { return options_.stages; }
  int replicas() const { return options_.workers / options_.stages; }
  /// REQUIRES: is_worker(rank).
  int stage_of(int rank) const { return rank / replicas(); }
  int replica_of(int rank) const { return rank % replicas(); }
  int rank_of(int stage, int replica) const { return stage * replicas() + replica; }
  int stage_of_segment(int segment) const { return partition_.piece_of(segment) % stages(); }
  /// Whether a worker runs a segment forward and backward.
  bool computes(int segment, int rank) const {
    return is_worker(rank) && stage_of_segment(segment) == stage_of(rank);
  }
  /// Whether a parameter lies on several stages.
  bool ties_stages() const;
  /// Whether the gradients of later uses that lie in this segment are added to those of the first before they
  /// meet those of other replicas; PlacementOptions::ties_first.
  bool is_tied_first(int segment) const;
  /// Of a segment's bucket what meets those of other replicas: bytes from its beginning on.
  int64_t summed_bytes(int segment) const;
  /// Whether a rank has all of the model's parameters.
  bool holds_all(int rank) const { return is_worker(rank) && stages() == 1; }
  bool has_owners() const { return owners().count > 0; }
  /// Where workers of several stages own, those of the first.
  const RankRange& owners() const { return options_.owners; }
  RankRange owners_of(int segment) const;
  bool owns(int rank) const;
  bool has_servers() const { return owners().end() > workers(); }
  /// Every worker owns a part, and nobody else does.
  bool all_workers_own() const { return owners() == RankRange{0, replicas()}; }
  int ranks() const { return std::max(workers(), owners().end()); }  ///< workers and servers
  int position_of(int owner) const;
  /// Bytes of a segment's parameters that its owners at positions [first, last) update. Without owners: all.
  ByteSpan updated(int segment, int first, int last) const;
  ByteSpan updated_by(int segment, int rank) const;
  /// Bytes of a segment's parameters that lie in a rank's memory.
  ByteSpan held(int segment, int rank) const;
  /// Bytes of a segment's bucket with the gradients of what owners at these positions update, ascending: of
  /// its own parameters, and of later uses of parameters that other segments, maybe of other stages, own,
  /// unless workers have added them to the first.
  std::vector<ByteSpan> gradients(int segment, int first, int last) const;
  /// Likewise those that lie in a rank's memory: of a worker all of segments that it computes, of a server
  /// those of what it updates.
  std::vector<ByteSpan> held_gradients(int segment, int rank) const;
  /// Bytes of a parameter that a rank updates and whose optimizer state it holds.
  ByteSpan owned(int parameter, int rank) const;
  /// Bytes of all parameters that a rank updates.
  int64_t owned_bytes(int rank) const;
  /// By rank, what it saves: parameters by ascending number, each whole and each once, then optimizer state
  /// by parameter and slot. A rank's list may be empty. Parameters, with their state where that is whole too,
  /// go to the worker of their stage that has the fewest bytes so far among those that save, the largest
  /// first; parts of state to whoever holds them.
  std::vector<std::vector<SavedPart>> shares() const;

 private:
  struct Home {
    int segment = 0;
    int64_t offset = 0;  ///< in the segment's parameter buffer
  };
  int64_t size_bytes_of(int parameter) const;
  int slots_of(int parameter) const;
  std::vector<int> savers_of_parameters() const;
  RankRange savers_of_stage(int stage) const;

  const model::Graph& graph_;
  const model::Partition& partition_;
  PlacementOptions options_;
  std::vector<Home> homes_;                  // by parameter
  std::vector<std::vector<ByteSpan>> tied_;  // by segment, stage: of another stage's segment what it uses
  std::vector<char> has_outer_ties_;         // by segment: it has a later use whose first is of another stage
  std::vector<std::vector<int64_t>>
      cuts_;  // by segment: where the shard at each position begins, and the last ends
};

}  // namespace lockstep::layout
