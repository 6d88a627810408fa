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

/// How one bucket's gradients meet. Each function appends the instructions of one part of that to the program
/// of one worker; a synchroniser is nothing more than a few of them.
struct BucketSync {
  program::Program& program;
  int lane = 0;  ///< a comm lane: sends, receives and the additions between them
  int group;     ///< the workers, by worker number; where there are servers, all ranks
  int worker;    ///< or, at a server, its rank
  int workers;
  int segment;
  std::span<const int> slots;  ///< gradient buffers: slot i holds the worker's i-th tree node (FAST: one)
  Shards shards;
  int first = 0;  ///< rank in the group of worker 0: of workers that first sum among themselves
};

/// A rank that sends gradients to the owners of their shards: a worker's own, or what a host's workers have
/// summed among themselves. Its slots hold these nodes.
struct Contributor {
  int rank;
  std::vector<layout::TreeNode> nodes;
};
struct Contributions {
  std::vector<Contributor> from;  ///< nodes ascending
  int leaves;                     ///< of the tree that they make up
};
/// Each worker its own.
Contributions contributions_of_workers(const layout::BatchDivision& division);

/// Who sums which shard, where that is not each worker its own: parameter servers, which are ranks of the
/// group, workers or not.
struct Servers {
  layout::RankRange ranks;
  const Contributions& contributions;
  /// At a server that is no worker: the lane that adds, and where the workers' nodes arrive but for the first
  /// one, which arrives in slot 0. Buffers may be larger than what arrives, and serve several segments.
  int add_lane = -1;
  std::span<const int> arrivals;
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

// Parameter servers: the same two, towards the servers and back.

/// Every contributor sends its nodes of each shard, which lie in its slots, to the shard's server, which
/// folds the tree.
void write_server_fold(const BucketSync& sync, const Servers& servers);
/// Every server's shard of `buffer` gets to all contributors. A server that is no worker holds its shard
/// alone.
void write_server_gather(const BucketSync& sync, const Servers& servers, int buffer);

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

// Sums within hosts on their way to servers. A host is its workers, by rank; the first of them speaks for it.

/// The host's workers send their nodes of the bucket to the first, which folds the tree as far as theirs make
/// it up, or, in `any_order`, sums them. Returns where it holds what is left; nothing on the others.
std::vector<int> write_host_fold(const BucketSync& sync, const std::vector<int>& host,
                                 const layout::BatchDivision& division, bool any_order);
/// What the first has of `buffer` gets to the host's others, but for what they own themselves.
void write_host_gather(const BucketSync& sync, const std::vector<int>& host, const layout::RankRange& owners,
                       int buffer);
/// What the hosts' first workers contribute then. In any order each host is a leaf.
Contributions contributions_of_hosts(const std::vector<std::vector<int>>& hosts,
                                     const layout::BatchDivision& division, bool any_order);

}  // namespace lockstep::parallel
