#pragma once

#include <optional>

#include "comm/communicator.h"
#include "observe/run_report.h"
#include "observe/step_times.h"
#include "train/trainer.h"

namespace lockstep {

/// Collects, on every rank, what a run's report says about its steps.
class RunRecorder {
 public:
  /// `worker` must outlive the recorder.
  explicit RunRecorder(Worker& worker) : worker_(worker) {}

  void add(const StepRecord& record);
  void set_startup_ms(double milliseconds) { startup_ms_ = milliseconds; }
  /// COLLECTIVE: waits and memory are those of the rank where they are largest.
  RunReport report(Communicator& world, const TrainingOutcome& outcome) const;

 private:
  Worker& worker_;
  StepTimes times_;
  double exposed_communication_ms_ = 0, data_wait_ms_ = 0;  // sums
  double startup_ms_ = 0;
};

/// Whether a sample has one label, so that the share of right answers is what people call accuracy.
bool is_classifier(const Graph& graph);
/// Tokens of a sample, where the model predicts each of them; nothing for other models.
std::optional<int64_t> tokens_per_sample(const Graph& graph);

}  // namespace lockstep
