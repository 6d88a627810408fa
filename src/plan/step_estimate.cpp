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
  const bool recomputes = run.layout().recompute != layout::Recompute::none;
  for (int s = 0; s < static_cast<int>(partition.segments.size()); ++s) {
    layout::UnitTimes& piece = nth(pieces, partition.piece_of(s));
    double forward = 0;
    for (int n = partition.segment(s).first_node; n <= partition.segment(s).last_node; ++n) {
      forward += nth(nodes, n).forward;
      piece.backward_input += nth(nodes, n).backward_input;
      piece.backward_weight += nth(nodes, n).backward_weight;
    }
    piece.forward += forward;
    if (!recomputes || run.training_code().segment(s).has_loss) continue;
    piece.recompute += forward;
    // Each micro-batch goes backward at once, so that the last segment is kept.
    if (s + 1 < static_cast<int>(partition.segments.size())) again += forward;
  }
  const int micro_batches = division.micro_batches_of(0);
  const double step = layout::replay_pieces(layout::pipeline_shape(run.layout(), micro_batches), pieces).step;
  return run.layout().pp == 1 ? step + micro_batches * again : step;
}

}  // namespace lockstep::plan
