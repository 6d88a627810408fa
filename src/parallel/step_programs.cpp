#include "parallel/step_programs.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "layout/pipeline_events.h"
#include "parallel/rank_program.h"
#include "parallel/session_programs.h"
#include "parallel/stage_links.h"
#include "parallel/synchronizer.h"
#include "parallel/tied_stages.h"

namespace lockstep::parallel {
namespace {

using layout::PipelineEvent;
using layout::PipelineUnit;

/// A slice of a bucket that comes back as it lands, whose exchange is written, and nothing of what follows
/// it.
struct Landed {
  int segment;
  layout::Slice slice;
  std::vector<program::Instruction> additions;  ///< at a server; workers add within the sum
};

/// The lanes and channels of a step, in one order on all ranks.
struct StepLanes {
  int copy, compute;
  Channel agree;
  StageLinks links;
  Synchronizer synchronizer;
  TiedStages ties;
  int update;
  std::optional<Landed> landed;

  StepLanes(const ProgramPlan& plan, ProgramWriter& writer, int rank)
      : copy(writer.program.add_lane("copy", program::LaneKind::copy)),
        compute(writer.program.add_lane("compute", program::LaneKind::compute)),
        agree(add_channel(writer.program, "agree", plain_transport(plan))),
        links(plan, writer, plan.training, rank),
        synchronizer(plan, writer, rank, compute),
        ties(plan, writer, rank),
        update(plan.update_as_it_lands ? writer.program.add_lane("update", program::LaneKind::compute)
                                       : compute) {}
};

/// What is made of the slice that has landed.
void go_on_with_landed(ProgramWriter& writer, StepLanes& lanes) {
  if (!lanes.landed) return;
  Landed landed = *std::exchange(lanes.landed, std::nullopt);
  std::ranges::move(landed.additions, std::back_inserter(writer.program.instructions));
  writer.add_tied_uses(lanes.update, landed.segment, landed.slice);
  writer.update(lanes.update, landed.segment, UpdateVerdict::none, landed.slice);
  lanes.synchronizer.gather_parameters(landed.segment, landed.slice);
}

/// Sums a bucket, and where nothing is waited for goes on to the end. The exchange of the next slice stands
/// before what is made of one, on all ranks, so that servers wait for it when workers send it. (More than one
/// ahead was not faster.) A bucket that is not cut goes on by itself: its way back would wait for the next
/// one's backward.
void meet(const ProgramPlan& plan, ProgramWriter& writer, StepLanes& lanes, int segment, int nodes) {
  if (!returns_as_it_lands(plan)) return lanes.synchronizer.sum(segment, nodes);
  const bool serves = !plan.ownership.is_worker(writer.program.rank);
  const int count = lanes.synchronizer.slices(segment);
  auto& instructions = writer.program.instructions;
  if (count == 1) go_on_with_landed(writer, lanes);
  for (int i = 0; i < count; ++i) {
    const size_t exchange = instructions.size();
    lanes.synchronizer.sum(segment, nodes, {i, count});
    Landed landed{.segment = segment, .slice = {i, count}, .additions = {}};
    if (serves && instructions.size() > exchange) {
      const auto additions = instructions.begin() + static_cast<std::ptrdiff_t>(exchange) + 1;
      std::move(additions, instructions.end(), std::back_inserter(landed.additions));
      instructions.erase(additions, instructions.end());
    }
    go_on_with_landed(writer, lanes);
    lanes.landed = std::move(landed);
  }
  if (count == 1) go_on_with_landed(writer, lanes);
}

/// With owners, and at the stages of a pipeline, what the next step reads first is updated and sent first;
/// otherwise what is complete first.
void write_updates(const ProgramPlan& plan, ProgramWriter& writer, StepLanes& lanes) {
  const int segments = static_cast<int>(plan.partition.segments.size());
  const bool in_order = plan.ownership.has_owners() || plan.ownership.stages() > 1;
  const bool as_it_lands = plan.update_as_it_lands && !in_order;
  const UpdateVerdict verdict = plan.update_as_it_lands ? UpdateVerdict::none
                                : plan.skip_nonfinite   ? UpdateVerdict::scale_and_predicate
                                                        : UpdateVerdict::scale;
  go_on_with_landed(writer, lanes);
  if (returns_as_it_lands(plan)) return lanes.synchronizer.norm(lanes.compute, verdict);
  lanes.ties.collect();
  for (int s = segments - 1; s >= 0; --s) {
    lanes.ties.add(lanes.update, s);
    if (as_it_lands) writer.update(lanes.update, s, verdict);
  }
  lanes.synchronizer.norm(lanes.compute, verdict);
  if (as_it_lands) return;
  for (int i = 0; i < segments; ++i) {
    const int s = in_order ? i : segments - 1 - i;
    writer.update(lanes.update, s, verdict);
    lanes.synchronizer.gather_parameters(s);
    lanes.ties.spread(s);
  }
}

/// A server's part of a step: it holds no replica and has no batch, and sums, updates and sends what it owns.
program::Program compile_server_step(const ProgramPlan& plan, int rank) {
  ProgramWriter writer = begin_program(plan, "step", rank, plan.training);
  StepLanes lanes(plan, writer, rank);
  writer.add_gradient_slots(1);
  if (plan.narrows_gradients()) writer.add_wire_slots(1, plan.parallel.wire);
  writer.constants(lanes.copy);
  // Workers agree before their last backward; those of stages when all of them are done.
  const auto agree = [&] {
    writer.agree(lanes.agree.lane, lanes.agree.group, plan.ownership.ranks(), most_records(plan.division));
  };
  if (plan.ownership.stages() == 1) agree();
  for (int s = static_cast<int>(plan.partition.segments.size()) - 1; s >= 0; --s)
    if (plan.partition.bucket(s).size_bytes > 0) meet(plan, writer, lanes, s, 1);
  if (plan.ownership.stages() > 1) agree();
  write_updates(plan, writer, lanes);
  return std::move(writer.program);
}

/// A worker's micro-batch, and what becomes of its gradients.
struct MicroBatch {
  layout::TreeNode leaves;  ///< of which it is a part, or that it holds
  int slot;                 ///< of their gradient
  bool accumulates;         ///< it is not the leaf's first
  bool completes_leaf;      ///< it is the leaf's last
  bool completes_step;      ///< it is the last of all
  std::vector<int> folded;  ///< then slots to which the one after each is added
};

std::vector<MicroBatch> micro_batches_of(const layout::BatchDivision& division, int replica,
                                         const layout::FoldPlan& fold) {
  const layout::TreeNode leaves = division.leaves_of(replica);
  std::vector<MicroBatch> list;
  for (size_t f = 0; f < fold.steps.size(); ++f) {
    const layout::FoldStep& step = fold.steps[f];
    if (step.kind != layout::FoldStep::Kind::leaf) continue;  // taken together with the leaf before it
    std::vector<int> folded;
    for (size_t add = f + 1; add < fold.steps.size() && fold.steps[add].kind == layout::FoldStep::Kind::add;
         ++add)
      folded.push_back(fold.steps[add].slot);
    for (int m = 0; m < division.micro_batches_per_leaf; ++m) {
      const bool completes = m + 1 == division.micro_batches_per_leaf;
      list.push_back({.leaves = step.node(),
                      .slot = step.slot,
                      .accumulates = m > 0,
                      .completes_leaf = completes,
                      .completes_step = completes && step.node().end == leaves.end,
                      .folded = completes ? folded : std::vector<int>{}});
    }
  }
  return list;
}

/// Segments of a piece of the model, ascending; none of a piece without.
std::vector<int> segments_of(const model::Partition& partition, int piece) {
  std::vector<int> segments;
  for (int s = 0; s < static_cast<int>(partition.segments.size()); ++s)
    if (partition.piece_of(s) == piece) segments.push_back(s);
  return segments;
}

/// The first of a rank's pieces that reads a batch; the number of pieces, if none does.
int first_loading_piece(const ProgramPlan& plan, const ProgramWriter& writer, int rank) {
  const int pieces = plan.partition.piece_count();
  for (int piece = plan.ownership.stage_of(rank); piece < pieces; piece += plan.ownership.stages())
    if (writer.loads(segments_of(plan.partition, piece))) return piece;
  return pieces;
}

bool completes_gradients(PipelineUnit::Kind kind) {
  return kind == PipelineUnit::Kind::backward || kind == PipelineUnit::Kind::backward_weight;
}

program::InstructionKind instruction_of(PipelineUnit::Kind backward) {
  switch (backward) {
    case PipelineUnit::Kind::backward_input:
      return program::InstructionKind::backward_input;
    case PipelineUnit::Kind::backward_weight:
      return program::InstructionKind::backward_weight;
    default:
      return program::InstructionKind::backward;
  }
}

/// The most micro-batches that a piece has values of at once: from when they come, or it makes them, to the
/// last unit that reads them. Of activations, or of gradients.
int most_under_way(const std::vector<PipelineEvent>& events, int piece, bool gradients) {
  std::set<int> under_way;
  size_t most = 0;
  for (const PipelineEvent& event : events) {
    const bool forward = event.unit.kind == PipelineUnit::Kind::forward,
               is_unit = event.kind == PipelineEvent::Kind::unit;
    const bool arrives = event.kind == PipelineEvent::Kind::receive && event.receiver == piece;
    const bool is_made = is_unit && event.piece == piece;
    if ((arrives || is_made) && forward != gradients) under_way.insert(event.unit.micro_batch);
    most = std::max(most, under_way.size());
    if (is_made && completes_gradients(event.unit.kind)) under_way.erase(event.unit.micro_batch);
  }
  return static_cast<int>(most);
}

/// What passes from stage to stage has so many buffers: as many as a piece has micro-batches under way, and
/// one more for what is sent or arrives meanwhile.
void share_borders(ProgramWriter& writer, const StageLinks& links, int piece, int activations,
                   int gradients) {
  const auto& borders = links.borders();
  for (const int border : {piece - 1, piece}) {
    if (border < 0 || border >= static_cast<int>(borders.size())) continue;
    writer.take_turns(nth(borders, border).activations, false, piece, activations);
    writer.take_turns(nth(borders, border).gradients, true, piece, gradients);
  }
}

/// A worker's part of a step: its units of the schedule, with what they get from other stages and make for
/// them.
class StepWriter {
 public:
  StepWriter(const ProgramPlan& plan, ProgramWriter& writer, StepLanes& lanes, int rank)
      : plan_(plan),
        writer_(writer),
        lanes_(lanes),
        stages_(plan.ownership.stages()),
        stage_(plan.ownership.stage_of(rank)),
        replica_(plan.ownership.replica_of(rank)),
        rounds_leaves_(plan.narrows_gradients() &&
                       plan.parallel.reduction == layout::Reduction::reproducible),
        fold_(fold_of(plan, replica_)),
        micro_batches_(micro_batches_of(plan.division, replica_, fold_)),
        events_(layout::pipeline_events(
            layout::pipeline_shape(plan.parallel.layout, static_cast<int>(micro_batches_.size())), stage_)),
        first_loading_(first_loading_piece(plan, writer, rank)) {
    for (int piece = 0; piece < plan.partition.piece_count(); ++piece)
      segments_.push_back(segments_of(plan.partition, piece));
    const PipelineEvent* last = nullptr;  // of its units
    for (const PipelineEvent& event : events_) {
      if (event.kind != PipelineEvent::Kind::unit) continue;
      const bool turns = last != nullptr && last->unit.kind == PipelineUnit::Kind::forward &&
                         event.unit.kind != PipelineUnit::Kind::forward;
      if (turns && last->piece == event.piece && last->unit.micro_batch == event.unit.micro_batch)
        at_once_.insert({event.piece, event.unit.micro_batch});
      last = &event;
    }
  }

  void write() {
    // Leaves that are rounded fold in the wire's type: one is computed while others wait.
    writer_.add_gradient_slots(rounds_leaves_ ? 1 : fold_.slots);
    if (plan_.narrows_gradients()) writer_.add_wire_slots(fold_.slots, plan_.parallel.wire);
    std::vector<layout::TreeNode> leaves;
    for (const MicroBatch& micro_batch : micro_batches_) leaves.push_back(micro_batch.leaves);
    writer_.set_micro_batches(std::move(leaves));
    // One more: a batch is on its way while backward has yet to read the others.
    writer_.set_batch_buffers(most_under_way(events_, first_loading_, false) + 1);
    for (int piece = stage_; piece < static_cast<int>(segments_.size()); piece += stages_)
      share_borders(writer_, lanes_.links, piece, most_under_way(events_, piece, false) + 1,
                    most_under_way(events_, piece, true) + 1);
    writer_.constants(lanes_.copy);
    writer_.cast_parameters(lanes_.compute, ProgramWriter::Changes::updates);
    for (const PipelineEvent& event : events_) {
      if (event.kind == PipelineEvent::Kind::send) lanes_.links.send(event);
      if (event.kind == PipelineEvent::Kind::receive) lanes_.links.receive(event);
      if (event.kind != PipelineEvent::Kind::unit) continue;
      // What backward needs is computed again segment by segment, as backward comes to it.
      if (event.unit.kind == PipelineUnit::Kind::recompute) continue;
      event.unit.kind == PipelineUnit::Kind::forward ? forward(event) : backward(event);
    }
    if (stages_ > 1) agree();
  }

 private:
  static layout::FoldPlan fold_of(const ProgramPlan& plan, int replica) {
    const layout::TreeNode leaves = plan.division.leaves_of(replica);
    return layout::plan_fold(plan.division.leaves, leaves.begin, leaves.end, plan.division.leaves_at_once);
  }

  void forward(const PipelineEvent& event) {
    const int piece = event.piece, m = event.unit.micro_batch;
    const MicroBatch& micro_batch = nth(micro_batches_, m);
    if (piece == first_loading_) writer_.load(lanes_.copy, m);
    for (const int s : nth(segments_, piece))
      writer_.forward(lanes_.compute, s, m, micro_batch.accumulates, is_kept(event, s));
    // The loss is complete: agree on it before the last backward pass. Stages agree when all of them are
    // done.
    if (!micro_batch.completes_step || stages_ > 1) return;
    agree();
    // What forward has read: parameters come back while backward goes on.
    if (plan_.digests_parameters && returns_as_it_lands(plan_)) writer_.digest(lanes_.compute);
  }

  /// Whether a segment's backward finds what its forward made. With recomputation that is so of a loss, of
  /// which only what is cheap to repeat is computed again, and of what goes backward at once: of the piece of
  /// a stage that does, and without a pipeline, where every micro-batch does, of the last segment.
  bool is_kept(const PipelineEvent& event, int segment) const {
    if (plan_.parallel.layout.recompute == layout::Recompute::none) return true;
    if (plan_.parallel.layout.recompute == layout::Recompute::full &&
        plan_.training.segment(segment).has_loss)
      return true;
    const bool at_once = at_once_.contains({event.piece, event.unit.micro_batch});
    return at_once && (stages_ > 1 || segment == nth(segments_, event.piece).back());
  }

  /// Backward, or a half of it. The halves of a leaf's gradients are folded apart: the first half of the next
  /// leaf may come before the second one of this.
  void backward(const PipelineEvent& event) {
    const program::InstructionKind kind = instruction_of(event.unit.kind);
    const int m = event.unit.micro_batch;
    const MicroBatch& micro_batch = nth(micro_batches_, m);
    const auto& segments = nth(segments_, event.piece);
    for (auto s = segments.rbegin(); s != segments.rend(); ++s) {
      if (kind != program::InstructionKind::backward_weight && !is_kept(event, *s))
        writer_.recompute(lanes_.compute, *s, m);
      writer_.backward(kind, lanes_.compute, *s, m, rounds_leaves_ ? 0 : micro_batch.slot,
                       micro_batch.accumulates);
      const model::Bucket& bucket = plan_.partition.bucket(*s);
      for (const layout::ByteSpan& bytes : gradients_of(kind, bucket)) fold(*s, micro_batch, bytes);
      if (!micro_batch.completes_step || !completes_gradients(event.unit.kind)) continue;
      writer_.add_ties_first(lanes_.compute, *s);
      if (bucket.size_bytes > 0) meet(plan_, writer_, lanes_, *s, static_cast<int>(fold_.results.size()));
    }
  }

  /// Adds what is complete of a leaf's gradients to that of others, as far as the tree goes.
  void fold(int segment, const MicroBatch& micro_batch, const layout::ByteSpan& bytes) {
    if (rounds_leaves_ && micro_batch.completes_leaf)
      writer_.narrow_gradients(lanes_.compute, segment, micro_batch.slot, micro_batch.leaves.begin, bytes);
    const DType dtype = rounds_leaves_ ? plan_.parallel.wire : DType::float32;
    const int64_t width = size_of(dtype);
    const auto range = [&](int slot) {
      const int buffer =
          rounds_leaves_ ? writer_.wire_buffer(segment, slot) : writer_.gradient_buffer(segment, slot);
      return program::ByteRange{buffer, bytes.begin / 4 * width, bytes.size() / 4 * width};
    };
    for (const int slot : micro_batch.folded)
      writer_.add_ranges(lanes_.compute, range(slot), range(slot + 1), dtype);
  }

  void agree() {
    writer_.agree(lanes_.agree.lane, lanes_.agree.group, plan_.ownership.ranks(),
                  most_records(plan_.division));
  }

  const ProgramPlan& plan_;
  ProgramWriter& writer_;
  StepLanes& lanes_;
  int stages_, stage_, replica_;
  bool rounds_leaves_;
  layout::FoldPlan fold_;
  std::vector<MicroBatch> micro_batches_;
  std::vector<PipelineEvent> events_;
  int first_loading_;                       // piece
  std::vector<std::vector<int>> segments_;  // by piece of the model
  std::set<std::pair<int, int>> at_once_;   // pieces and micro-batches that go backward right after forward
};

/// Room for the metrics of all leaves of a worker, where it computes the loss.
void add_metrics(const ProgramPlan& plan, ProgramWriter& writer, int rank) {
  const layout::Ownership& ownership = plan.ownership;
  if (ownership.stage_of(rank) + 1 == ownership.stages())
    writer.add_metrics(plan.division.leaves_of(ownership.replica_of(rank)).size());
}

}  // namespace

program::Program compile_step(const ProgramPlan& plan, int rank) {
  if (plan.parallel.layout.has_sessions()) return compile_session_step(plan, rank);
  if (!plan.ownership.is_worker(rank)) return compile_server_step(plan, rank);
  ProgramWriter writer = begin_program(plan, "step", rank, plan.training);
  StepLanes lanes(plan, writer, rank);
  add_metrics(plan, writer, rank);
  StepWriter(plan, writer, lanes, rank).write();
  // What forward and backward have read, while the last gradients meet: owners' updates write over it.
  if (plan.digests_parameters && !returns_as_it_lands(plan)) writer.digest(lanes.compute);
  write_updates(plan, writer, lanes);
  return std::move(writer.program);
}

program::Program compile_evaluation(const ProgramPlan& plan, int rank) {
  ProgramWriter writer = begin_program(plan, "evaluate", rank, plan.evaluation);
  auto& program = writer.program;
  const layout::Ownership& ownership = plan.ownership;
  const int copy = program.add_lane("copy", program::LaneKind::copy);
  const int compute = program.add_lane("compute", program::LaneKind::compute);
  const Channel agree = add_channel(program, "agree", plain_transport(plan));
  program.micro_batches_per_leaf = 1;
  StageLinks links(plan, writer, plan.evaluation, rank);
  if (!ownership.is_worker(rank)) {
    writer.agree(agree.lane, agree.group, ownership.ranks(), most_records(plan.division));
    return std::move(writer.program);
  }
  std::vector<layout::TreeNode> leaves = plan.division.nodes_of(ownership.replica_of(rank));
  const int micro_batches = static_cast<int>(leaves.size());
  writer.set_micro_batches(std::move(leaves));
  add_metrics(plan, writer, rank);
  writer.constants(copy);
  writer.cast_parameters(compute, ProgramWriter::Changes::none);
  const int first_loading = first_loading_piece(plan, writer, rank);
  const int pieces = plan.partition.piece_count();
  writer.set_batch_buffers(pieces > ownership.stages() ? ownership.stages() + 1 : 2);
  for (int piece = ownership.stage_of(rank); piece < pieces; piece += ownership.stages())
    share_borders(writer, links, piece, 2, 2);
  for (const PipelineEvent& event : layout::evaluation_events(
           layout::pipeline_shape(plan.parallel.layout, micro_batches), ownership.stage_of(rank))) {
    const int micro_batch = event.unit.micro_batch;
    if (event.kind == PipelineEvent::Kind::send) links.send(event);
    if (event.kind == PipelineEvent::Kind::receive) links.receive(event);
    if (event.kind != PipelineEvent::Kind::unit) continue;
    if (event.piece == first_loading) writer.load(copy, micro_batch);
    for (const int s : segments_of(plan.partition, event.piece))
      writer.forward(compute, s, micro_batch, false);
  }
  writer.agree(agree.lane, agree.group, ownership.ranks(), most_records(plan.division));
  return std::move(writer.program);
}

program::Program compile_boundary(const ProgramPlan& plan, int rank) {
  ProgramWriter writer = begin_program(plan, "boundary", rank, plan.evaluation);
  auto& program = writer.program;
  const int copy = program.add_lane("copy", program::LaneKind::copy);
  const Channel agree = add_channel(program, "agree", plain_transport(plan));
  writer.add_metrics(1);
  writer.snapshot(copy);
  writer.agree(agree.lane, agree.group, plan.ownership.ranks(), 1);
  return std::move(writer.program);
}

}  // namespace lockstep::parallel
