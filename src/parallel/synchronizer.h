#pragma once

#include <array>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "parallel/gradient_sync.h"
#include "parallel/program_plan.h"
#include "parallel/program_writer.h"
#include "parallel/rank_program.h"
#include "parallel/server_sync.h"

namespace lockstep::parallel {

/// Whether gradients meet at servers; a sharded optimizer, whose owners are just the workers, sums in shards.
bool uses_servers(const ProgramPlan& plan);

/// Whether what a bucket becomes goes back while others are still summed: at servers, whose links carry both
/// directions at once. Stages agree at the end of a step, and updates read on what.
bool returns_as_it_lands(const ProgramPlan& plan);

/// How the gradients of one step meet, bucket by bucket, and how what was made of them gets back to whoever
/// reads it: all that data parallelism, sharded optimizers and parameter servers differ in.
class Synchronizer {
 public:
  /// For `rank`, a worker or a server; adds its channels to the writer's program. `add`: the lane on which a
  /// server adds.
  Synchronizer(const ProgramPlan& plan, ProgramWriter& writer, int rank, int add);

  /// Sums a bucket, whole or each owner's shard of it. `nodes`: how many of the gradient tree a worker has of
  /// it, in its first slots. At servers, of a slice of each shard.
  void sum(int segment, int nodes, const layout::Slice& slice = {});
  /// After an update by owners: every owner's part of the segment's parameters gets to all workers; from
  /// servers, a slice of it.
  void gather_parameters(int segment, const layout::Slice& slice = {});
  /// Into how many slices a bucket is cut that comes back as it lands: nothing passes the other way while the
  /// first of all arrives and the last goes back, which in a model with one huge layer would be all of it.
  int slices(int segment) const;
  /// Norm and clipping, of all gradients.
  void norm(int compute);

 private:
  std::vector<int> gradient_slots(int segment, int count) const;
  BucketSync bucket(int segment, Channel channel, std::span<const int> slots) const;
  Shards gradient_shards(int segment) const;
  void sum_at_servers(BucketSync sync, const layout::Slice& slice);
  void sum_shards(const BucketSync& sync);
  void sum_whole(BucketSync sync);
  bool cuts_buckets() const;
  void add_arrivals();
  Servers servers(int stage) const;
  std::vector<Recipient> recipients(int segment) const;
  int first_worker(int stage) const;
  const std::vector<int>* own_host() const;  ///< null where hosts do not sum, and at servers

  const ProgramPlan& plan_;
  ProgramWriter& writer_;
  int rank_, add_;
  bool shared_memory_, tree_, halves_;
  bool servers_;
  Channel reduce_, gather_;
  Channel norm_;
  /// At a server that is no worker: room for what workers send it of a bucket, or of a slice, twice, so that
  /// one arrives while the other is added.
  std::array<std::vector<int>, 2> arrivals_;
  size_t arrived_ = 0;  ///< buckets or slices so far of which this rank has a part
  std::vector<std::vector<std::vector<int>>> hosts_;  ///< by stage, with aggregate=host: the workers of each
  std::vector<Contributions> contributions_;          ///< to servers, by stage
};

}  // namespace lockstep::parallel
