#pragma once

#include <span>
#include <vector>

#include "layout/batch_division.h"
#include "layout/placement.h"
#include "parallel/gradient_sync.h"

namespace lockstep::parallel {

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
/// group, counted from that of worker 0 on, workers or not.
struct Servers {
  layout::RankRange ranks;
  const Contributions& contributions;
  /// At a server that is no worker: the lane that adds, and where the workers' nodes arrive but for the first
  /// one, which arrives in slot 0. Buffers may be larger than what arrives, and serve several segments.
  int add_lane = -1;
  std::span<const int> arrivals;
};

/// Every contributor sends its nodes of a slice of each shard, which lie in its slots, to the shard's server,
/// which folds the tree. Of a shard in several parts that is a slice of each.
void write_server_fold(const BucketSync& sync, const Servers& servers, const layout::Slice& slice = {});
/// A rank of the group, from that of worker 0 on, and the bytes of a segment's parameters that it has.
struct Recipient {
  int rank;
  layout::ByteSpan held;
};
/// A slice of every server's shard gets to the recipients, as far as they hold it. `buffer`: of the bytes
/// that this rank holds, `held`.
void write_server_gather(const BucketSync& sync, const layout::RankRange& servers,
                         const std::vector<Recipient>& recipients, const layout::ByteSpan& held, int buffer,
                         const layout::Slice& slice = {});

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
