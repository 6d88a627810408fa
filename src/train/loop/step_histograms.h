#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "control/mailbox.h"
#include "observe/histogram.h"
#include "observe/sinks/sink.h"
#include "program/step_scalars.h"
#include "run/actions.h"
#include "train/worker/worker.h"

namespace lockstep::train {

struct StepHistogramsOptions {
  int64_t every_steps = 0;                            ///< 0: none
  control::Mailbox* mailbox = nullptr;                ///< outlives it
  std::function<void(observe::MetricsRecord)> write;  ///< on rank 0
};

/// Histograms of parameters and of the gradients that updates use. Whoever updates a part of a parameter
/// counts it while the step runs, so that nobody gathers tensors; rank 0 adds the parts, which come as small
/// messages, and writes a step's histograms when it has all of them. REQUIRES: the layout has no sessions.
/// Used by one thread; not COLLECTIVE.
class StepHistograms {
 public:
  /// `worker` must outlive it.
  StepHistograms(const Worker& worker, StepHistogramsOptions options);

  /// Whether the step that leaves so many complete has histograms: then it runs with the observer. The same
  /// on all ranks.
  bool is_due(int64_t step) const { return options_.every_steps > 0 && step % options_.every_steps == 0; }
  run::KernelObserver observer() {
    counting_ms_ = 0;
    return [this](const run::KernelObservation& observation) { observe(observation); };
  }
  /// How long this rank has counted in the step that runs, or ran last.
  double counting_ms() const { return counting_ms_; }
  /// After an observed step. One that was skipped has none.
  void end_step(int64_t step, const program::Verdict& verdict, const run::StepScalars& constants,
                bool skipped);
  /// On rank 0: writes what is complete. Waits for what is missing until the deadline.
  void collect(Deadline deadline);

 private:
  /// Of one step: histograms by name, as TensorBoard shows it.
  using Histograms = std::map<std::string, observe::Histogram>;
  struct Gathered {
    Histograms histograms;
    int64_t elements = 0;                  // of all histograms
    std::optional<double> gradient_scale;  // that updates multiply summed gradients with; none: the step is
                                           // not over here. Not positive: no label counts
  };

  void observe(const run::KernelObservation& observation);
  void count(const run::KernelObservation& observation);
  void count_part(const std::string& name, const std::byte* data, int64_t count);
  void receive(const std::string& text);
  void write(int64_t step, const Gathered& gathered);

  const Worker& worker_;
  StepHistogramsOptions options_;
  double static_count_ = 1;
  double counting_ms_ = 0;
  int64_t elements_ = 0;  // of all histograms of a step
  Histograms observed_;   // of this rank's parts, in the step that runs
  std::vector<float> copy_;
  std::map<int64_t, Gathered> gathered_;  // on rank 0, by step
};

}  // namespace lockstep::train
