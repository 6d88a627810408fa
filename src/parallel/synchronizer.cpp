#include "parallel/synchronizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "base/index.h"
#include "lockstep/error.h"
#include "parallel/ring_sync.h"

namespace lockstep::parallel {
namespace {

/// Whether gradients meet in memory that all workers share. Throws ConfigError where that is asked for and
/// cannot be.
bool reduces_in_shared_memory(const ProgramPlan& plan) {
  const auto algorithm = plan.parallel.algorithm;
  if (plan.device == device::DeviceKind::cuda) {
    if (algorithm == AllReduceAlgorithm::shared_memory)
      throw ConfigError(
          "parallel.algorithm is SHARED_MEMORY, but GPUs share no memory of their host; leave the field out");
    return false;
  }
  if (algorithm == AllReduceAlgorithm::tree && plan.parallel.reduction == layout::Reduction::fast)
    throw ConfigError(
        "parallel.algorithm is TREE, which on CPUs is for parallel.reduction: REPRODUCIBLE; use LIBRARY, "
        "RING or "
        "SHARED_MEMORY, or leave the field out");
  if (algorithm == AllReduceAlgorithm::shared_memory && !plan.shared_memory && plan.division.workers > 1)
    throw ConfigError(fmt::format(
        "parallel.algorithm is SHARED_MEMORY, but the {} workers do not share one host's memory; start "
        "all of them on one host, or leave the field out",
        plan.division.workers));
  return plan.shared_memory && !plan.placement.has_owners() &&
         (algorithm == AllReduceAlgorithm::automatic || algorithm == AllReduceAlgorithm::shared_memory);
}

program::Transport sum_transport(const ProgramPlan& plan) {
  return reduces_in_shared_memory(plan) ? program::Transport::shared_memory : plain_transport(plan);
}

/// The workers of each host, where they sum among themselves first; otherwise nothing.
std::vector<std::vector<int>> hosts_that_sum(const ProgramPlan& plan) {
  if (plan.parallel.layout.aggregate == layout::Aggregation::none) return {};
  std::map<int, std::vector<int>> workers;  // by host
  for (int worker = 0; worker < plan.division.workers; ++worker)
    workers[nth(plan.hosts, worker)].push_back(worker);
  std::vector<std::vector<int>> hosts;
  for (auto& [host, ranks] : workers) hosts.push_back(std::move(ranks));
  // As their first workers come.
  std::sort(hosts.begin(), hosts.end());
  return hosts;
}

}  // namespace

bool uses_servers(const ProgramPlan& plan) {
  return plan.placement.has_owners() &&
         (!plan.placement.all_workers_own() || plan.parallel.layout.aggregate == layout::Aggregation::host);
}

void require_sums_exist(const ProgramPlan& plan) { reduces_in_shared_memory(plan); }

Synchronizer::Synchronizer(const ProgramPlan& plan, ProgramWriter& writer, int rank, int add)
    : plan_(plan),
      writer_(writer),
      rank_(rank),
      add_(add),
      shared_memory_(reduces_in_shared_memory(plan)),
      tree_(plan.parallel.reduction == layout::Reduction::reproducible),
      halves_(tree_ && plan.division.folds_by_halving),
      servers_(uses_servers(plan)),
      reduce_(add_stage_channel(plan, writer.program, "reduce", sum_transport(plan), rank)),
      // What comes back must not stand behind what is still to be sent.
      gather_(servers_ ? add_channel(writer.program, "gather", plain_transport(plan)) : reduce_),
      hosts_(hosts_that_sum(plan)),
      contributions_(hosts_.empty() ? contributions_of_workers(plan.division)
                                    : contributions_of_hosts(hosts_, plan.division, !tree_)) {
  if (!plan.placement.is_worker(rank)) add_arrivals();
  if (plan.placement.stages() > 1) stages_ = add_replica_channel(plan, writer.program, "stages", rank);
}

void Synchronizer::add_arrivals() {
  int64_t most = 0;
  for (int s = 0; s < static_cast<int>(plan_.partition.segments.size()); ++s) {
    int64_t bytes = 0;
    for (const layout::ByteSpan& part : plan_.placement.held_gradients(s, rank_)) bytes += part.size();
    most = std::max(most, bytes);
  }
  size_t nodes = 0;
  for (const Contributor& one : contributions_.from) nodes += one.nodes.size();
  for (size_t turn = 0; turn < arrivals_.size(); ++turn)
    for (size_t node = 1; node < nodes && most > 0; ++node)
      arrivals_[turn].push_back(writer_.program.add_buffer(fmt::format("arrival.{}.{}", node, turn),
                                                           program::Space::gradients,
                                                           program::Category::gradients, most));
}

void Synchronizer::sum(int segment, int nodes) {
  const std::vector<int> slots = gradient_slots(segment, nodes);
  BucketSync sync = bucket(segment, reduce_, slots);
  if (plan_.placement.has_owners()) sync.shards = gradient_shards(segment);
  if (servers_) return sum_at_servers(sync);
  if (plan_.placement.has_owners()) return sum_shards(sync);
  sum_whole(std::move(sync));
}

Servers Synchronizer::servers() const {
  return {.ranks = plan_.placement.owners(), .contributions = contributions_, .arrivals = {}};
}

const std::vector<int>* Synchronizer::own_host() const {
  for (const auto& host : hosts_)
    if (std::find(host.begin(), host.end(), rank_) != host.end()) return &host;
  return nullptr;
}

void Synchronizer::sum_at_servers(BucketSync sync) {
  std::vector<int> folded;
  const std::vector<int> own(sync.slots.begin(), sync.slots.end());
  if (const auto* host = own_host()) {
    folded = write_host_fold(sync, *host, plan_.division, !tree_);
    sync.slots = folded.empty() ? own : folded;
  }
  Servers at = servers();
  if (!plan_.placement.is_worker(rank_)) {
    at.add_lane = add_;
    at.arrivals = arrivals_[static_cast<size_t>(arrived_++ % 2)];
  }
  write_server_fold(sync, at);
}

void Synchronizer::sum_shards(const BucketSync& sync) {
  if (tree_)
    write_tree_reduce_scatter(sync, plan_.division);
  else
    write_ring_reduce_scatter(sync, blocks_of(sync.shards, plan_.division.workers));
}

void Synchronizer::sum_whole(BucketSync sync) {
  const int64_t size_bytes = plan_.partition.bucket(sync.segment).size_bytes;
  const int workers = plan_.division.workers;
  sync.shards = equal_shards(size_bytes, workers, halves_);
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
    const auto blocks = equal_blocks(size_bytes, workers);
    write_ring_reduce_scatter(sync, blocks);
    write_ring_all_gather(sync, sync.slots[0], blocks);
  }
}

void Synchronizer::gather_parameters(int segment) {
  const layout::Placement& placement = plan_.placement;
  const int buffer = writer_.parameter_buffer(segment);
  if (!placement.has_owners() || placement.ranks() == 1 || buffer < 0) return;
  BucketSync sync = bucket(segment, gather_, {});
  sync.shards = parameter_shards(placement, segment);
  if (servers_) {
    write_server_gather(sync, servers(), buffer);
    if (const auto* host = own_host()) write_host_gather(sync, *host, placement.owners(), buffer);
  } else if (tree_)
    write_tree_all_gather(sync, plan_.division, buffer);
  else
    write_ring_all_gather(sync, buffer, blocks_of(sync.shards, plan_.division.workers));
}

void Synchronizer::norm(int compute) {
  const bool has_stages = plan_.placement.stages() > 1;
  const bool is_in_parts = has_stages || (plan_.placement.has_owners() && plan_.placement.ranks() > 1);
  if (!is_in_parts) return writer_.norm(compute);
  const Channel channel = has_stages ? stages_ : reduce_;
  // Each sum of squares is known to one owner, or to one stage of each replica, and zero to all others:
  // adding them rounds nothing, in any order.
  writer_.norm(compute, [&](program::ByteRange chunks) {
    program::Instruction sum;
    sum.kind = program::InstructionKind::all_reduce;
    sum.lane = channel.lane;
    sum.group = channel.group;
    sum.deadline = program::DeadlineClass::communication;
    sum.operands.push_back({program::Role::data, 0, program::Access::read_write, chunks, -1, DType::float64});
    writer_.program.instructions.push_back(std::move(sum));
  });
}

std::vector<int> Synchronizer::gradient_slots(int segment, int count) const {
  std::vector<int> slots;
  for (int slot = 0; slot < count; ++slot) slots.push_back(writer_.gradient_buffer(segment, slot));
  return slots;
}

BucketSync Synchronizer::bucket(int segment, Channel channel, std::span<const int> slots) const {
  return {.program = writer_.program,
          .lane = channel.lane,
          .group = channel.group,
          .worker = plan_.placement.is_worker(rank_) ? plan_.placement.replica_of(rank_) : rank_,
          .workers = plan_.division.workers,
          .segment = segment,
          .slots = slots,
          .shards = {}};
}

Shards Synchronizer::gradient_shards(int segment) const {
  return placed_shards(plan_.placement, [this, segment](int first, int last) {
    return plan_.placement.gradients(segment, first, last);
  });
}

}  // namespace lockstep::parallel
