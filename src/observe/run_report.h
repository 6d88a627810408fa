#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "observe/explanation.h"
#include "observe/machine/report.h"
#include "observe/network_counters.h"
#include "observe/startup_times.h"
#include "observe/step_times.h"

namespace lockstep::observe {

/// The measurements of one process of a run; times and bytes are means per step.
struct RankReport {
  int rank = 0;
  std::string role;  ///< "worker", "server", "worker, server"
  std::string host;
  std::optional<int> stage, replica;                         ///< of workers, if there are several stages
  double waited_ms = 0;                                      ///< idle, waiting for other processes
  double data_wait_ms = 0;                                   ///< likewise for data
  std::optional<double> busy_share;                          ///< of its steps, in which it computed
  double sent_bytes = 0, received_bytes = 0;                 ///< by exchanges, counted
  int64_t sent_bytes_theory = 0, received_bytes_theory = 0;  ///< likewise, as its program says
  int64_t peak_memory_bytes = 0;                             ///< high-water of what its device gave
  /// Traffic of its host's network interfaces, including other programs; for the first rank of each host.
  NetworkBytes interfaces;

  bool is_worker() const { return role != "server"; }
};

/// Staleness of pushes: updates by other workers between the worker's read of parameters and the application
/// of its push.
struct StalenessReport {
  std::optional<int> bound;  ///< if there is one
  int64_t max = 0;
  double mean = 0;
  std::vector<int64_t> histogram;  ///< pushes of parts of the parameters, by staleness; the last one: or more
};

/// The final report of `train`. If a value is absent (no step was run, no evaluation data, no classifier, no
/// tokens), so is its field in the JSON.
struct RunReport {
  int64_t steps = 0;  ///< complete, from the beginning of the training
  double epochs = 0;
  int64_t skipped_steps = 0;  ///< of all steps, those not applied because they were not finite
  /// Samples of training and evaluation that data.on_damage: SKIP left out, and those that it replaced.
  int64_t left_out_samples = 0, replaced_samples = 0;
  std::optional<double> loss_scale;  ///< at the end; float16
  std::optional<double> train_loss;  ///< of the last step
  std::optional<double> eval_loss;
  std::optional<int64_t> best_step;  ///< of the lowest evaluation loss
  std::optional<double> best_eval_loss;
  bool ended_early = false;             ///< because evaluations did not improve
  std::optional<double> perplexity;     ///< of models that predict tokens: e to the evaluation loss
  std::optional<double> eval_accuracy;  ///< classifiers
  std::optional<double> noise_scale;    ///< of gradients, in samples, as last measured
  std::optional<double>
      samples_per_second;  ///< without start-up, evaluation, checkpoints and the first 5 steps
  std::optional<double> tokens_per_second;  ///< language models
  std::optional<StepMilliseconds> step_ms;
  double exposed_comm_ms = 0;  ///< mean per step that the compute lane waits, maximum over workers
  double data_wait_ms = 0;     ///< mean per step
  /// For pipelines: the share of all workers' steps in which they computed nothing; and the share that the
  /// schedule implies if all stages take equally long and there is no other waiting.
  std::optional<double> bubble_fraction, bubble_fraction_theory;
  double startup_ms = 0;                          ///< from the process's start to the first step's begin
  std::optional<StartupMilliseconds> first_step;  ///< to its end, in parts
  int64_t peak_memory_bytes = 0;                  ///< high-water of what the device gave
  int64_t host_memory_bytes = 0;                  ///< likewise of the host, beside it
  int64_t process_memory_bytes = 0;               ///< peak resident memory of a process
  int64_t process_memory_growth_bytes = 0;  ///< most private memory that one has had since before its plan
  uint64_t params_hash = 0, state_hash = 0, math_hash = 0, config_hash = 0;
  int64_t lost_workers = 0;  ///< workers without which the run continued
  int64_t sessions = 0;      ///< of layouts with sessions, from one meeting of all ranks to the next
  std::optional<StalenessReport> staleness;  ///< of such layouts
  int world_size = 1;
  std::string layout;  ///< "dp=2,pp=2"
  std::vector<RankReport> ranks;
  std::vector<MachineReport> machines;     ///< hosts, then processes, then GPUs
  std::optional<Explanation> explanation;  ///< of the time until the report
};

/// One line without its newline; fields in the order above, hashes as 16 hex digits.
std::string to_json(const RunReport& report);
/// A table for people, with the learning results first; every line ends with a newline. `verbose`: also times
/// of the start, memory to the byte, and the hash of the state.
std::string describe(const RunReport& report, bool verbose);

}  // namespace lockstep::observe
