#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/config.h"
#include "lockstep/data.h"
#include "lockstep/error.h"
#include "lockstep/model.h"

/// A model of one's own, trained on one's own samples, by as many processes as mpirun starts:
///
///     int main() {
///       return lockstep::run_job([](lockstep::Job& job) {
///         const lockstep::Config config("trainer { global_batch: 64 epochs: 3 } optimizer { sgd {} }");
///         lockstep::Training training(job, my_model(), config, {.train_samples = my_samples()});
///         while (training.step())
///           if (job.rank() == 0) show(training.last_step()->loss);
///         save(training.parameter("fc1.weight"));
///         training.finish();
///       });
///     }

#pragma GCC visibility push(default)
namespace lockstep {

/// One step, as a watcher sees it.
struct TrainingStep {
  int64_t step = 0;          ///< steps complete, counted from 1
  double loss = 0;           ///< mean over the global batch; no number if all its labels are ignored
  double learning_rate = 0;  ///< the schedule's; with mode=async a push mostly has a part of it
  double gradient_norm = 0;  ///< before clipping
};

struct TrainingOptions {
  Samples train_samples, eval_samples;  ///< the program's own; none: those that the config's data name
  std::string output_directory;  ///< metrics, effective config and checkpoints; empty: nothing is written
  bool quiet = false;            ///< nothing on stderr but warnings and errors
  std::function<void(const TrainingStep&)> on_step = {};  ///< called on every rank; may be empty
};

/// Of all samples to evaluate on. The same on all ranks.
struct Evaluation {
  int64_t step = 0;                ///< steps complete
  double loss = 0;                 ///< mean; no number if all labels are ignored
  std::optional<double> accuracy;  ///< where the loss is softmax_cross_entropy: share of right answers
};

/// What a model has learned, or gathered, under one name.
struct Parameter {
  std::string name;  ///< "layer.parameter"
  Shape shape;
  bool operator==(const Parameter&) const = default;
};

/// The same on all ranks.
struct TrainingSummary {
  int64_t steps = 0;
  double epochs = 0;
  double train_loss = 0;  ///< of the last step; no number if there was none, or all its labels were ignored
  std::optional<double> eval_loss;
  std::optional<double> eval_accuracy;  ///< as Evaluation::accuracy
  double samples_per_second = 0;
  std::string parameters_hash;  ///< 16 hex digits: equal for equal bits of all parameters
  bool stopped = false;  ///< by a request (SIGUSR1; of one process also SIGTERM, SIGINT, SIGHUP), saved in
                         ///< output_directory
};

/// The processes that train together: those that mpirun started, or this one alone.
class Job {
 public:
  int rank() const;
  int world_size() const;

 private:
  struct State;
  friend int run_job(const std::function<void(Job&)>& body);
  friend class Training;
  explicit Job(State& state) : state_(&state) {}
  State* state_;
};

/// One training, step by step. Every method but those that say so is COLLECTIVE: all ranks call the same ones
/// in the same order with the same arguments. Errors are those of lockstep/error.h; after one of a step,
/// an evaluation or a save the training is over. One at a time in a process. Not thread-safe.
class Training {
 public:
  /// Prepares everything, and resumes where the config says so. `config` says nothing of the model, nor of
  /// data where `options` has samples; file names in it are relative to data.directory. All ranks throw where
  /// any cannot begin, or has been given something else than the others.
  Training(Job& job, const ModelSpec& model, const Config& config, TrainingOptions options = {});
  /// The model is the config's, too.
  Training(Job& job, const Config& config, TrainingOptions options = {});
  /// Completes the last step and waits for a checkpoint that is being written, unless an error unwinds; what
  /// fails then is a warning, while finish() throws it. Not COLLECTIVE once finish() has returned.
  ~Training();
  Training(const Training&) = delete;
  Training& operator=(const Training&) = delete;

  /// The next optimizer step, then the evaluation and the checkpoint that the config wants after it; with
  /// mode=stale and mode=async all steps up to the next of those. False, and no step is made, once all are
  /// made, a stop was requested or finish() was called. The first call also makes up for an evaluation
  /// that a stop had put off.
  bool step();
  /// All steps that are left.
  void run() {
    while (step()) {
    }
  }
  int64_t steps() const;        ///< complete, those before a resume included. Not COLLECTIVE
  int64_t total_steps() const;  ///< of the whole training. Not COLLECTIVE
  /// Of the last step, as on_step is told; nothing before the first one. Not COLLECTIVE
  const std::optional<TrainingStep>& last_step() const;

  /// All samples to evaluate on, with the parameters as they are; nothing where a stop is requested
  /// meanwhile. Throws ConfigError where there are no such samples.
  std::optional<Evaluation> evaluate();

  /// All of the model's, in its order. Not COLLECTIVE.
  std::vector<Parameter> parameters() const;
  /// The values of one, on every rank, row by row. Throws Error for an unknown name, naming those there are.
  std::vector<float> parameter(const std::string& name);
  /// Puts rank 0's `values` in place of a parameter on all ranks; the optimizer's state stays as it is.
  /// Throws Error for an unknown name or another number of values, and nothing has changed then.
  void set_parameter(const std::string& name, std::span<const float> values);

  /// Begins a checkpoint in output_directory, which is written while training goes on: that it could not be
  /// written is for a later step, save or finish() to report, as checkpoint.on_failure says. Throws
  /// ConfigError without an output_directory.
  void save();
  /// What is due at the end: evaluation, checkpoint, the run's report. Afterwards there are no more steps;
  /// parameters and evaluations stay.
  TrainingSummary finish();

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

/// Runs `body` as one rank of a job; for main, once per process. Until it returns, signals ask trainings to
/// stop: Training::step() returns false then, and the summary says so.
/// Returns the exit code: 0; 143 or 130 where a training was stopped by request; or that of what `body` threw
/// (lockstep/error.h), which is printed once; where one rank fails alone the whole job is ended, so that no
/// other waits for it.
int run_job(const std::function<void(Job&)>& body);

}  // namespace lockstep
#pragma GCC visibility pop
