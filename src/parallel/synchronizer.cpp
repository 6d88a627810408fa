#include "parallel/synchronizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/index.h"
#include "lockstep/error.h"
#include "parallel/bucket_writer.h"
#include "parallel/ring_sync.h"
#include "parallel/step_programs.h"

namespace lockstep::parallel {
namespace {

/// On a link of 10 Gbit/s messages of fewer bytes take no less time.
constexpr int64_t kLeastSliceBytes = 64 * 1024;
/// At 100 Mbit/s, with two workers and two servers, a step of 19 MB took 1,763 ms with 4, 1,693 with 8 and
/// 1,638 with 16; where nothing limits the link, more slices only take more of the processor.
constexpr int64_t kSlicesOfBucket = 8;
/// Of a bucket, however large: what they save is the time of one of them.
constexpr int64_t kMostSlices = 64;
/// Nodes of the sums' tree that come to a server in a step, slice by slice: each is an instruction.
constexpr int64_t kMostArrivals = 50'000;

/// Whether two uses of a parameter meet within the segment, so that what is a slice of the one gradient and
/// of the other does not lie in one slice of the bucket.
bool ties_within(const ProgramPlan& plan, int segment) {
  const model::Bucket& bucket = plan.partition.bucket(segment);
  if (plan.ownership.is_tied_first(segment)) return false;
  return std::ranges::any_of(bucket.entries, [&](const model::BucketEntry& later) {
    if (later.use == 0) return false;
    return std::ranges::any_of(bucket.entries, [&](const model::BucketEntry& first) {
      return first.use == 0 && first.parameter == later.parameter;
    });
  });
}

/// Whether a slice might hold a part of what is updated as a whole.
bool updates_wholes(const ProgramPlan& plan, int segment) {
  const auto& scratch = plan.whole_scratch.of_workers;
  return !scratch.empty() &&
         std::ranges::any_of(plan.partition.bucket(segment).entries, [&](const model::BucketEntry& entry) {
           return nth(scratch, entry.parameter) > 0;
         });
}

/// Below which a model so large, or with so many workers, would make too many slices of a step.
int64_t least_slice_bytes(const ProgramPlan& plan, const Contributions& contributions) {
  int64_t bytes = 0, nodes = 0;
  for (size_t s = 0; s < plan.partition.segments.size(); ++s)
    bytes += plan.ownership.summed_bytes(static_cast<int>(s));
  for (const Contributor& one : contributions.from) nodes += static_cast<int64_t>(one.nodes.size());
  const int64_t of_server = bytes / std::max(1, plan.ownership.owners().count);
  return std::max(kLeastSliceBytes, of_server / std::max(int64_t{1}, kMostArrivals / nodes));
}

/// Whether gradients meet in memory that all workers share.
bool reduces_in_shared_memory(const ProgramPlan& plan) {
  const auto algorithm = plan.parallel.algorithm;
  return plan.shared_memory && plan.device != device::DeviceKind::cuda && !plan.ownership.has_owners() &&
         (algorithm == AllReduceAlgorithm::automatic || algorithm == AllReduceAlgorithm::shared_memory);
}

program::Transport sum_transport(const ProgramPlan& plan) {
  return reduces_in_shared_memory(plan) ? program::Transport::shared_memory : plain_transport(plan);
}

/// By stage, the workers of each host, by number in their stage, where they sum among themselves first;
/// otherwise nothing.
std::vector<HostWorkers> hosts_that_sum(const ProgramPlan& plan) {
  if (plan.parallel.layout.aggregate == layout::Aggregation::none) return {};
  std::vector<HostWorkers> hosts;
  for (int stage = 0; stage < plan.ownership.stages(); ++stage)
    hosts.push_back(workers_by_host(plan.hosts, plan.ownership.rank_of(stage, 0), plan.division.workers));
  return hosts;
}

/// Of all ranks, where there are servers beside the workers, or of a stage's workers.
Channel add_sum_channel(const ProgramPlan& plan, program::Program& program, const std::string& name,
                        program::Transport transport, int rank) {
  return plan.ownership.has_servers() ? add_channel(program, name, transport)
                                      : add_stage_channel(plan, program, name, transport, rank);
}

}  // namespace

bool uses_servers(const ProgramPlan& plan) {
  return plan.ownership.has_owners() &&
         (!plan.ownership.all_workers_own() || plan.parallel.layout.aggregate == layout::Aggregation::host);
}

bool returns_as_it_lands(const ProgramPlan& plan) {
  return plan.update_as_it_lands && uses_servers(plan) && plan.ownership.stages() == 1;
}

Synchronizer::Synchronizer(const ProgramPlan& plan, ProgramWriter& writer, int rank, int add)
    : plan_(plan),
      writer_(writer),
      rank_(rank),
      add_(add),
      shared_memory_(reduces_in_shared_memory(plan)),
      tree_(plan.parallel.reduction == layout::Reduction::reproducible),
      halves_(tree_ && plan.division.folds_by_halving),
      narrow_(plan.narrows_gradients()),
      servers_(uses_servers(plan)),
      reduce_(add_sum_channel(plan, writer.program, "reduce", sum_transport(plan), rank)),
      // What comes back must not stand behind what is still to be sent.
      gather_(servers_ ? add_sum_channel(plan, writer.program, "gather", plain_transport(plan), rank)
                       : reduce_),
      norm_(reduce_),
      hosts_(hosts_that_sum(plan)) {
  for (int stage = 0; stage < plan.ownership.stages(); ++stage)
    contributions_.push_back(hosts_.empty()
                                 ? contributions_of_workers(plan.division)
                                 : contributions_of_hosts(nth(hosts_, stage), plan.division, !tree_));
  if (!plan.ownership.is_worker(rank)) add_arrivals();
  if (!plan.ownership.has_owners()) add_groups_of_hosts();
  if (plan.ownership.stages() == 1) return;
  norm_ = plan.ownership.has_owners() ? add_channel(writer.program, "stages", plain_transport(plan))
                                      : add_replica_channel(plan, writer.program, "stages", rank);
}

void Synchronizer::add_groups_of_hosts() {
  for (int stage = 0; stage < static_cast<int>(hosts_.size()); ++stage) {
    if (!sums_across_hosts(nth(hosts_, stage))) continue;
    const bool own = plan_.ownership.stage_of(rank_) == stage;
    const std::string name = hosts_.size() == 1 ? "reduce" : fmt::format("reduce.stage{}", stage);
    const HostGroups groups =
        add_host_groups(writer_.program, name, nth(hosts_, stage), plan_.ownership.rank_of(stage, 0),
                        own ? plan_.ownership.replica_of(rank_) : -1);
    if (own) host_groups_ = groups;
  }
}

void Synchronizer::add_arrivals() {
  int64_t most = 0;
  for (int s = 0; s < static_cast<int>(plan_.partition.segments.size()); ++s) {
    const int count = slices(s);
    for (int slice = 0; slice < count; ++slice) {
      int64_t bytes = 0;
      for (const layout::ByteSpan& part : plan_.ownership.held_gradients(s, rank_))
        bytes += layout::slice_of(part, {slice, count}).size();
      most = std::max(most, bytes);
    }
  }
  size_t nodes = 0;
  for (const Contributions& of_stage : contributions_) {
    size_t brought = 0;
    for (const Contributor& one : of_stage.from) brought += one.nodes.size();
    nodes = std::max(nodes, brought);
  }
  for (size_t turn = 0; turn < arrivals_.size(); ++turn)
    for (size_t node = 1; node < nodes && most > 0; ++node)
      arrivals_[turn].push_back(writer_.program.add_buffer(
          fmt::format("arrival.{}.{}", node, turn), program::Space::gradients, program::Category::gradients,
          narrow_ ? bytes_as(most, plan_.parallel.wire) : most));
}

/// Hosts' sums are of whole buckets. From GPUs each exchange with servers is copied and handed over by
/// itself, one after the other (comm/staged), so that more of them cost more than they hide.
bool Synchronizer::cuts_buckets() const {
  return returns_as_it_lands(plan_) && hosts_.empty() && plan_.device != device::DeviceKind::cuda;
}

int Synchronizer::slices(int segment) const {
  if (!cuts_buckets() || ties_within(plan_, segment) || updates_wholes(plan_, segment)) return 1;
  int64_t most = 0;
  for (int position = 0; position < plan_.ownership.owners().count; ++position)
    most = std::max(most, size_of(plan_.ownership.gradients(segment, position, position + 1)));
  const int64_t slice_bytes =
      std::max({least_slice_bytes(plan_, contributions_.front()),
                std::min(plan_.parallel.bucket_bytes.value_or(kBucketBytes), kBucketBytes) / kSlicesOfBucket,
                most / kMostSlices});
  return static_cast<int>(std::max(int64_t{1}, (most + slice_bytes - 1) / slice_bytes));
}

void Synchronizer::sum(int segment, int nodes, const layout::Slice& slice) {
  const std::vector<int> slots = gradient_slots(segment, nodes);
  BucketSync sync = bucket(segment, reduce_, slots);
  if (sync.size_bytes == 0) return;
  if (narrow_) sync.dtype = plan_.parallel.wire;
  // Under REPRODUCIBLE leaves have been rounded, one by one. The first slice brings the others along.
  if (narrow_ && !tree_ && slice.index == 0 && plan_.ownership.computes(segment, rank_))
    writer_.narrow_gradients(sync.lane, segment, 0, plan_.leaves_of(rank_).begin, {0, sync.size_bytes});
  if (plan_.ownership.has_owners()) sync.shards = gradient_shards(segment);
  if (servers_) return sum_at_servers(sync, slice);
  if (plan_.ownership.has_owners()) {
    sum_shards(sync);
    return widen(sync, sync.lane, BucketWriter(sync).shard_of(sync.worker));
  }
  sum_whole(sync);
  widen(sync, sync.lane, {{0, sync.size_bytes}});
}

void Synchronizer::widen(const BucketSync& sync, int lane, const Spans& spans) {
  if (narrow_)
    BucketWriter(sync).widen_on(lane, writer_.gradient_buffer(sync.segment, 0), sync.slots[0], spans);
}

/// Rank of a stage's first worker in the groups of sums.
int Synchronizer::first_worker(int stage) const {
  return plan_.ownership.has_servers() ? plan_.ownership.rank_of(stage, 0) : 0;
}

Servers Synchronizer::servers(int stage) const {
  layout::RankRange ranks = plan_.ownership.owners();
  ranks.first -= first_worker(stage);
  return {.ranks = ranks, .contributions = nth(contributions_, stage), .arrivals = {}};
}

/// Who gets a segment's parameters from servers: the workers that compute it, or the first of each host, and
/// from servers that are no workers also other stages that use it.
std::vector<Recipient> Synchronizer::recipients(int segment) const {
  const layout::Ownership& ownership = plan_.ownership;
  const int own = ownership.stage_of_segment(segment);
  std::vector<Recipient> list;
  for (const Contributor& one : nth(contributions_, own).from)
    list.push_back({one.rank, ownership.held(segment, ownership.rank_of(own, one.rank))});
  for (int rank = 0; rank < ownership.workers() && ownership.has_servers(); ++rank)
    if (!ownership.computes(segment, rank))
      list.push_back({rank - first_worker(own), ownership.held(segment, rank)});
  std::erase_if(list, [](const Recipient& one) { return one.held.empty(); });
  return list;
}

const std::vector<int>* Synchronizer::own_host() const {
  if (hosts_.empty() || !plan_.ownership.is_worker(rank_)) return nullptr;
  const int worker = plan_.ownership.replica_of(rank_);
  for (const auto& host : nth(hosts_, plan_.ownership.stage_of(rank_)))
    if (std::ranges::find(host, worker) != host.end()) return &host;
  return nullptr;
}

void Synchronizer::sum_at_servers(BucketSync sync, const layout::Slice& slice) {
  std::vector<int> folded;
  const std::vector<int> own(sync.slots.begin(), sync.slots.end());
  if (const auto* host = own_host()) {
    folded = write_host_fold(sync, *host, plan_.division, !tree_);
    sync.slots = folded.empty() ? own : folded;
  }
  Servers at = servers(plan_.ownership.stage_of_segment(sync.segment));
  if (!plan_.ownership.is_worker(rank_)) {
    at.add_lane = add_;
    at.arrivals = arrivals_[arrived_ % arrivals_.size()];
  }
  const size_t before = writer_.program.instructions.size();
  write_server_fold(sync, at, slice);
  if (writer_.program.instructions.size() > before) ++arrived_;
  widen(sync, at.add_lane >= 0 ? at.add_lane : sync.lane, summed_here(sync, at.ranks, slice));
}

void Synchronizer::sum_shards(const BucketSync& sync) {
  if (tree_)
    write_tree_reduce_scatter(sync, plan_.division);
  else
    write_ring_reduce_scatter(sync, {sync.slots[0], 0, sync.size_bytes},
                              blocks_of(sync.shards, plan_.division.workers));
}

void Synchronizer::sum_whole(BucketSync sync) {
  if (host_groups_)
    return write_host_all_reduce(sync, nth(hosts_, plan_.ownership.stage_of(rank_)), *host_groups_, tree_);
  const int workers = plan_.division.workers;
  sync.shards = equal_shards(sync.size_bytes, workers, halves_);
  if (shared_memory_ && (!tree_ || plan_.division.follows_tree))
    return tree_ ? write_ordered_all_reduce(sync) : write_library_all_reduce(sync);
  if (!tree_ &&
      (plan_.device == device::DeviceKind::cuda || plan_.parallel.algorithm == AllReduceAlgorithm::library))
    return write_library_all_reduce(sync);
  if (tree_ && plan_.division.follows_tree && !halves_) return write_tree_all_reduce(sync);
  if (tree_) {
    write_tree_reduce_scatter(sync, plan_.division);
    if (!sums_whole(sync, plan_.division)) write_tree_all_gather(sync, plan_.division, sync.slots[0]);
  } else {
    const auto blocks = equal_blocks(sync.size_bytes, workers);
    write_ring_reduce_scatter(sync, {sync.slots[0], 0, sync.size_bytes}, blocks);
    write_ring_all_gather(sync, {sync.slots[0], 0, sync.size_bytes}, blocks);
  }
}

void Synchronizer::gather_parameters(int segment, const layout::Slice& slice) {
  const layout::Ownership& ownership = plan_.ownership;
  const int buffer = writer_.parameter_buffer(segment);
  const int64_t changed_bytes = plan_.partition.bucket(segment).owned_bytes;
  if (!ownership.has_owners() || buffer < 0 || changed_bytes == 0) return;
  BucketSync sync = bucket(segment, gather_, {});
  sync.shards = parameter_shards(ownership, segment);
  const bool computes = ownership.computes(segment, rank_);
  if (ownership.has_servers() || (servers_ && computes)) {
    write_server_gather(sync, servers(ownership.stage_of_segment(segment)).ranks, recipients(segment),
                        ownership.held(segment, rank_), buffer, slice);
    if (const auto* host = own_host(); host != nullptr && computes)
      write_host_gather(sync, *host, ownership.owners(), buffer);
  }
  if (servers_ || !computes || ownership.replicas() == 1) return;
  if (tree_)
    write_tree_all_gather(sync, plan_.division, buffer);
  else
    write_ring_all_gather(sync, {buffer, 0, changed_bytes}, blocks_of(sync.shards, plan_.division.workers));
}

void Synchronizer::norm(int compute, UpdateVerdict verdict) {
  const layout::Measures& measures = plan_.measures;
  const ProgramWriter::WriteSum sum = sum_of_parts();
  writer_.norm(compute, sum, GradientsOf::updated, measures.parameters);
  if (measures.updates()) writer_.propose(compute, measures.proposed_slots, verdict, sum);
  if (measures.any()) writer_.ratios(compute, verdict);
}

/// Each sum of squares is known to one owner, or to one stage of each replica, and zero to all others: adding
/// them rounds nothing, in any order.
ProgramWriter::WriteSum Synchronizer::sum_of_parts() {
  const bool has_stages = plan_.ownership.stages() > 1;
  const bool is_in_parts = has_stages || (plan_.ownership.has_owners() && plan_.ownership.ranks() > 1);
  if (!is_in_parts) return {};
  return [this](program::ByteRange chunks) {
    program::Instruction sum;
    sum.kind = program::InstructionKind::all_reduce;
    sum.lane = norm_.lane;
    sum.group = norm_.group;
    sum.deadline = program::DeadlineClass::communication;
    sum.operands.push_back({program::Role::data, 0, program::Access::read_write, chunks, -1, DType::float64});
    writer_.program.instructions.push_back(std::move(sum));
  };
}

std::vector<int> Synchronizer::gradient_slots(int segment, int count) const {
  std::vector<int> slots;
  for (int slot = 0; slot < count; ++slot)
    slots.push_back(narrow_ ? writer_.wire_buffer(segment, slot) : writer_.gradient_buffer(segment, slot));
  return slots;
}

BucketSync Synchronizer::bucket(int segment, Channel channel, std::span<const int> slots) const {
  const layout::Ownership& ownership = plan_.ownership;
  const int first = first_worker(ownership.stage_of_segment(segment));
  return {.program = writer_.program,
          .lane = channel.lane,
          .group = channel.group,
          .worker = ownership.has_servers() ? rank_ - first : ownership.replica_of(rank_),
          .workers = plan_.division.workers,
          .segment = segment,
          .slots = slots,
          .shards = {},
          .size_bytes = ownership.summed_bytes(segment),
          .first = first};
}

Shards Synchronizer::gradient_shards(int segment) const {
  return placed_shards(plan_.ownership, segment, [this, segment](int first, int last) {
    return plan_.ownership.gradients(segment, first, last);
  });
}

}  // namespace lockstep::parallel
