#include "parallel/data_parallel.h"

#include <utility>
#include <vector>

#include "parallel/rank_program.h"
#include "parallel/session_programs.h"
#include "parallel/synchronizer.h"

namespace lockstep::parallel {
namespace {

/// The lanes and channels of a step, in one order on all ranks.
struct StepLanes {
  int copy, compute;
  Channel agree;
  Synchronizer synchronizer;
  int update;

  StepLanes(const DataParallelPlan& plan, ProgramWriter& writer, int rank)
      : copy(writer.program.add_lane("copy", program::LaneKind::copy)),
        compute(writer.program.add_lane("compute", program::LaneKind::compute)),
        agree(add_channel(writer.program, "agree", plain_transport(plan))),
        synchronizer(plan, writer, rank, compute),
        update(plan.update_as_it_lands ? writer.program.add_lane("update", program::LaneKind::compute)
                                       : compute) {}
};

/// Whether what a bucket becomes goes back while others are still summed: at servers, whose links carry both
/// directions at once.
bool returns_as_it_lands(const DataParallelPlan& plan) {
  return plan.update_as_it_lands && uses_servers(plan);
}

/// Sums a bucket, and where nothing is waited for goes on to the end.
void meet(const DataParallelPlan& plan, ProgramWriter& writer, StepLanes& lanes, int segment, int nodes) {
  lanes.synchronizer.sum(segment, nodes);
  if (!returns_as_it_lands(plan)) return;
  writer.add_tied_uses(lanes.update, segment);
  writer.update(lanes.update, segment, UpdateVerdict::none);
  lanes.synchronizer.gather_parameters(segment);
}

/// With owners, what the next step reads first is updated and sent first; otherwise what is complete first.
void write_updates(const DataParallelPlan& plan, ProgramWriter& writer, StepLanes& lanes) {
  const int segments = static_cast<int>(plan.partition.segments.size());
  const bool owned = plan.placement.has_owners();
  const UpdateVerdict verdict = plan.update_as_it_lands ? UpdateVerdict::none
                                : plan.skip_nonfinite   ? UpdateVerdict::scale_and_predicate
                                                        : UpdateVerdict::scale;
  if (returns_as_it_lands(plan)) return lanes.synchronizer.norm(lanes.compute);
  for (int s = segments - 1; s >= 0; --s) {
    writer.add_tied_uses(lanes.update, s);
    if (plan.update_as_it_lands && !owned) writer.update(lanes.update, s, verdict);
  }
  lanes.synchronizer.norm(lanes.compute);
  if (plan.update_as_it_lands && !owned) return;
  for (int i = 0; i < segments; ++i) {
    const int s = owned ? i : segments - 1 - i;
    writer.update(lanes.update, s, verdict);
    lanes.synchronizer.gather_parameters(s);
  }
}

/// A server's part of a step: it holds no replica and has no batch, and sums, updates and sends what it owns.
program::Program compile_server_step(const DataParallelPlan& plan, int rank) {
  ProgramWriter writer = begin_program(plan, "step", rank, plan.training);
  StepLanes lanes(plan, writer, rank);
  writer.add_gradient_slots(1);
  writer.constants(lanes.copy);
  writer.agree(lanes.agree.lane, lanes.agree.group, plan.placement.ranks(), most_leaves(plan.division));
  for (int s = static_cast<int>(plan.partition.segments.size()) - 1; s >= 0; --s)
    if (writer.gradient_buffer(s, 0) >= 0) meet(plan, writer, lanes, s, 1);
  write_updates(plan, writer, lanes);
  return std::move(writer.program);
}

}  // namespace

program::Program compile_step(const DataParallelPlan& plan, int rank) {
  if (plan.parallel.layout.has_sessions()) return compile_session_step(plan, rank);
  if (!plan.placement.is_worker(rank)) return compile_server_step(plan, rank);
  ProgramWriter writer = begin_program(plan, "step", rank, plan.training);
  auto& program = writer.program;
  StepLanes lanes(plan, writer, rank);
  const auto& division = plan.division;
  const layout::TreeNode leaves = division.leaves_of(rank);
  const layout::FoldPlan fold = layout::plan_fold(division.leaves, leaves.begin, leaves.end);
  writer.add_metrics(leaves.size());
  writer.add_gradient_slots(fold.slots);
  const int segments = static_cast<int>(plan.partition.segments.size());
  writer.constants(lanes.copy);
  writer.cast_parameters(lanes.compute);
  const auto has_bucket = [&](int s) { return plan.partition.bucket(s).size_bytes > 0; };

  int micro_batch = 0;
  for (size_t f = 0; f < fold.steps.size(); ++f) {
    const layout::FoldStep step = fold.steps[f];
    if (step.kind != layout::FoldStep::Kind::leaf) continue;  // taken together with the leaf before it
    const bool last_leaf = step.leaf + 1 == leaves.end;
    for (int m = 0; m < division.micro_batches_per_leaf; ++m, ++micro_batch) {
      const bool leaf_complete = m + 1 == division.micro_batches_per_leaf;
      writer.load(lanes.copy, micro_batch, step.leaf);
      for (int s = 0; s < segments; ++s)
        writer.forward(lanes.compute, s, micro_batch, step.leaf, step.leaf - leaves.begin, m > 0);
      // The loss is complete: agree on it after the last backward pass.
      if (last_leaf && leaf_complete) {
        writer.agree(lanes.agree.lane, lanes.agree.group, plan.placement.ranks(), most_leaves(division));
        // What forward has read: parameters come back while backward goes on.
        if (plan.digests_parameters && returns_as_it_lands(plan)) writer.digest(lanes.compute);
      }
      for (int s = segments - 1; s >= 0; --s) {
        writer.backward(lanes.compute, s, micro_batch, step.leaf, step.slot, m > 0);
        if (!leaf_complete || !has_bucket(s)) continue;
        for (size_t add = f + 1;
             add < fold.steps.size() && fold.steps[add].kind == layout::FoldStep::Kind::add; ++add)
          writer.add_ranges(lanes.compute, program.whole(writer.gradient_buffer(s, fold.steps[add].slot)),
                            program.whole(writer.gradient_buffer(s, fold.steps[add].slot + 1)));
        if (last_leaf) meet(plan, writer, lanes, s, static_cast<int>(fold.results.size()));
      }
    }
  }
  // What forward and backward have read, while the last gradients meet: owners' updates write over it.
  if (plan.digests_parameters && !returns_as_it_lands(plan)) writer.digest(lanes.compute);
  write_updates(plan, writer, lanes);
  return std::move(writer.program);
}

program::Program compile_evaluation(const DataParallelPlan& plan, int rank) {
  ProgramWriter writer = begin_program(plan, "evaluate", rank, plan.evaluation);
  auto& program = writer.program;
  const int copy = program.add_lane("copy", program::LaneKind::copy);
  const int compute = program.add_lane("compute", program::LaneKind::compute);
  const Channel agree = add_channel(program, "agree", plain_transport(plan));
  program.micro_batches_per_leaf = 1;
  if (!plan.placement.is_worker(rank)) {
    writer.agree(agree.lane, agree.group, plan.placement.ranks(), most_leaves(plan.division));
    return std::move(writer.program);
  }
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
  writer.agree(agree.lane, agree.group, plan.placement.ranks(), most_leaves(plan.division));
  return std::move(writer.program);
}

program::Program compile_boundary(const DataParallelPlan& plan, int rank) {
  ProgramWriter writer = begin_program(plan, "boundary", rank, plan.evaluation);
  auto& program = writer.program;
  const int copy = program.add_lane("copy", program::LaneKind::copy);
  const Channel agree = add_channel(program, "agree", plain_transport(plan));
  writer.add_metrics(1);
  writer.snapshot(copy);
  writer.agree(agree.lane, agree.group, plan.placement.ranks(), 1);
  return std::move(writer.program);
}

}  // namespace lockstep::parallel
