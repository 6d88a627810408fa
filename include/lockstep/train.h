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

/// Trains your own model on your own samples, in as many processes as mpirun starts:
///
///     int main() {
///       return lockstep::run_job([](lockstep::Job& job) {
///         lockstep::Config config("trainer { global_batch: 64 epochs: 3 } optimizer { sgd {} }");
///         config.set("optimizer.learning_rate", 0.05);
///         lockstep::Training training(job, my_model(), config, {.train_samples = my_samples()});
///         while (training.step())
///           if (job.rank() == 0) show(training.last_step()->loss);
///         save(training.parameter("fc1.weight"));
///         training.finish();
///       });
///     }

#pragma GCC visibility push(default)
namespace lockstep {

/// The result of one step.
struct TrainingStep {
  int64_t step = 0;  ///< number of complete steps, from 1
  double loss = 0;   ///< mean over the global batch; NaN if all its labels are ignored
  double learning_rate =
      0;  ///< the schedule's rate; with mode=async a push is usually applied with a part of it
  double gradient_norm = 0;  ///< before clipping
};

struct TrainingOptions {
  Samples train_samples, eval_samples;  ///< the program's own samples; if empty, the config's data is used
  std::string output_directory;  ///< for metrics, effective config and checkpoints; empty: nothing is written
  bool quiet = false;            ///< only warnings and errors on stderr
  std::function<void(const TrainingStep&)> on_step = {};  ///< called on every rank; may be empty
};

/// The result of evaluating all evaluation samples. The same on all ranks.
struct Evaluation {
  int64_t step = 0;                ///< number of complete steps
  double loss = 0;                 ///< mean; NaN if all labels are ignored
  std::optional<double> accuracy;  ///< share of right answers; only with softmax_cross_entropy
};

/// A learned parameter, or a running statistic, of the model.
struct Parameter {
  std::string name;  ///< "layer.parameter"
  Shape shape;
  bool operator==(const Parameter&) const = default;
};

/// The result of a training. The same on all ranks.
struct TrainingSummary {
  int64_t steps = 0;
  double epochs = 0;
  double train_loss = 0;  ///< of the last step; NaN if there was none, or all its labels were ignored
  std::optional<double> eval_loss;
  std::optional<double> eval_accuracy;  ///< see Evaluation::accuracy
  double samples_per_second = 0;
  std::string parameters_hash;  ///< 16 hex digits: equal for equal bits of all parameters
  bool stopped = false;  ///< stopped by a request (SIGUSR1; with one process also SIGTERM, SIGINT, SIGHUP),
                         ///< and saved in output_directory
};

/// The processes that train together: those that mpirun started, or only this one.
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

/// One training, step by step. Every method is COLLECTIVE unless it says otherwise: all ranks call the same
/// methods in the same order with the same arguments. Errors are those of lockstep/error.h. After an error of
/// a step, an evaluation or a save the training is over. A process has one Training at a time. Not
/// thread-safe.
class Training {
 public:
  /// Prepares everything, and resumes if the config says so. `config` must not contain a model, nor data if
  /// `options` has samples. Its file names are relative to data.directory. All ranks throw if any rank cannot
  /// begin, or if ranks have different arguments.
  Training(Job& job, const ModelSpec& model, const Config& config, TrainingOptions options = {});
  /// The same, with the config's model.
  Training(Job& job, const Config& config, TrainingOptions options = {});
  /// Completes the last step and waits for a checkpoint that is being written, unless an error unwinds. The
  /// destructor logs failures as warnings; finish() throws them. Not COLLECTIVE once finish() has returned.
  ~Training();
  Training(const Training&) = delete;
  Training& operator=(const Training&) = delete;

  /// Makes the next optimizer step, then the evaluation and the checkpoint that are due after it. With
  /// mode=stale and mode=async it makes all steps up to the next evaluation or checkpoint. Returns false,
  /// without a step, once all steps are made, a stop was requested, or finish() was called. The first call
  /// also makes up for an evaluation that a stop had postponed.
  bool step();
  /// Makes all remaining steps.
  void run() {
    while (step()) {
    }
  }
  int64_t steps() const;        ///< complete steps, including those before a resume. Not COLLECTIVE
  int64_t total_steps() const;  ///< steps of the whole training. Not COLLECTIVE
  /// The last step, as passed to on_step; nothing before the first step. Not COLLECTIVE
  const std::optional<TrainingStep>& last_step() const;

  /// Evaluates all evaluation samples with the current parameters. Returns nothing if a stop is requested
  /// meanwhile. Throws ConfigError if there are no such samples.
  std::optional<Evaluation> evaluate();

  /// All parameters and statistics of the model, in its order. Not COLLECTIVE.
  std::vector<Parameter> parameters() const;
  /// The values of one parameter, row by row, on every rank. Throws Error for an unknown name, and lists the
  /// known ones.
  std::vector<float> parameter(const std::string& name);
  /// Replaces a parameter on all ranks by rank 0's `values`. Optimizer state stays as it is. Throws Error for
  /// an unknown name or a wrong number of values, and then changes nothing.
  void set_parameter(const std::string& name, std::span<const float> values);

  /// What the model's loss would compare with the truth, for each of `samples`: logits [count, classes], or
  /// predictions, row after row, with the current parameters. Every rank computes all of them on its CPU, in
  /// float32, to the same bits in any layout. Unlike evaluate(), it takes samples as they are: the config's
  /// transforms do not change them. Throws ConfigError if `samples` lack an input of the model.
  std::vector<float> predict(const Samples& samples);

  /// Begins a checkpoint in output_directory, which is written while training continues. If writing fails, a
  /// later step(), save() or finish() reports it, as checkpoint.on_failure says. Throws ConfigError without
  /// an output_directory.
  void save();
  /// Does what is due at the end: evaluation, checkpoint, the run's report. Afterwards no more steps can be
  /// made; parameters can still be read, and evaluated.
  TrainingSummary finish();

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

/// Runs `body` as one rank of a job. Call it from main, once per process. Until it returns, signals ask
/// trainings to stop: Training::step() then returns false, and the summary says so. Returns the exit code: 0;
/// 143 or 130 if a training was stopped by request; or that of the error that `body` threw
/// (lockstep/error.h), which is printed once. If one rank alone fails, the whole job is ended, so that no
/// other rank waits for it.
int run_job(const std::function<void(Job&)>& body);

}  // namespace lockstep
#pragma GCC visibility pop
