#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "layout/byte_span.h"
#include "layout/canonical_tree.h"
#include "model/graph.h"
#include "model/partition.h"
#include "tensor/part.h"

namespace lockstep::layout {

/// The worker's number with its bits reversed, so that numbers with the same low bits are next to each other.
/// Sums by halving (neighbours first) and shards must agree on it. REQUIRES: `workers` is a power of two.
int reversed_bits(int worker, int workers);

/// A part of a checkpoint that one rank saves: of a parameter, of a slot of its optimizer state, or of what
/// rounding the gradients of one of its uses has lost of a leaf (the residual).
struct SavedPart {
  int parameter = 0;
  int slot = -1;      ///< -1: the parameter itself, or a residual
  tensor::Part part;  ///< parameters and residuals are saved whole
  int use = 0;
  int leaf = -1;  ///< -1: no residual
  bool is_residual() const { return leaf >= 0; }
  bool is_parameter() const { return slot < 0 && leaf < 0; }
  bool operator==(const SavedPart&) const = default;
};
int64_t size_bytes_of(const std::vector<SavedPart>& share);

/// Consecutive ranks.
struct RankRange {
  int first = 0, count = 0;
  int end() const { return first + count; }
  bool contains(int rank) const { return first <= rank && rank < end(); }
  bool operator==(const RankRange&) const = default;
};

struct OwnershipOptions {
  int workers = 1;  ///< ranks that compute, from 0
  /// Stages of each replica of the model. Each worker computes one stage. Workers are ordered stage by stage,
  /// so the replicas of one stage are neighbours. A stage computes the pieces of the partition whose number
  /// modulo `stages` is its own. REQUIRES: divides `workers`.
  int stages = 1;
  int state_slots = 0;
  /// Ranks that update; each byte has one owner. None: every worker updates everything that its stage
  /// computes. Owners that are no workers are servers, for all stages. Otherwise, with several stages, these
  /// are the owners of the first stage, and as many of the first replicas of each other stage own what that
  /// stage computes.
  RankRange owners = {};
  bool reversed = false;  ///< shards are in the order of the owners' reversed bits; see Ownership
  bool whole = false;     ///< an owner has all of a parameter, or nothing
  int savers = 0;         ///< number of workers that save parameters, from the first on; 0: all
  /// Workers add the gradients of a parameter's later uses to that of its first before sums over workers, if
  /// both are in the same stage. Then only as many bytes as parameters are summed over workers, and sums
  /// associate differently.
  bool ties_first = false;
};

/// Says which rank updates, holds and saves which parts of a model. It is a pure function of graph, partition
/// and layout, and the only source of this information. A worker holds all parameters of its stage, a server
/// those that it owns. Optimizer state is on the rank that updates the parameter.
///
/// A parameter belongs to the stage of its first use. Stages that use it again (tied weights) hold copies of
/// the owning segment's parameters, from the first to the last byte that they use, and never update them.
/// Nobody owns frozen parameters: workers of their stage hold them, servers do not.
///
/// With owners (all workers of a sharded optimizer, or parameter servers) each bucket is cut into one shard
/// for each owner. Cuts are on borders of 65,536-element chunks of parameters, so that sums of squares,
/// hashes and shards have the same borders, or on borders of parameters. Each cut is at the border nearest to
/// the end of an equal share of bytes; an owner that got less in earlier buckets gets more in the next. An
/// owner's shards are at its position: its number among the owners or, for sums that fold workers by halving
/// (neighbours first), this number with its bits reversed. Then workers that still exchange parts own
/// neighbouring bytes.
class Ownership {
 public:
  /// `graph` and `partition` must outlive it. REQUIRES: `reversed` only if all workers are owners, and their
  /// number in a stage is a power of two.
  Ownership(const model::Graph& graph, const model::Partition& partition, const OwnershipOptions& options);

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
  /// Whether a parameter is on several stages.
  bool ties_stages() const;
  /// Whether the gradients of later uses that lie in this segment are added to those of the first before they
  /// meet those of other replicas; OwnershipOptions::ties_first.
  bool is_tied_first(int segment) const;
  /// Of a segment's bucket what meets those of other replicas: bytes from its beginning on.
  int64_t summed_bytes(int segment) const;
  /// Whether a rank has all of the model's parameters.
  bool holds_all(int rank) const { return is_worker(rank) && stages() == 1; }
  bool has_owners() const { return owners().count > 0; }
  /// If workers of several stages are owners: those of the first stage.
  const RankRange& owners() const { return options_.owners; }
  RankRange owners_of(int segment) const;
  bool owns(int rank) const;
  bool has_servers() const { return owners().end() > workers(); }
  /// Whether every worker, and no other rank, owns a part.
  bool all_workers_own() const { return owners() == RankRange{0, replicas()}; }
  int ranks() const { return std::max(workers(), owners().end()); }  ///< workers and servers
  int position_of(int owner) const;
  /// Bytes of a segment's parameters that its owners at positions [first, last) update. All, without owners.
  ByteSpan updated(int segment, int first, int last) const;
  ByteSpan updated_by(int segment, int rank) const;
  /// Bytes of a segment's parameters in a rank's memory.
  ByteSpan held(int segment, int rank) const;
  /// Bytes of a segment's bucket with the gradients for what owners at these positions update, ascending.
  /// These are gradients of its own parameters, and of later uses of other segments' parameters (maybe of
  /// other stages), unless workers have added those to the first use.
  std::vector<ByteSpan> gradients(int segment, int first, int last) const;
  /// The same for those in a rank's memory: for a worker, all of the segments that it computes; for a server,
  /// those of what it updates.
  std::vector<ByteSpan> held_gradients(int segment, int rank) const;
  /// What a rank has of a parameter.
  tensor::Part held_part(int parameter, int rank) const;
  /// What a rank updates of a parameter; it also holds the optimizer state of this part.
  tensor::Part owned(int parameter, int rank) const;
  /// Bytes of all parameters that a rank updates.
  int64_t owned_bytes(int rank) const;
  /// What each rank saves: parameters by ascending number, each whole and once, then optimizer state by
  /// parameter and slot. A rank's list may be empty. Parameters are distributed from the largest to the
  /// smallest, with their state if it is whole too: each goes to the saving worker of its stage that has the
  /// fewest bytes so far. Parts of state are saved by the ranks that hold them.
  std::vector<std::vector<SavedPart>> shares() const;
  /// The residuals of a worker that rounds the gradients of these leaves: whole, by segment, leaf and place
  /// in the bucket.
  std::vector<SavedPart> residuals(int rank, const TreeNode& leaves) const;

 private:
  struct Home {
    int segment = 0;
    int64_t offset = 0;  ///< in the segment's parameter buffer
  };
  bool tie_to_home(int segment, int parameter);
  int64_t size_bytes_of(int parameter) const;
  tensor::Part part_within(const ByteSpan& bytes, int parameter) const;
  int slots_of(int parameter) const;
  std::vector<int> savers_of_parameters() const;
  RankRange savers_of_stage(int stage) const;

  const model::Graph& graph_;
  const model::Partition& partition_;
  OwnershipOptions options_;
  std::vector<Home> homes_;                  // by parameter
  std::vector<std::vector<ByteSpan>> tied_;  // by segment, stage: of another stage's segment what it uses
  std::vector<char> has_outer_ties_;         // by segment: it has a later use whose first is of another stage
  std::vector<std::vector<int64_t>>
      cuts_;  // by segment: where the shard at each position begins, and the last ends
};

}  // namespace lockstep::layout
