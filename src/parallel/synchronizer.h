#pragma once

#include <array>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "parallel/gradient_sync.h"
#include "parallel/host_sync.h"
#include "parallel/program_plan.h"
#include "parallel/program_writer.h"
#include "parallel/rank_program.h"
#include "parallel/server_sync.h"

namespace lockstep::parallel {

/// Whether servers sum gradients. With a sharded optimizer the owners are exactly the workers, and sum in
/// shards.
bool uses_servers(const ProgramPlan& plan);

/// Whether updated parameters of a bucket return while other buckets are still summed: with servers, whose
/// links carry both directions at once. Not with stages, which agree at the end of a step on what updates
/// read.
bool returns_as_it_lands(const ProgramPlan& plan);

/// How the gradients of one step are summed, bucket by bucket, and how updated parameters return to the ranks
/// that read them. Data parallelism, sharded optimizers and parameter servers differ only in this.
class Synchronizer {
 public:
  /// For `rank`, a worker or a server. Adds its channels to the writer's program. `add`: the lane on which a
  /// server adds.
  Synchronizer(const ProgramPlan& plan, ProgramWriter& writer, int rank, int add);

  /// Sums a bucket: all of it, each owner's shard or, with servers, a slice of each shard. `nodes`: the
  /// number of nodes of the gradient tree that a worker has, in its first slots.
  void sum(int segment, int nodes, const layout::Slice& slice = {});
  /// After an update by owners: sends every owner's part of the segment's parameters to all workers; with
  /// servers, a slice of it.
  void gather_parameters(int segment, const layout::Slice& slice = {});
  /// Number of slices per bucket if updates return as they arrive. While the first slice of all arrives and
  /// the last returns, the other direction is idle; in a model with one huge layer and no slices this would
  /// be always so.
  int slices(int segment) const;
  /// Norm and clipping, of all gradients, and what else updates measure.
  void norm(int compute, UpdateVerdict verdict);

 private:
  /// The buffers that are summed over workers: gradients, or their copies in the wire's type.
  std::vector<int> gradient_slots(int segment, int count) const;
  /// After a sum in the wire's type: its parts, which updates read in float32.
  void widen(const BucketSync& sync, int lane, const std::vector<layout::ByteSpan>& spans);
  BucketSync bucket(int segment, Channel channel, std::span<const int> slots) const;
  Shards gradient_shards(int segment) const;
  void sum_at_servers(BucketSync sync, const layout::Slice& slice);
  void sum_shards(const BucketSync& sync);
  void sum_whole(BucketSync sync);
  bool cuts_buckets() const;
  ProgramWriter::WriteSum sum_of_parts();
  void add_arrivals();
  void add_groups_of_hosts();
  Servers servers(int stage) const;
  std::vector<Recipient> recipients(int segment) const;
  int first_worker(int stage) const;
  const std::vector<int>* own_host() const;  ///< null if hosts do not sum, and at servers

  const ProgramPlan& plan_;
  ProgramWriter& writer_;
  int rank_, add_;
  bool shared_memory_, tree_, halves_;
  bool narrow_;  ///< gradients are summed in the wire's type
  bool servers_;
  Channel reduce_, gather_;
  Channel norm_;
  /// At a server that is no worker: room for what workers send of a bucket, or of a slice, twice, so that one
  /// can arrive while the other is added.
  std::array<std::vector<int>, 2> arrivals_;
  size_t arrived_ = 0;                        ///< buckets or slices so far of which this rank has a part
  std::vector<HostWorkers> hosts_;            ///< by stage, with aggregate=host
  std::optional<HostGroups> host_groups_;     ///< if workers sum within hosts first, then across
  std::vector<Contributions> contributions_;  ///< to servers, by stage
};

}  // namespace lockstep::parallel
