#include "parallel/data_parallel.h"

#include <fmt/format.h>

#include <vector>

#include "lockstep/error.h"
#include "parallel/gradient_sync.h"
#include "parallel/ring_sync.h"

namespace lockstep::parallel {
namespace {

int most_leaves(const layout::BatchDivision& division) { return division.leaves_of(0).size(); }

/// What all three programs begin with.
ProgramWriter begin(const DataParallelPlan& plan, const char* name, int rank,
                    const program::ModelCode& code) {
  ProgramWriter writer(name, plan.graph, plan.partition, code, plan.placement, plan.state_slots, rank,
                       plan.shares.at(static_cast<size_t>(rank)));
  auto& program = writer.program;
  program.rank = rank;
  program.world_size = plan.division.workers;
  program.reduction = plan.parallel.reduction;
  program.virtual_replicas = plan.division.leaves;
  program.micro_batches_per_leaf = plan.division.micro_batches_per_leaf;
  return writer;
}

/// A communication lane and the group of all workers that it alone uses, by their numbers in the program.
struct Channel {
  int lane;
  int group;
};
Channel add_channel(program::Program& program, const std::string& name, program::Transport transport) {
  program.groups.push_back({name, program::Members::run(0, program.world_size), transport});
  return {program.add_lane(name, program::LaneKind::comm), static_cast<int>(program.groups.size()) - 1};
}

/// Whether gradients meet in memory that all workers share. Throws ConfigError where that is asked for and
/// cannot be.
bool reduces_in_shared_memory(const DataParallelPlan& plan) {
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
  return plan.shared_memory &&
         (algorithm == AllReduceAlgorithm::automatic || algorithm == AllReduceAlgorithm::shared_memory);
}

/// What everything but gradients travels through.
program::Transport plain_transport(const DataParallelPlan& plan) {
  return plan.device == device::DeviceKind::cuda ? program::Transport::device : program::Transport::host;
}

/// How the gradients of one step meet, bucket by bucket, and what is left to do after them.
class Synchronizer {
 public:
  Synchronizer(const DataParallelPlan& plan, ProgramWriter& writer, Channel channel, int worker)
      : plan_(plan),
        writer_(writer),
        channel_(channel),
        worker_(worker),
        shared_memory_(reduces_in_shared_memory(plan)),
        tree_(plan.parallel.reduction == layout::Reduction::reproducible),
        halves_(tree_ && plan.division.folds_by_halving) {}

  /// Sums of a bucket: whole, or this worker's shard of it.
  void sum(int segment, int results) {
    const std::vector<int> slots = gradient_slots(segment, results);
    const bool sharded = plan_.placement.shards_optimizer();
    const int64_t size_bytes = plan_.partition.bucket(segment).size_bytes;
    BucketSync sync = bucket(segment, slots);
    sync.shards =
        sharded ? gradient_shards(segment) : equal_shards(size_bytes, plan_.division.workers, halves_);
    if (!sharded && shared_memory_ && (!tree_ || plan_.division.follows_tree))
      return tree_ ? write_ordered_all_reduce(sync) : write_library_all_reduce(sync);
    if (!sharded && !tree_ &&
        (plan_.device == device::DeviceKind::cuda || plan_.parallel.algorithm == AllReduceAlgorithm::library))
      return write_library_all_reduce(sync);
    if (tree_ && !sharded && plan_.division.follows_tree && !halves_) return write_tree_all_reduce(sync);
    if (tree_) {
      write_tree_reduce_scatter(sync, plan_.division);
      if (!sharded && !sums_whole(sync, plan_.division))
        write_tree_all_gather(sync, plan_.division, slots[0]);
    } else {
      const auto blocks = sharded ? blocks_of(sync.shards, plan_.division.workers)
                                  : equal_blocks(size_bytes, plan_.division.workers);
      write_ring_reduce_scatter(sync, blocks);
      if (!sharded) write_ring_all_gather(sync, slots[0], blocks);
    }
  }

  /// After a sharded update: every worker's part of the segment's parameters gets to all others.
  void gather_parameters(int segment) {
    if (!plan_.placement.shards_optimizer() || plan_.division.workers == 1 ||
        writer_.parameter_buffer(segment) < 0)
      return;
    BucketSync sync = bucket(segment, {});
    sync.shards = placed([this, segment](int first, int last) {
      const layout::ByteSpan span = plan_.placement.updated(segment, first, last);
      return span.empty() ? std::vector<layout::ByteSpan>{} : std::vector<layout::ByteSpan>{span};
    });
    if (tree_) {
      write_tree_all_gather(sync, plan_.division, writer_.parameter_buffer(segment));
    } else {
      write_ring_all_gather(sync, writer_.parameter_buffer(segment),
                            blocks_of(sync.shards, plan_.division.workers));
    }
  }

  void norm(int compute) {
    if (!plan_.placement.shards_optimizer() || plan_.division.workers == 1) return writer_.norm(compute);
    // Each sum of squares is known to one worker, and zero to all others: adding them rounds nothing, in any
    // order.
    writer_.norm(compute, [this](program::ByteRange chunks) {
      program::Instruction sum;
      sum.kind = program::InstructionKind::all_reduce;
      sum.lane = channel_.lane;
      sum.group = channel_.group;
      sum.deadline = program::DeadlineClass::communication;
      sum.operands.push_back(
          {program::Role::data, 0, program::Access::read_write, chunks, -1, DType::float64});
      writer_.program.instructions.push_back(std::move(sum));
    });
  }

 private:
  std::vector<int> gradient_slots(int segment, int results) const {
    std::vector<int> slots;
    for (int slot = 0; slot < results; ++slot) slots.push_back(writer_.gradient_buffer(segment, slot));
    return slots;
  }
  BucketSync bucket(int segment, std::span<const int> slots) const {
    return {.program = writer_.program,
            .lane = channel_.lane,
            .group = channel_.group,
            .worker = worker_,
            .workers = plan_.division.workers,
            .segment = segment,
            .slots = slots,
            .shards = {}};
  }
  Shards gradient_shards(int segment) const {
    return placed(
        [this, segment](int first, int last) { return plan_.placement.gradients(segment, first, last); });
  }
  /// Shards where the placement has them.
  Shards placed(std::function<std::vector<layout::ByteSpan>(int first, int last)> parts) const {
    return {.position = [this](int worker) { return plan_.placement.position_of(worker); },
            .parts = std::move(parts)};
  }

  const DataParallelPlan& plan_;
  ProgramWriter& writer_;
  Channel channel_;
  int worker_;
  bool shared_memory_, tree_, halves_;
};

/// With shards, what the next step reads first is updated and sent first; otherwise what is complete first.
void write_updates(const DataParallelPlan& plan, ProgramWriter& writer, Synchronizer& synchronizer,
                   int compute, int update) {
  const int segments = static_cast<int>(plan.partition.segments.size());
  const bool sharded = plan.placement.shards_optimizer();
  const UpdateVerdict verdict = plan.update_as_it_lands ? UpdateVerdict::none
                                : plan.skip_nonfinite   ? UpdateVerdict::scale_and_predicate
                                                        : UpdateVerdict::scale;
  // What forward and backward have read, while the last gradients meet: sharded updates write over it.
  if (plan.digests_parameters) writer.digest(compute);
  for (int s = segments - 1; s >= 0; --s) {
    writer.add_tied_uses(update, s);
    if (plan.update_as_it_lands && !sharded) writer.update(update, s, verdict);
  }
  synchronizer.norm(compute);
  if (plan.update_as_it_lands && !sharded) return;
  for (int i = 0; i < segments; ++i) {
    const int s = sharded ? i : segments - 1 - i;
    writer.update(update, s, verdict);
    synchronizer.gather_parameters(s);
  }
}

}  // namespace

void require_sums_exist(const DataParallelPlan& plan) { reduces_in_shared_memory(plan); }

program::Program compile_step(const DataParallelPlan& plan, int rank) {
  ProgramWriter writer = begin(plan, "step", rank, plan.training);
  auto& program = writer.program;
  const int copy = program.add_lane("copy", program::LaneKind::copy);
  const int compute = program.add_lane("compute", program::LaneKind::compute);
  const Channel agree = add_channel(program, "agree", plain_transport(plan));
  const Channel reduce =
      add_channel(program, "reduce",
                  reduces_in_shared_memory(plan) ? program::Transport::shared_memory : plain_transport(plan));
  Synchronizer synchronizer(plan, writer, reduce, rank);
  const int update =
      plan.update_as_it_lands ? program.add_lane("update", program::LaneKind::compute) : compute;

  const auto& division = plan.division;
  const layout::TreeNode leaves = division.leaves_of(rank);
  const layout::FoldPlan fold = layout::plan_fold(division.leaves, leaves.begin, leaves.end);
  writer.add_metrics(leaves.size());
  writer.add_gradient_slots(fold.slots);
  const int segments = static_cast<int>(plan.partition.segments.size());
  writer.constants(copy);
  writer.cast_parameters(compute);
  const auto has_bucket = [&](int s) { return plan.partition.bucket(s).size_bytes > 0; };

  int micro_batch = 0;
  for (size_t f = 0; f < fold.steps.size(); ++f) {
    const layout::FoldStep step = fold.steps[f];
    if (step.kind != layout::FoldStep::Kind::leaf) continue;  // taken together with the leaf before it
    const bool last_leaf = step.leaf + 1 == leaves.end;
    for (int m = 0; m < division.micro_batches_per_leaf; ++m, ++micro_batch) {
      const bool leaf_complete = m + 1 == division.micro_batches_per_leaf;
      writer.load(copy, micro_batch, step.leaf);
      for (int s = 0; s < segments; ++s)
        writer.forward(compute, s, micro_batch, step.leaf, step.leaf - leaves.begin, m > 0);
      // The loss is complete: agree on it after the last backward pass.
      if (last_leaf && leaf_complete)
        writer.agree(agree.lane, agree.group, division.workers, most_leaves(division));
      for (int s = segments - 1; s >= 0; --s) {
        writer.backward(compute, s, micro_batch, step.leaf, step.slot, m > 0);
        if (!leaf_complete || !has_bucket(s)) continue;
        for (size_t add = f + 1;
             add < fold.steps.size() && fold.steps[add].kind == layout::FoldStep::Kind::add; ++add)
          writer.add_ranges(compute, program.whole(writer.gradient_buffer(s, fold.steps[add].slot)),
                            program.whole(writer.gradient_buffer(s, fold.steps[add].slot + 1)));
        if (last_leaf) synchronizer.sum(s, static_cast<int>(fold.results.size()));
      }
    }
  }
  write_updates(plan, writer, synchronizer, compute, update);
  return std::move(writer.program);
}

program::Program compile_evaluation(const DataParallelPlan& plan, int rank) {
  ProgramWriter writer = begin(plan, "evaluate", rank, plan.evaluation);
  auto& program = writer.program;
  const int copy = program.add_lane("copy", program::LaneKind::copy);
  const int compute = program.add_lane("compute", program::LaneKind::compute);
  const Channel agree = add_channel(program, "agree", plain_transport(plan));
  program.micro_batches_per_leaf = 1;
  const layout::TreeNode leaves = plan.division.leaves_of(rank);
  writer.add_metrics(leaves.size());
  writer.constants(copy);
  writer.cast_parameters(compute);
  for (int leaf = leaves.begin; leaf < leaves.end; ++leaf) {
    const int micro_batch = leaf - leaves.begin;
    writer.load(copy, micro_batch, leaf);
    for (size_t s = 0; s < plan.partition.segments.size(); ++s)
      writer.forward(compute, static_cast<int>(s), micro_batch, leaf, micro_batch, false);
  }
  writer.agree(agree.lane, agree.group, plan.division.workers, most_leaves(plan.division));
  return std::move(writer.program);
}

program::Program compile_boundary(const DataParallelPlan& plan, int rank) {
  ProgramWriter writer = begin(plan, "boundary", rank, plan.evaluation);
  auto& program = writer.program;
  const int copy = program.add_lane("copy", program::LaneKind::copy);
  const Channel agree = add_channel(program, "agree", plain_transport(plan));
  writer.add_metrics(1);
  writer.snapshot(copy);
  writer.agree(agree.lane, agree.group, plan.division.workers, 1);
  return std::move(writer.program);
}

}  // namespace lockstep::parallel
