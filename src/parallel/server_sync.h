#pragma once

#include <span>
#include <vector>

#include "layout/batch_division.h"
#include "layout/ownership.h"
#include "parallel/gradient_sync.h"

namespace lockstep::parallel {

/// A rank that sends gradients to the owners of their shards: a worker's own gradients, or the sum over a
/// host's workers. Its slots hold these nodes.
struct Contributor {
  int rank;
  std::vector<layout::TreeNode> nodes;
};
struct Contributions {
  std::vector<Contributor> from;  ///< nodes ascending
  int leaves;                     ///< of the tree that they make up
};
/// Each worker contributes its own gradients.
Contributions contributions_of_workers(const layout::BatchDivision& division);

/// Parameter servers, and the shards that they sum. They are ranks of the group, counted from worker 0's
/// rank, and may be workers, too.
struct Servers {
  layout::RankRange ranks;
  const Contributions& contributions;
  /// At a server that is no worker: the lane that adds, and the buffers in which the workers' nodes arrive;
  /// the first node arrives in slot 0. Buffers may be larger than what arrives, and serve several segments.
  int add_lane = -1;
  std::span<const int> arrivals;
};

/// Every contributor sends its nodes, which are in its slots, of a slice of each shard to the shard's server,
/// which folds the tree. If a shard has several parts, it is a slice of each part.
void write_server_fold(const BucketSync& sync, const Servers& servers, const layout::Slice& slice = {});
/// Where this rank has the sum afterwards, in its slot 0; nothing unless it is a server.
std::vector<layout::ByteSpan> summed_here(const BucketSync& sync, const layout::RankRange& servers,
                                          const layout::Slice& slice);
/// A rank of the group, counted from worker 0's rank, and the bytes of a segment's parameters that it holds.
struct Recipient {
  int rank;
  layout::ByteSpan held;
};
/// Sends a slice of every server's shard to the recipients, as far as they hold it. `buffer`: of the bytes
/// `held` by this rank.
void write_server_gather(const BucketSync& sync, const layout::RankRange& servers,
                         const std::vector<Recipient>& recipients, const layout::ByteSpan& held, int buffer,
                         const layout::Slice& slice = {});

// Sums within hosts on the way to servers. A host is its workers, by rank; its first worker talks to the
// servers.

/// The host's workers send their nodes of the bucket to the first worker, which folds the tree as far as
/// these nodes allow or, in `any_order`, sums them. Returns the slots with the result on the first worker;
/// nothing on the others.
std::vector<int> write_host_fold(const BucketSync& sync, const std::vector<int>& host,
                                 const layout::BatchDivision& division, bool any_order);
/// Sends the first worker's `buffer` to the host's other workers, except what they own themselves.
void write_host_gather(const BucketSync& sync, const std::vector<int>& host, const layout::RankRange& owners,
                       int buffer);
/// The contributions of the hosts' first workers. In any order each host is a leaf.
Contributions contributions_of_hosts(const std::vector<std::vector<int>>& hosts,
                                     const layout::BatchDivision& division, bool any_order);

}  // namespace lockstep::parallel
