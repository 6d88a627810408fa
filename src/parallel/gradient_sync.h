#pragma once

#include <functional>
#include <span>
#include <vector>

#include "layout/batch_division.h"
#include "layout/placement.h"
#include "program/program.h"

namespace lockstep::parallel {

/// How a buffer is cut among its owners: into one shard for each position, in ascending order of bytes as far
/// as neighbours go. Shards may have several parts and may be empty.
struct Shards {
  std::function<int(int owner)> position;
  std::function<std::vector<layout::ByteSpan>(int first, int last)> parts;  ///< of positions [first, last)
};

/// Equal shards of `size_bytes`, on borders of 64 bytes; later ones may be smaller or empty. `reversed`: a
/// worker's lies at the position of its number's bits reversed.
Shards equal_shards(int64_t size_bytes, int workers, bool reversed);
/// Shards of a segment where the placement, which must outlive them, has its owners. These are numbered as
/// the workers of the segment's stage are, from 0 on, and servers behind those of the last one.
Shards placed_shards(const layout::Placement& placement, int segment,
                     std::function<std::vector<layout::ByteSpan>(int first, int last)> parts);
/// What each owner updates of a segment's parameters.
Shards parameter_shards(const layout::Placement& placement, int segment);

/// How one bucket's gradients meet. Each function appends the instructions of one part of that to the program
/// of one worker; a synchroniser is nothing more than a few of them.
struct BucketSync {
  program::Program& program;
  int lane = 0;  ///< a comm lane: sends, receives and the additions between them
  int group;     ///< the workers, by worker number; where there are servers, all ranks
  int worker;    ///< or, at a server, its rank in the group less `first`
  int workers;
  int segment;
  std::span<const int> slots;  ///< gradient buffers: slot i holds the worker's i-th tree node (FAST: one)
  Shards shards;
  int64_t size_bytes = 0;  ///< of what meets, from the beginning of each slot
  int first =
      0;  ///< rank in the group of worker 0: of a stage, or of workers that first sum among themselves
};

/// FAST: the library's all-reduce of slot 0.
void write_library_all_reduce(const BucketSync& sync);

/// REPRODUCIBLE, where BatchDivision::follows_tree: an all-reduce that adds along the tree over the workers,
/// which then is the tree over the leaves. Its channel must sum so (Communicator::sums_along_tree).
void write_ordered_all_reduce(const BucketSync& sync);

// Sums: afterwards the worker's own shard of its slot 0 holds the sum over all leaves.

/// REPRODUCIBLE: the canonical tree over the leaves. Workers whose ranges are sibling nodes fold it by
/// recursive halving, neighbours first; small buckets are exchanged whole instead (half the rounds with the
/// gathering, the same sums), and then every worker has all of the sum. Otherwise every worker sends its
/// nodes of each shard to its owner, who folds the tree. REQUIRES: shards lie at reversed positions where
/// BatchDivision::folds_by_halving.
void write_tree_reduce_scatter(const BucketSync& sync, const layout::BatchDivision& division);
/// Whether write_tree_reduce_scatter leaves the whole sum with every worker.
bool sums_whole(const BucketSync& sync, const layout::BatchDivision& division);

// Gathering: every worker's own shard of `buffer` gets to all others. As many bytes as the sums.

/// Doubling where the tree is folded by halving; otherwise everybody sends to everybody.
void write_tree_all_gather(const BucketSync& sync, const layout::BatchDivision& division, int buffer);

/// REPRODUCIBLE, where BatchDivision::follows_tree, for any number of workers: the canonical tree over them
/// in at most 4 log2(n) rounds, and then every worker has all of the sum. The tree splits the workers into
/// blocks of powers of two, the largest first; drawn for 7 workers, each with a leaf:
///
///     blocks            0 1 2 3 | 4 5 | 6
///     each by halving   every worker has a part of its block's sum: a quarter, a half, all
///     from the right    6 -> 4 5: (l4+l5)+l6; then 4 5 -> 0 1 2 3: ((l0+l1)+(l2+l3)) + ((l4+l5)+l6)
///     to the right      0 1 2 3 -> 4 5, and then 4 5 -> 6: the sum's parts go back the way they came
///     each by doubling
///
/// Brings shards of its own: those of the bucket's `sync` are not asked for.
void write_tree_all_reduce(const BucketSync& sync);

}  // namespace lockstep::parallel
