#pragma once

#include <optional>

#include "comm/communicator.h"
#include "observe/run_report.h"
#include "observe/startup_times.h"
#include "observe/step_times.h"
#include "train/loop/trainer.h"

namespace lockstep::train {

/// Collects, on every rank, what a run's report says about its steps.
class RunRecorder {
 public:
  /// Both must outlive the recorder.
  RunRecorder(Worker& worker, const observe::StartupTimes& startup) : worker_(&worker), startup_(startup) {}

  /// The worker is about to be destroyed, and this rank to go on with another one (follow).
  void part();
  void follow(Worker& worker) { worker_ = &worker; }

  void add(const StepRecord& record);
  /// COLLECTIVE: memory is that of the rank where it is largest, waits those of the worker that waits most.
  observe::RunReport report(comm::Communicator& world, const TrainingOutcome& outcome) const;

 private:
  observe::RankReport own_report() const;

  comm::TransferredBytes transferred() const;

  Worker* worker_;
  const observe::StartupTimes& startup_;
  observe::StepTimes times_;
  double exposed_communication_ms_ = 0, data_wait_ms_ = 0;  // sums
  double busy_ms_ = 0, step_ms_ = 0;                        // likewise
  comm::TransferredBytes transferred_before_;               // by workers that are no more
  int64_t peak_memory_before_ = 0;                          // likewise
  bool knows_busy_ = false;
};

/// Whether a sample has one label, so that the share of right answers is what people call accuracy.
bool is_classifier(const model::Graph& graph);
/// Tokens of a sample, where the model predicts each of them; nothing for other models.
std::optional<int64_t> tokens_per_sample(const model::Graph& graph);

}  // namespace lockstep::train
