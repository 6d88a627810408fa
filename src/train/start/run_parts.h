#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "observe/phase_clock.h"
#include "train/faults/failpoints.h"
#include "train/faults/position.h"
#include "train/faults/straggler.h"
#include "train/loop/noise_scale.h"
#include "train/loop/run_output.h"
#include "train/loop/run_recorder.h"
#include "train/loop/time_account.h"
#include "train/loop/trace.h"
#include "train/start/run.h"
#include "train/start/run_watch.h"

namespace lockstep::train {

/// Everything that belongs to a training of this rank.
class Run::Parts {
 public:
  Parts(World& world, RunOptions options)
      : world_(world), options_(std::move(options)), first_(world.rank() == 0), watch_(world) {}
  ~Parts() { world_.set_farewell({}); }

  void prepare();
  RunResult finish();
  Trainer& trainer() { return *trainer_; }
  Worker& worker() { return *worker_; }
  /// What waits for a sink is written, if that takes no longer than a moment.
  void last_words() noexcept;
  /// The run fails, and is unwound.
  void note_failure(const std::exception& error) noexcept { watch_.abandon_timeline(error.what()); }
  void enter(Phase phase) { enter_phase(&world_.control().progress(), phase); }

 private:
  /// Before its first step: nothing is left to train.
  bool is_complete() const { return trainer_->next_step() >= worker_->total_steps(); }
  void make_worker();
  void start(const std::function<config::RunConfig()>& load_config);
  Regrouped regroup(const std::vector<int>& left);
  TrainerEvents events();
  void make_trainer();
  TimelineWish timeline_wish() const;
  void check(const Straggler& straggler) const;
  void begin();
  void add_advice(RunResult& result, const TrainingOutcome& outcome);
  RunOutputOptions output_options() const;
  observe::Explanation explain_so_far() const;

  World& world_;
  const RunOptions options_;
  bool first_, finished_ = false;
  observe::PhaseClock phases_{observe::process_start()};
  run::StampRecorder stamps_;  // outlives the workers that fill it
  std::unique_ptr<DirectoryLock> lock_;
  std::unique_ptr<Failpoints> failpoints_;
  std::unique_ptr<FileSystem> failing_files_;
  std::vector<std::unique_ptr<Worker>> former_;  // whose memory a message of a lost rank may still use
  std::unique_ptr<Worker> worker_;
  std::optional<WatchedWorker> watched_;
  std::optional<RunOutput> output_;
  std::optional<RunRecorder> recorder_;
  std::optional<TimeAccount> account_;
  std::optional<observe::LatestFile> explanation_;  // on rank 0, if the run has a folder
  std::optional<TraceWriter> trace_;
  std::optional<StepHistograms> histograms_;
  std::optional<NoiseScale> noise_scale_;
  std::optional<TextSamples> texts_;
  std::optional<Trainer> trainer_;
  int64_t saves_ = 0;  // of this run
  RunWatch watch_;     // after output_, which it writes to
};

}  // namespace lockstep::train
