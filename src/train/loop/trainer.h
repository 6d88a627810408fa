#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "observe/phase_clock.h"
#include "observe/spike_detector.h"
#include "train/checkpoints/run_checkpoints.h"
#include "train/faults/divergence.h"
#include "train/loop/noise_scale.h"
#include "train/loop/step_histograms.h"
#include "train/loop/text_samples.h"
#include "train/worker/worker.h"

namespace lockstep::train {

/// The results of a complete step.
struct StepRecord {
  int64_t step = 0;  ///< number of complete steps, from 1
  double loss = 0;   ///< mean over the global batch; NaN without has_loss()
  double learning_rate = 0;
  double gradient_norm = 0;       ///< before clipping
  double correct = 0, count = 0;  ///< right answers and counted labels of the global batch
  double step_ms = 0;             ///< since the step before, with reports, without evaluation and checkpoints
  double exposed_communication_ms = 0;
  double data_wait_ms = 0;           ///< of this step, on this rank
  std::optional<double> busy_ms;     ///< likewise, time of computation; only if one thread does everything
  double histogram_ms = 0;           ///< likewise, of counting values for histograms (StepHistograms)
  bool skipped = false;              ///< not finite, and so not applied
  std::optional<double> loss_scale;  ///< of this step, if losses are scaled
  std::optional<double> speed_of_light;        ///< share of it that this rank reached, if known (TimeAccount)
  std::optional<observe::Spike> spike;         ///< if loss or norm stand out
  bool has_loss() const { return count > 0; }  ///< some label counts
};

struct EvaluationRecord {
  int64_t step = 0;
  double loss = 0;      ///< NaN without has_loss()
  double accuracy = 0;  ///< share of positions where the largest logit is right; classifiers only
  double count = 0;     ///< labels that count
  double milliseconds = 0;
  bool has_loss() const { return count > 0; }
};

/// A step that a worker of a layout with sessions has made.
struct GrantedStep {
  uint64_t iteration = 0;                   ///< StepInputs::iteration
  Clock::time_point asked, granted, ended;  ///< between the first two it waited
};

/// Callbacks of the loop. All may be empty; called on every rank unless stated otherwise.
struct TrainerEvents {
  std::function<void(const StepRecord&)> on_step;
  std::function<void(const EvaluationRecord&)> on_evaluation;
  /// Called on rank 0 before a checkpoint is written: makes durable what must not be older than the
  /// checkpoint. If it throws, the save fails.
  std::function<void(int64_t step)> before_checkpoint;
  std::function<void(int64_t step, const std::string& path)> on_checkpoint;  ///< once it is complete
  std::function<void(const std::string& message)> on_message;                ///< for people; rank 0 alone
  std::function<void(int64_t step, const std::string& text)> on_text;  ///< that the model wrote; rank 0 alone
  // Of layouts with sessions, which make steps `done` + 1 to at most `last`; both COLLECTIVE.
  std::function<void(int64_t done, int64_t last)> on_session_begin;
  std::function<void(int64_t done)> on_session_end;
  std::function<void(const GrantedStep&)> on_granted_step;
};

/// What a rank continues with after other ranks were lost.
struct Regrouped {
  Worker& worker;
  comm::Communicator& world;
  control::Mailbox* mailbox;
};

struct TrainerRunOptions {
  std::string output_directory;  ///< empty: nothing is saved
  /// Called once per step, and once per batch of an evaluation. All ranks stop if any of them returns true.
  std::function<bool()> stop_requested;
  int64_t stop_after = 0;                 ///< steps; 0: none. The same on all ranks
  control::Progress* progress = nullptr;  ///< told of steps and phases; may be null
  observe::PhaseClock* phases = nullptr;  ///< likewise
  control::Mailbox* mailbox =
      nullptr;  ///< for writing checkpoints in the background; null: in the foreground
  FileSystem* files = &posix_file_system();  ///< where checkpoints are written
  /// COLLECTIVE over `left`, the remaining ranks, after all others were lost: makes a worker for this rank's
  /// part of the rest. The trainer's own worker is destroyed. Empty: no rank can be lost.
  std::function<Regrouped(const std::vector<int>& left)> regroup;
  bool evaluates = false;          ///< only evaluates, and messages say so
  bool evaluates_average = false;  ///< then with the checkpoint's moving averages in place of parameters
  run::KernelObserver observer;    ///< of all steps, which then do not overlap; not of sessions. May be empty
  StepHistograms* histograms = nullptr;  ///< told of steps; may be null
  NoiseScale* noise_scale = nullptr;     ///< likewise
  TextSamples* texts = nullptr;          ///< written when they are due; null on all ranks: never
  int drawing_threads = 1;               ///< threads that draw initial parameters; bits do not depend on it
};

struct TrainingOutcome {
  int64_t first_step = 0;            ///< 0, or where a checkpoint was resumed
  int64_t steps = 0;                 ///< complete, from the beginning of the training
  int64_t skipped_steps = 0;         ///< of these, steps not applied because they were not finite
  std::optional<double> loss_scale;  ///< at the end, if losses are scaled
  double epochs = 0;
  std::optional<double> train_loss;            ///< of the last step, if it has one
  std::optional<EvaluationRecord> evaluation;  ///< the last one
  bool stopped = false;                        ///< by request, before the end
  int64_t lost_workers = 0;                    ///< workers without which it continued
  EvaluationHistory evaluations;               ///< the config's own
  bool ended_early = false;                    ///< trainer.early_stopping
  int64_t sessions = 0;      ///< number of sessions, from one meeting of all ranks to the next
  run::Staleness staleness;  ///< of all pushes in them, at the first server
};

/// The training loop: step after step, with evaluations and checkpoints when they are due. It owns only the
/// loop; everything that computes or communicates belongs to the worker.
class Trainer {
 public:
  /// `world` serves to locate non-finite values and to resume. `world` and `worker` must outlive the trainer.
  Trainer(Worker& worker, comm::Communicator& world, TrainerEvents events, TrainerRunOptions options);

  /// COLLECTIVE: sets initial parameters, or those of a checkpoint, as the config's resume policy says.
  void prepare();
  /// COLLECTIVE: trains to the end, or to an agreed stop. REQUIRES: prepare().
  TrainingOutcome run();
  /// COLLECTIVE: makes the next step, or session, and does what is due after it. False if none is left, or if
  /// a stop was agreed. REQUIRES: prepare().
  bool advance();
  /// COLLECTIVE: ends the training, whether or not all steps are made, and does what is due at the end.
  TrainingOutcome finish();
  /// COLLECTIVE: evaluates with the current parameters; nothing if a stop was requested before the end.
  /// REQUIRES: prepare(), and that there is evaluation data.
  std::optional<EvaluationRecord> evaluate_now();
  /// COLLECTIVE: begins a checkpoint, unless one of this step has begun. REQUIRES: prepare().
  void save_now();
  /// Call it after parameters were changed from outside, in the same way on all ranks: earlier saves,
  /// comparisons and evaluations of this step no longer count.
  void parameters_changed();
  /// Instead of finish(): waits for the save in flight, and warns of failed saves. Not COLLECTIVE.
  void abandon() noexcept;
  /// Whether a stop was agreed on before the end.
  bool stopped() const { return stop_ && step_ < worker_->total_steps(); }
  int64_t next_step() const { return step_; }
  /// Of this run and those that it resumes.
  const std::string& run_id() const { return checkpoints_.run_id(); }

 private:
  run::StepInputs inputs_of(int64_t step) const;
  /// The scalars of an update, which is the `updates`-th of the optimizer state, from 1.
  run::StepScalars constants_of(int64_t step, int64_t updates) const;
  bool stop_is_wanted() const;
  void train_one_step();
  /// Counts the step if the policy says so; otherwise throws.
  void handle_nonfinite(const run::StepInputs& inputs, const program::Verdict& verdict);
  /// If scaling the loss made the gradients overflow: lowers the scale and counts the step. All ranks have
  /// agreed on what it looks at. A rank that saw something else is found by the next step's agreement on
  /// norms.
  bool lowered_loss_scale(const program::Verdict& verdict);
  run::KernelObserver watchers(bool has_histograms, bool measures_noise);
  void tell_step(const run::StepInputs& inputs, const program::Verdict& verdict, StepRecord record);
  /// Repeats the step without an update, to find out whether all ranks saw the same values. COLLECTIVE if
  /// they did. A rank that alone saw others meets the other ranks in their next step, which communicates in
  /// the same way.
  void require_equal_norms();
  void skip_step(const program::Verdict& verdict);
  /// Advice to the user about a step that is not finite.
  std::string advice(const program::Verdict& verdict) const;
  /// Whether steps compare replicas. The same on all ranks, also on those that only serve.
  bool compares_replicas() const {
    return worker_->compiled().ownership().replicas() > 1 && config_.trainer.check_every_steps > 0;
  }
  /// Whether to compare before a checkpoint and at the end; this includes parameters that stages of one
  /// replica share.
  bool compares_copies() const {
    return compares_replicas() ||
           (worker_->compiled().ownership().ties_stages() && config_.trainer.check_every_steps > 0);
  }
  bool comparison_is_due() const;
  /// The hash that ranks compare in a step's agreement: of the last norm and, if due, of this replica; 0 on a
  /// rank without a replica.
  uint64_t agreement_hash(bool with_replica);
  /// COLLECTIVE: compares replicas after the last step, unless that is done already.
  void require_equal_replicas();
  [[noreturn]] void report_divergence();
  std::string locate_held();  ///< COLLECTIVE: what differs in the current replicas
  // Of layouts with sessions (session_loop.cpp): steps up to the next evaluation, checkpoint or end.
  void train_one_session();
  int64_t steps_to_meeting() const;
  /// The scalars of an update of a range, after so many `updates` in a session that began at `first_step`, of
  /// which `applied` changed something.
  run::StepScalars pushed_constants(int64_t first_step, int64_t updates, int64_t applied) const;
  void make_granted_steps(int64_t first);
  /// COLLECTIVE over `left`. Keeps what servers hold.
  void go_on_with(const std::vector<int>& left);
  void require_finite(int64_t step);
  bool skips_too_many(int64_t skipped) const;
  void require_few_skips(int64_t skipped);
  /// Reports records of the steps that are complete by now, with means over steps without a record.
  void tell_session(int64_t first, const run::SessionTotals& totals);
  bool ends_early() const;
  bool evaluation_due() const;
  bool checkpoint_due() const;
  bool keeps_best() const;
  /// Not if a stop was agreed: whoever asked for it waits for the checkpoint.
  bool text_due() const {
    return options_.texts != nullptr && !stopped() && options_.texts->is_due(step_, worker_->total_steps());
  }
  void write_text();
  /// False, without a report, if a stop was requested before the end.
  /// The evaluation program's result, with the parameters or, if the config says so, their averages.
  program::Verdict evaluated_verdict();
  bool evaluate();
  /// Makes an evaluation that the config wants, and acts on its result.
  void evaluate_as_planned();
  /// COLLECTIVE. REQUIRES: all ranks take the same step for saved, or none of them this one.
  void save_checkpoint();
  /// COLLECTIVE: makes all ranks take the same step for saved, or none. One rank may have heard that the save
  /// of a step has failed, or have given up waiting for it, while the others have not.
  void agree_on_saved_step();
  /// Tells of the saves that have ended since it was last asked. Failures are remembered, or warned of.
  void hear_of_checkpoints(checkpoint::SaveFailurePolicy on_failure);
  /// COLLECTIVE: makes the last save if the config or a stop wants it. Throws if this save or an earlier one
  /// failed.
  void settle_checkpoints();
  /// COLLECTIVE: replaces the drawn parameters by a checkpoint's, or by those of config.weights.
  void restore();
  /// COLLECTIVE: false if there is nothing to resume from.
  bool resume();
  void tell_of_other_batch() const;

  Worker* worker_;
  comm::Communicator* world_;
  TrainerEvents events_;
  TrainerRunOptions options_;
  const config::RunConfig config_;
  RunCheckpoints checkpoints_;
  std::optional<ReplicaComparison> replicas_;
  observe::SpikeDetector spikes_;
  int64_t step_ = 0;  ///< steps complete
  int64_t saved_step_ =
      -1;  ///< last step whose save into this run's folder began, and is not known to have failed
  std::exception_ptr save_failure_;  ///< ends the run, once all ranks agree on the step
  int64_t skipped_steps_ = 0;        ///< of all steps so far, those before a resume included
  int64_t optimizer_updates_ = 0;    ///< that optimizer state has seen
  int64_t overflowed_steps_ = 0;  ///< of these, those that lowered the loss scale, if it is scaled now or not
  std::optional<optim::LossScaler> loss_scaler_;  ///< nothing if losses are not scaled
  int64_t equal_step_ = -1;                       ///< last step after which the replicas were found equal
  int64_t hashed_step_ = -1;                      ///< last step after which this rank hashed its replica
  double last_norm_ = 0;
  uint64_t read_hash_ = 0;   ///< of the parameters that the last step has read; 0 if it does not tell
  int64_t read_step_ = 0;    ///< which that was, counted from 1
  uint64_t norm_hash_ = 0;   ///< of what this rank computed from the last step's reduced gradients
  bool suspicious_ = false;  ///< the last step's loss or norm stands out
  Clock::time_point step_began_;
  run::SessionTotals told_;  ///< of this session, in records
  StepRecord waited_;        ///< this rank's times since the last record, in sessions
  TrainingOutcome outcome_;
  EvaluationHistory evaluations_;
  bool best_is_new_ = false;  ///< and not saved
  bool began_ = false, finished_ = false;
  bool stop_ = false;
  bool pending_evaluation_ = false;  ///< one of the config's is due, but was interrupted
};

}  // namespace lockstep::train
