#include "plan/step_estimate.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/index.h"
#include "base/text.h"
#include "model/node_times.h"
#include "plan/device_plan.h"

namespace lockstep::plan {
namespace {

/// What is computed again of a segment, without regard to whether its micro-batch goes backward at once.
double recomputed_time(const compile::CompiledRun& run, const std::vector<model::NodeTime>& nodes, int s) {
  const layout::Recompute recompute = run.layout().recompute;
  if (recompute == layout::Recompute::none) return 0;
  double time = 0;
  for (int n = run.partition().segment(s).first_node; n <= run.partition().segment(s).last_node; ++n) {
    const bool repeats = recompute == layout::Recompute::selective
                             ? run.graph().node(n).signature.cheap_to_repeat
                             : !run.training_code().segment(s).has_loss;
    time += repeats ? nth(nodes, n).forward : 0;
  }
  return time;
}

double update_time(const compile::CompiledRun& run) {
  if (!run.profile()) return 0;
  int64_t most = 0;
  for (const int rank : telling_ranks(run.ownership()))
    most = std::max(most, run.ownership().owned_bytes(rank));
  return run.profile()->update_seconds * static_cast<double>(most) / sizeof(float);
}

}  // namespace

std::vector<layout::UnitTimes> piece_times(const compile::CompiledRun& run) {
  const auto& partition = run.partition();
  const std::vector<model::NodeTime> nodes = run.node_times();
  std::vector<layout::UnitTimes> pieces(
      static_cast<size_t>(partition.piece_count()),
      {.forward = 0, .backward_input = 0, .backward_weight = 0, .recompute = 0});
  for (int s = 0; s < static_cast<int>(partition.segments.size()); ++s) {
    layout::UnitTimes& piece = nth(pieces, partition.piece_of(s));
    for (int n = partition.segment(s).first_node; n <= partition.segment(s).last_node; ++n) {
      const model::NodeTime& node = nth(nodes, n);
      piece.forward += node.forward;
      piece.backward_input += node.backward_input;
      piece.backward_weight += node.backward_weight;
    }
    // In schedules a unit of its own, or part of a backward.
    (run.layout().recompute == layout::Recompute::full ? piece.recompute : piece.backward_input) +=
        recomputed_time(run, nodes, s);
  }
  return pieces;
}

double estimate_step(const compile::CompiledRun& run) {
  const int micro_batches = run.division().micro_batches_of(0);
  double step =
      layout::replay_pieces(layout::pipeline_shape(run.layout(), micro_batches), piece_times(run)).step;
  // Without stages each micro-batch goes backward at once, so that the last segment is kept.
  if (run.layout().pp == 1 && run.layout().recompute == layout::Recompute::full) {
    const std::vector<model::NodeTime> nodes = run.node_times();
    for (int s = 0; s + 1 < static_cast<int>(run.partition().segments.size()); ++s)
      step += micro_batches * recomputed_time(run, nodes, s);
  }
  // Those of a stage alone may have different sizes.
  step *= run.division().full_micro_batches_of(0) / micro_batches;
  return step + update_time(run);
}

std::string describe_step(const compile::CompiledRun& run) {
  if (!run.profile()) return "";
  return fmt::format("predicted step: {} (without sums and communication), from {}\n",
                     human_seconds(estimate_step(run)), run.profile()->source);
}

}  // namespace lockstep::plan
