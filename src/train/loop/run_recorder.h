#pragma once

#include <optional>
#include <string>

#include "base/clock.h"
#include "comm/communicator.h"
#include "observe/network_counters.h"
#include "observe/run_report.h"
#include "observe/startup_times.h"
#include "observe/step_times.h"
#include "train/loop/trainer.h"

namespace lockstep::train {

/// Collects, on every rank, what a run's report says about its steps.
class RunRecorder {
 public:
  /// All must outlive the recorder. `host`: this rank's.
  RunRecorder(Worker& worker, const observe::StartupTimes& startup, const std::string& host)
      : worker_(&worker), startup_(startup), host_(host) {}

  /// Call it before the worker is destroyed and this rank continues with another worker (follow).
  void part();
  void follow(Worker& worker) { worker_ = &worker; }

  void add(const StepRecord& record);
  /// COLLECTIVE: memory is that of the rank with the most, waiting times are those of the worker that waits
  /// most.
  /// `machines`: of what this rank has sampled.
  observe::RunReport report(comm::Communicator& world, const TrainingOutcome& outcome,
                            const std::vector<observe::MachineReport>& machines) const;
  /// What this rank alone knows in the middle of a run and advice looks at. No steps until the first ones,
  /// which warm up, are over. `hosts`: a number for the host of each rank; of ranks on other hosts it is all
  /// that is known.
  observe::RunReport so_far(const std::vector<int>& hosts,
                            std::vector<observe::MachineReport> machines) const;

 private:
  observe::RankReport own_report() const;
  void look_at_network();

  comm::TransferredBytes transferred() const;

  Worker* worker_;
  const observe::StartupTimes& startup_;
  const std::string& host_;
  observe::StepTimes times_;
  double exposed_communication_ms_ = 0, data_wait_ms_ = 0;  // sums
  double busy_ms_ = 0, step_ms_ = 0;                        // likewise
  comm::TransferredBytes transferred_before_;               // by workers that are no more
  int64_t peak_memory_before_ = 0;                          // likewise
  bool knows_busy_ = false;
  // Of the host's interfaces, when the first steps were over, and at a later step.
  observe::NetworkBytes network_then_, network_now_;
  int64_t network_then_step_ = 0, network_now_step_ = 0;
  Clock::time_point network_looked_;
};

/// Whether the model chooses among classes, per sample or per token, so that there is a share of right
/// answers.
bool tells_accuracy(const model::Graph& graph);
/// Whether e to the evaluation loss is a perplexity: of models that predict tokens. With label_smoothing the
/// loss is that of smoothed labels, from which no perplexity follows.
bool tells_perplexity(const model::Graph& graph);
/// Tokens per sample, if the model predicts each of them; nothing for other models.
std::optional<int64_t> tokens_per_sample(const model::Graph& graph);

}  // namespace lockstep::train
