#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "observe/spike_detector.h"
#include "train/checkpoints/run_checkpoints.h"
#include "train/faults/divergence.h"
#include "train/worker/worker.h"

namespace lockstep::train {

/// What is known about a step once it is complete.
struct StepRecord {
  int64_t step = 0;  ///< steps complete, counted from 1
  double loss = 0;   ///< mean over the global batch; no number without has_loss()
  double learning_rate = 0;
  double gradient_norm = 0;       ///< before clipping
  double correct = 0, count = 0;  ///< of the global batch
  double step_ms = 0;             ///< since the step before, reports included, evaluation and checkpoints not
  double exposed_communication_ms = 0;
  double data_wait_ms = 0;              ///< of this step, on this rank
  std::optional<double> busy_ms;        ///< likewise, in which it computed; where one thread does everything
  bool skipped = false;                 ///< not finite, and so not applied
  std::optional<double> loss_scale;     ///< of this step, where losses are scaled
  std::optional<observe::Spike> spike;  ///< where loss or norm stand out
  bool has_loss() const { return count > 0; }  ///< some label counts
};

struct EvaluationRecord {
  int64_t step = 0;
  double loss = 0;      ///< no number without has_loss()
  double accuracy = 0;  ///< share of positions where the largest logit is right; classifiers only
  double count = 0;     ///< labels that count
  double milliseconds = 0;
  bool has_loss() const { return count > 0; }
};

/// What the loop tells whoever watches. All may be empty; called on every rank.
struct TrainerEvents {
  std::function<void(const StepRecord&)> on_step;
  std::function<void(const EvaluationRecord&)> on_evaluation;
  /// On rank 0, before anything of a checkpoint is written: makes durable what must not be older. What it
  /// throws makes the save fail.
  std::function<void(int64_t step)> before_checkpoint;
  std::function<void(int64_t step, const std::string& path)> on_checkpoint;  ///< once it is complete
  std::function<void(const std::string& message)> on_message;                ///< for people; rank 0 alone
};

/// What a rank goes on with where others were lost.
struct Regrouped {
  Worker& worker;
  comm::Communicator& world;
  control::Mailbox* mailbox;
};

struct TrainerRunOptions {
  std::string output_directory;  ///< empty: nothing is saved
  /// Asked once per step, and per batch of an evaluation; ranks stop when any of them says so.
  std::function<bool()> stop_requested;
  int64_t stop_after = 0;                 ///< steps; 0: none. The same on all ranks
  control::Progress* progress = nullptr;  ///< told of steps and phases; may be null
  control::Mailbox* mailbox =
      nullptr;  ///< by which checkpoints are written in the background; null: in the foreground
  checkpoint::FileSystem* files = &checkpoint::posix_file_system();  ///< where checkpoints are written
  /// COLLECTIVE over `left`, the ranks that are left (all others are lost): a worker that does its part in
  /// what remains. The trainer's own is destroyed. Empty: nobody can be lost.
  std::function<Regrouped(const std::vector<int>& left)> regroup;
  bool evaluates = false;        ///< and nothing else: messages say so
  run::KernelObserver observer;  ///< of all steps, which do not overlap then; may be empty. Not of sessions
  int drawing_threads = 1;       ///< that draw the first parameters; their bits do not depend on it
};

struct TrainingOutcome {
  int64_t first_step = 0;            ///< 0, or where a checkpoint was resumed
  int64_t steps = 0;                 ///< complete, from the beginning of the training
  int64_t skipped_steps = 0;         ///< of these, not applied since they were not finite
  std::optional<double> loss_scale;  ///< at the end, where losses are scaled
  double epochs = 0;
  std::optional<double> train_loss;            ///< of the last step, where it has one
  std::optional<EvaluationRecord> evaluation;  ///< the last one
  bool stopped = false;                        ///< by request, before the end
  int64_t lost_workers = 0;                    ///< without which it went on
  EvaluationHistory evaluations;               ///< the config's own
  bool ended_early = false;                    ///< trainer.early_stopping
  int64_t sessions = 0;      ///< of layouts with sessions; from one meeting of all ranks to the next
  run::Staleness staleness;  ///< of all pushes in them, at the first server
};

/// The loop: step after step, evaluation and checkpoints when they are due. It owns the loop alone;
/// everything that computes or communicates is the worker's.
class Trainer {
 public:
  /// `world`: for locating non-finite values and resuming; must outlive the trainer, as must `worker`.
  Trainer(Worker& worker, comm::Communicator& world, TrainerEvents events, TrainerRunOptions options);

  /// COLLECTIVE: initial parameters, or those of a checkpoint as the config's resume policy says.
  void prepare();
  /// COLLECTIVE: trains to the end, or to an agreed stop. REQUIRES: prepare().
  TrainingOutcome run();
  /// COLLECTIVE: the next step, or session, and what is due after it; false where none is left, or a stop was
  /// agreed. REQUIRES: prepare().
  bool advance();
  /// COLLECTIVE: what is due at the end, which is here, whether or not all steps are made.
  TrainingOutcome finish();
  /// COLLECTIVE: the evaluation set with the parameters as they are; nothing where a stop was requested
  /// before its end. REQUIRES: prepare(), and that there is one.
  std::optional<EvaluationRecord> evaluate_now();
  /// COLLECTIVE: begins a checkpoint, unless that of this step is begun. REQUIRES: prepare().
  void save_now();
  /// Somebody else has changed parameters, on all ranks alike: what was saved, compared or evaluated of this
  /// step does not count.
  void parameters_changed();
  /// Nobody calls finish(): waits for the save under way, and warns of failed ones. Not COLLECTIVE.
  void abandon() noexcept;
  /// Whether a stop was agreed on before the end.
  bool stopped() const { return stop_ && step_ < worker_->total_steps(); }
  int64_t next_step() const { return step_; }

 private:
  run::StepInputs inputs_of(int64_t step) const;
  /// Of an update, which is the `updates`-th that optimizer state sees, from 1.
  run::StepScalars constants_of(int64_t step, int64_t updates) const;
  bool stop_is_wanted() const;
  void train_one_step();
  /// Counts the step where the policy says so; otherwise throws.
  void handle_nonfinite(const run::StepInputs& inputs, const program::Verdict& verdict);
  /// Where scaling the loss made the gradients overflow: lowers the scale and counts the step. All ranks
  /// agree on what it looks at; one that saw something else is found by the next step's agreement on norms.
  bool lowered_loss_scale(const program::Verdict& verdict);
  void tell_step(const run::StepInputs& inputs, const program::Verdict& verdict, StepRecord record);
  /// COLLECTIVE where all ranks saw what this one saw: the step again, without an update, to find out whether
  /// they did. A rank that is alone with it meets the others in their next step, whose communication is the
  /// same.
  void require_equal_norms();
  void skip_step(const program::Verdict& verdict);
  /// What to do about a step that is not finite.
  std::string advice(const program::Verdict& verdict) const;
  /// In steps. The same on all ranks, also on those that only serve.
  bool compares_replicas() const {
    return worker_->compiled().placement().replicas() > 1 && config_.trainer.check_every_steps > 0;
  }
  /// Before a checkpoint and at the end: also what stages of one replica hold in common.
  bool compares_copies() const {
    return compares_replicas() ||
           (worker_->compiled().placement().ties_stages() && config_.trainer.check_every_steps > 0);
  }
  bool comparison_is_due() const;
  /// What the ranks compare in a step's agreement: the last norm, and this replica where that is due; 0 on a
  /// rank without one.
  uint64_t agreement_hash(bool with_replica);
  /// COLLECTIVE: compares now what the steps so far have left, unless that is done already.
  void require_equal_replicas();
  [[noreturn]] void report_divergence();
  std::string locate_held();  ///< COLLECTIVE: what differs in the replicas as they are
  // Of layouts with sessions (session_loop.cpp): steps up to the next evaluation, checkpoint or end.
  void train_one_session();
  int64_t steps_to_meeting() const;
  /// Of the update that a range sees after so many in a session that began at `first_step`, of which so many
  /// changed something.
  run::StepScalars pushed_constants(int64_t first_step, int64_t updates, int64_t applied) const;
  void make_granted_steps(int64_t first);
  /// COLLECTIVE over `left`. What servers hold goes with them.
  void go_on_with(const std::vector<int>& left);
  void require_finite(int64_t step);
  bool skips_too_many(int64_t skipped) const;
  void require_few_skips(int64_t skipped);
  /// Records of the steps that are complete by now, with means over those that no record was of.
  void tell_session(int64_t first, const run::SessionTotals& totals);
  bool ends_early() const;
  bool evaluation_due() const;
  bool checkpoint_due() const;
  bool keeps_best() const;
  /// False, and nothing is told, where a stop was requested before its end.
  bool evaluate();
  /// The evaluation that the config wants, and what follows from it.
  void evaluate_as_planned();
  /// COLLECTIVE. REQUIRES: all ranks take the same step for saved, or none of them this one.
  void save_checkpoint();
  /// COLLECTIVE: makes all ranks take the same step for saved, or none. One rank may have heard that the save
  /// of a step has failed, or have given up waiting for it, while the others have not.
  void agree_on_saved_step();
  /// Tells of the saves that have ended since it was last asked. Failures are remembered, or warned of.
  void hear_of_checkpoints(checkpoint::SaveFailurePolicy on_failure);
  /// COLLECTIVE: saves the end where the config or a stop wants it, and throws where that, or a save before
  /// it, failed.
  void settle_checkpoints();
  void resume();
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
  std::optional<optim::LossScaler> loss_scaler_;  ///< nothing where losses are not scaled
  int64_t equal_step_ = -1;                       ///< last step after which the replicas were found equal
  int64_t hashed_step_ = -1;                      ///< last step after which this rank hashed its replica
  double last_norm_ = 0;
  uint64_t read_hash_ = 0;   ///< of the parameters that the last step has read; 0 where it does not tell
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
