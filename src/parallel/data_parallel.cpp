#include "parallel/data_parallel.h"

#include <fmt/format.h>

#include <numeric>
#include <vector>

#include "lockstep/error.h"
#include "parallel/gradient_sync.h"

namespace lockstep {
namespace {

int most_leaves(const BatchDivision& division) { return division.leaves_of(0).size(); }

/// What all three programs begin with.
ProgramWriter begin(const DataParallelPlan& plan, const char* name, int rank, const ModelCode& code) {
  ProgramWriter writer(name, plan.graph, plan.partition, code, plan.state_slots, plan.shares.at(static_cast<size_t>(rank)));
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
Channel add_channel(Program& program, const std::string& name) {
  Group group{name, std::vector<int>(static_cast<size_t>(program.world_size))};
  std::iota(group.members.begin(), group.members.end(), 0);
  program.groups.push_back(std::move(group));
  return {program.add_lane(name, LaneKind::comm), static_cast<int>(program.groups.size()) - 1};
}

/// Whether gradients meet in memory that all workers share. Throws ConfigError where that is asked for and cannot be.
bool reduces_in_shared_memory(const DataParallelPlan& plan) {
  const auto algorithm = plan.parallel.algorithm;
  if (plan.device == DeviceKind::cuda) {
    if (algorithm == AllReduceAlgorithm::shared_memory)
      throw ConfigError("parallel.algorithm is SHARED_MEMORY, but GPUs share no memory of their host; leave the field out");
    return false;
  }
  if (algorithm == AllReduceAlgorithm::tree && plan.parallel.reduction == Reduction::fast)
    throw ConfigError("parallel.algorithm is TREE, which on CPUs is for parallel.reduction: REPRODUCIBLE; use LIBRARY, RING or "
                      "SHARED_MEMORY, or leave the field out");
  if (algorithm == AllReduceAlgorithm::shared_memory && !plan.shared_memory && plan.division.workers > 1)
    throw ConfigError(fmt::format("parallel.algorithm is SHARED_MEMORY, but the {} workers do not share one host's memory; start "
                                  "all of them on one host, or leave the field out", plan.division.workers));
  return plan.shared_memory && (algorithm == AllReduceAlgorithm::automatic || algorithm == AllReduceAlgorithm::shared_memory);
}

bool follows_tree(const BatchDivision& division) {
  std::vector<TreeNode> ranges;
  for (int worker = 0; worker < division.workers; ++worker) ranges.push_back(division.leaves_of(worker));
  return follows_tree(division.leaves, ranges);
}

void write_sync(const DataParallelPlan& plan, ProgramWriter& writer, Channel channel, int rank, int segment, int results) {
  std::vector<int> slots;
  for (int slot = 0; slot < results; ++slot) slots.push_back(writer.gradient_buffer(segment, slot));
  const BucketSync sync{writer.program, channel.lane, channel.group, rank, segment, slots};
  const bool shared = reduces_in_shared_memory(plan);
  if (plan.parallel.reduction == Reduction::reproducible) {
    if (shared && follows_tree(plan.division)) {
      write_ordered_all_reduce(sync, plan.division.workers);
    } else {
      write_tree_reduction(sync, plan.division);
    }
  } else if (shared || plan.device == DeviceKind::cuda || plan.parallel.algorithm == AllReduceAlgorithm::library) {
    write_library_all_reduce(sync, plan.division.workers);
  } else {
    write_ring_all_reduce(sync, plan.division.workers);
  }
}

void write_updates(const DataParallelPlan& plan, ProgramWriter& writer, int compute, int update) {
  const int segments = static_cast<int>(plan.partition.segments.size());
  if (plan.update_as_it_lands) {
    for (int s = segments - 1; s >= 0; --s) {
      writer.add_tied_uses(update, s);
      writer.update(update, s, UpdateVerdict::none);
    }
    writer.norm(compute);
    return;
  }
  for (int s = segments - 1; s >= 0; --s) writer.add_tied_uses(update, s);
  writer.norm(compute);
  for (int s = segments - 1; s >= 0; --s)
    writer.update(update, s, plan.skip_nonfinite ? UpdateVerdict::scale_and_predicate : UpdateVerdict::scale);
}

}  // namespace

Program compile_step(const DataParallelPlan& plan, int rank) {
  ProgramWriter writer = begin(plan, "step", rank, plan.training);
  auto& program = writer.program;
  const int copy = program.add_lane("copy", LaneKind::copy);
  const int compute = program.add_lane("compute", LaneKind::compute);
  const Channel agree = add_channel(program, "agree");
  const Channel reduce = add_channel(program, "reduce");
  program.groups.back().shared_memory = reduces_in_shared_memory(plan);
  const int update = plan.update_as_it_lands ? program.add_lane("update", LaneKind::compute) : compute;

  const auto& division = plan.division;
  const TreeNode leaves = division.leaves_of(rank);
  const FoldPlan fold = plan_fold(division.leaves, leaves.begin, leaves.end);
  writer.add_metrics(leaves.size());
  writer.add_gradient_slots(fold.slots);
  const int segments = static_cast<int>(plan.partition.segments.size());
  writer.cast_parameters(compute);
  const auto has_bucket = [&](int s) { return plan.partition.buckets[static_cast<size_t>(s)].size_bytes > 0; };

  int micro_batch = 0;
  for (size_t f = 0; f < fold.steps.size(); ++f) {
    const FoldStep step = fold.steps[f];
    if (step.kind != FoldStep::Kind::leaf) continue;   // taken together with the leaf before it
    const bool last_leaf = step.leaf + 1 == leaves.end;
    for (int m = 0; m < division.micro_batches_per_leaf; ++m, ++micro_batch) {
      const bool leaf_complete = m + 1 == division.micro_batches_per_leaf;
      writer.load(copy, micro_batch, step.leaf);
      for (int s = 0; s < segments; ++s)
        writer.forward(compute, s, micro_batch, step.leaf, step.leaf - leaves.begin, m > 0);
      // The loss is complete: agree on it behind the last backward pass.
      if (last_leaf && leaf_complete) writer.agree(agree.lane, agree.group, division.workers, most_leaves(division));
      for (int s = segments - 1; s >= 0; --s) {
        writer.backward(compute, s, micro_batch, step.leaf, step.slot, m > 0);
        if (!leaf_complete || !has_bucket(s)) continue;
        for (size_t add = f + 1; add < fold.steps.size() && fold.steps[add].kind == FoldStep::Kind::add; ++add)
          writer.add_ranges(compute, program.whole(writer.gradient_buffer(s, fold.steps[add].slot)),
                            program.whole(writer.gradient_buffer(s, fold.steps[add].slot + 1)));
        if (last_leaf) write_sync(plan, writer, reduce, rank, s, static_cast<int>(fold.results.size()));
      }
    }
  }
  write_updates(plan, writer, compute, update);
  return std::move(writer.program);
}

Program compile_evaluation(const DataParallelPlan& plan, int rank) {
  ProgramWriter writer = begin(plan, "evaluate", rank, plan.evaluation);
  auto& program = writer.program;
  const int copy = program.add_lane("copy", LaneKind::copy);
  const int compute = program.add_lane("compute", LaneKind::compute);
  const Channel agree = add_channel(program, "agree");
  program.micro_batches_per_leaf = 1;
  const TreeNode leaves = plan.division.leaves_of(rank);
  writer.add_metrics(leaves.size());
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

Program compile_boundary(const DataParallelPlan& plan, int rank) {
  ProgramWriter writer = begin(plan, "boundary", rank, plan.evaluation);
  auto& program = writer.program;
  const int copy = program.add_lane("copy", LaneKind::copy);
  const Channel agree = add_channel(program, "agree");
  writer.add_metrics(1);
  writer.snapshot(copy);
  writer.agree(agree.lane, agree.group, plan.division.workers, 1);
  return std::move(writer.program);
}

}  // namespace lockstep
