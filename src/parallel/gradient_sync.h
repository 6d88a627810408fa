#pragma once

#include <functional>
#include <span>
#include <vector>

#include "layout/batch_division.h"
#include "layout/ownership.h"
#include "program/program.h"

namespace lockstep::parallel {

/// How a buffer is cut among its owners: one shard for each position. Neighbouring shards are in ascending
/// order of bytes. Shards may have several parts and may be empty.
struct Shards {
  std::function<int(int owner)> position;
  std::function<std::vector<layout::ByteSpan>(int first, int last)> parts;  ///< of positions [first, last)
};

/// Equal shards of `size_bytes`, on borders of 64 bytes; later ones may be smaller or empty. `reversed`: a
/// worker's shard is at the position that is its number with bits reversed.
Shards equal_shards(int64_t size_bytes, int workers, bool reversed);
/// The shards of a segment by the owners of the ownership, which must outlive them. Owners are numbered as
/// the workers of the segment's stage, from 0; servers come after those of the last stage.
Shards placed_shards(const layout::Ownership& ownership, int segment,
                     std::function<std::vector<layout::ByteSpan>(int first, int last)> parts);
/// The part of a segment's parameters that each owner updates.
Shards parameter_shards(const layout::Ownership& ownership, int segment);

/// How one bucket's gradients are summed. Each function appends the instructions of one part of this to the
/// program of one worker; a synchroniser is a few such calls. Bytes are counted in float32, whatever the type
/// of the slots: only the operands of instructions (BucketWriter) are in bytes of that type.
struct BucketSync {
  program::Program& program;
  int lane = 0;  ///< a comm lane: sends, receives and the additions between them
  int group;     ///< the workers, by worker number; with servers, all ranks
  int worker;    ///< at a server: its rank in the group minus `first`
  int workers;
  int segment;
  std::span<const int> slots;  ///< gradient buffers: slot i holds the worker's i-th tree node (FAST: one)
  Shards shards;
  int64_t size_bytes = 0;  ///< bytes that are summed, from `begin` of each slot
  int first =
      0;  ///< rank in the group of worker 0: of a stage, or of workers that first sum among themselves
  int64_t begin = 0;             ///< above 0 only for sums across hosts, of a part of the bucket
  DType dtype = DType::float32;  ///< of the slots, or of a buffer that is gathered
};

/// FAST: the library's all-reduce of slot 0.
void write_library_all_reduce(const BucketSync& sync);

/// REPRODUCIBLE, if BatchDivision::follows_tree: an all-reduce that adds along the tree over the workers,
/// which then is the upper part of the tree over the leaves. Its channel must sum so
/// (Communicator::sums_along_tree).
void write_ordered_all_reduce(const BucketSync& sync);

// Sums: afterwards the worker's shard of its slot 0 holds the sum over all leaves.

/// REPRODUCIBLE: the canonical tree over the leaves. Workers whose ranges are sibling nodes fold it by
/// recursive halving, neighbours first. Small buckets are exchanged whole instead (the same sums in half the
/// rounds, gathering included); then every worker has the whole sum. Otherwise every worker sends its nodes
/// of each shard to the shard's owner, which folds the tree. REQUIRES: shards are at reversed positions if
/// BatchDivision::folds_by_halving.
void write_tree_reduce_scatter(const BucketSync& sync, const layout::BatchDivision& division);
/// Whether every worker has the whole sum after write_tree_reduce_scatter.
bool sums_whole(const BucketSync& sync, const layout::BatchDivision& division);

// Gathering: every worker's shard of `buffer` is sent to all others. It moves as many bytes as the sums.

/// By doubling if the tree is folded by halving; otherwise every worker sends to every other.
void write_tree_all_gather(const BucketSync& sync, const layout::BatchDivision& division, int buffer);

/// REPRODUCIBLE, if BatchDivision::follows_tree, for any number of workers: folds the canonical tree over
/// them in at most 4 log2(n) rounds; then every worker has the whole sum. The tree splits the workers into
/// blocks of powers of two, the largest first. Drawn for 7 workers, each with a leaf:
///
///     blocks            0 1 2 3 | 4 5 | 6
///     each by halving   every worker has a part of its block's sum: a quarter, a half, all
///     from the right    6 -> 4 5: (l4+l5)+l6; then 4 5 -> 0 1 2 3: ((l0+l1)+(l2+l3)) + ((l4+l5)+l6)
///     to the right      0 1 2 3 -> 4 5, and then 4 5 -> 6: the sum's parts go back the way they came
///     each by doubling
///
/// It cuts its own shards; the shards of `sync` are not used.
void write_tree_all_reduce(const BucketSync& sync);

}  // namespace lockstep::parallel
