#pragma once

#include <span>

#include "parallel/batch_division.h"
#include "step/program.h"

namespace lockstep {

/// How one bucket's gradients meet: each function appends the instructions by which every worker's slot 0 comes to
/// hold the sum over all leaves. A synchroniser is nothing more than this.
struct BucketSync {
  Program& program;
  int lane = 0;                      ///< a comm lane: sends, receives and the additions between them
  int group;                         ///< the workers, by worker number
  int worker;
  int segment;
  std::span<const int> slots;        ///< gradient buffers: slot i holds the worker's i-th tree node (FAST: one)
};

/// FAST: the library's all-reduce.
void write_library_all_reduce(const BucketSync& sync, int workers);

/// REPRODUCIBLE, where follows_tree(): an all-reduce that adds along the tree over the workers, which then is the tree
/// over the leaves. Its channel must sum so (Communicator::sums_along_tree).
void write_ordered_all_reduce(const BucketSync& sync, int workers);

/// FAST: reduce-scatter and all-gather around a ring, n - 1 rounds each, every worker sending 2 (n-1)/n of the bucket.
///
///     round      worker r sends shard   receives and adds shard
///     0          r                      r - 1
///     k          r - k                  r - k - 1
void write_ring_all_reduce(const BucketSync& sync, int workers);

/// REPRODUCIBLE: the canonical tree over the leaves. Workers whose ranges are sibling nodes fold it by recursive
/// halving, neighbours first, and gather by doubling; small buckets are exchanged whole instead (half the rounds, the
/// same sums). Otherwise worker j owns shard j, receives every worker's nodes of it and folds the tree.
void write_tree_reduction(const BucketSync& sync, const BatchDivision& division);

}  // namespace lockstep
