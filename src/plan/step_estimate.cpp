#include "plan/step_estimate.h"

#include <vector>

#include "base/index.h"
#include "layout/pipeline_timeline.h"
#include "model/pieces.h"

namespace lockstep::plan {

double estimate_step(const compile::CompiledRun& run) {
  const auto& partition = run.partition();
  const auto& division = run.division();
  const std::vector<model::NodeTime> nodes = model::node_times(run.graph(), division.micro_batch);
  std::vector<layout::UnitTimes> pieces(
      static_cast<size_t>(partition.piece_count()),
      {.forward = 0, .backward_input = 0, .backward_weight = 0, .recompute = 0});
  double again = 0;  // without stages: of each micro-batch
  const layout::Recompute recompute = run.layout().recompute;
  for (int s = 0; s < static_cast<int>(partition.segments.size()); ++s) {
    layout::UnitTimes& piece = nth(pieces, partition.piece_of(s));
    double repeated = 0;
    for (int n = partition.segment(s).first_node; n <= partition.segment(s).last_node; ++n) {
      const model::NodeTime& node = nth(nodes, n);
      piece.forward += node.forward;
      piece.backward_input += node.backward_input;
      piece.backward_weight += node.backward_weight;
      const bool repeats = recompute == layout::Recompute::selective
                               ? run.graph().node(n).signature.cheap_to_repeat
                               : !run.training_code().segment(s).has_loss;
      repeated += repeats ? node.forward : 0;
    }
    if (recompute == layout::Recompute::none) continue;
    // In schedules a unit of its own, or part of a backward.
    (recompute == layout::Recompute::full ? piece.recompute : piece.backward_input) += repeated;
    // Each micro-batch goes backward at once, so that the last segment is kept.
    if (s + 1 < static_cast<int>(partition.segments.size())) again += repeated;
  }
  if (recompute == layout::Recompute::selective) again = 0;
  const int micro_batches = division.micro_batches_of(0);
  const double step = layout::replay_pieces(layout::pipeline_shape(run.layout(), micro_batches), pieces).step;
  return run.layout().pp == 1 ? step + micro_batches * again : step;
}

}  // namespace lockstep::plan
