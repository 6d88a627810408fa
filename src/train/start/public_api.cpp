#include <algorithm>
#include <limits>
#include <utility>

#include "base/hash.h"
#include "base/index.h"
#include "data/own_samples.h"
#include "infer/predictor.h"
#include "lockstep/error.h"
#include "lockstep/train.h"
#include "train/loop/run_recorder.h"
#include "train/loop/stop_request.h"
#include "train/start/run.h"
#include "train/start/world.h"

namespace lockstep {

struct Job::State {
  train::World& world;
  bool is_training = false, stopped = false;
};

int Job::rank() const { return state_->world.rank(); }
int Job::world_size() const { return state_->world.size(); }

int run_job(const std::function<void(Job&)>& body) {
  return train::run_in_world([&](train::World& world) {
    Job::State state{world};
    Job job(state);
    body(job);
    return static_cast<int>(state.stopped ? train::stop_exit_code() : ExitCode::done);
  });
}

namespace {

config::RunConfig load(const std::optional<ModelSpec>& model, const Config& config,
                       const TrainingOptions& options) {
  const data::DatasetPair samples{SamplesAccess::dataset_of(options.train_samples),
                                  SamplesAccess::dataset_of(options.eval_samples)};
  require(samples.train != nullptr || samples.eval == nullptr,
          "TrainingOptions: there are eval_samples, but no train_samples; pass both, or let the config name "
          "the data");
  return config::parse_run_config(config.text(), config.name(), config.assignments(), config.layout(),
                                  {.model = model, .samples = samples});
}

}  // namespace

struct Training::Parts {
  Parts(Job::State& job_state, const std::optional<ModelSpec>& model, const Config& config,
        TrainingOptions training)
      : job(job_state), options(std::move(training)), run(job.world, run_options(model, config)) {
    job.is_training = true;
  }
  ~Parts() { job.is_training = false; }
  Parts(const Parts&) = delete;

  train::RunOptions run_options(const std::optional<ModelSpec>& model, const Config& config) {
    require(!job.is_training, "another Training exists, and only one may; destroy that one first");
    train::RunOptions started;
    started.load_config = [this, model, config] { return load(model, config, options); };
    started.output_directory = options.output_directory;
    started.quiet = options.quiet;
    started.stop_requested = train::stop_requested;
    started.on_step = [this](const train::StepRecord& record) {
      last_step = {.step = record.step,
                   .loss = record.loss,
                   .learning_rate = record.learning_rate,
                   .gradient_norm = record.gradient_norm};
      if (options.on_step) options.on_step(*last_step);
    };
    return started;
  }

  Job::State& job;
  const TrainingOptions options;
  std::optional<TrainingStep> last_step;
  bool finished = false;
  train::Run run;
};

Training::Training(Job& job, const ModelSpec& model, const Config& config, TrainingOptions options)
    : parts_(std::make_unique<Parts>(*job.state_, model, config, std::move(options))) {}

Training::Training(Job& job, const Config& config, TrainingOptions options)
    : parts_(std::make_unique<Parts>(*job.state_, std::nullopt, config, std::move(options))) {}

Training::~Training() = default;

bool Training::step() {
  if (parts_->run.advance()) {
    // The program may do something else now.
    if (parts_->run.worker().needs_attention()) parts_->run.worker().finish_step();
    return true;
  }
  // Also if nobody calls finish().
  parts_->job.stopped = parts_->job.stopped || (!parts_->finished && parts_->run.stopped());
  return false;
}

int64_t Training::steps() const { return parts_->run.steps(); }

int64_t Training::total_steps() const { return parts_->run.worker().total_steps(); }

const std::optional<TrainingStep>& Training::last_step() const { return parts_->last_step; }

std::optional<Evaluation> Training::evaluate() {
  const train::Worker& worker = parts_->run.worker();
  require(worker.has_eval_data(),
          "Training::evaluate: there are no evaluation data; pass eval_samples, or name evaluation data in "
          "the config");
  const bool classifier = train::tells_accuracy(worker.compiled().graph());
  const auto record = parts_->run.evaluate();
  if (!record) return std::nullopt;
  Evaluation evaluation{.step = record->step, .loss = record->loss, .accuracy = std::nullopt};
  if (classifier && record->has_loss()) evaluation.accuracy = record->accuracy;
  return evaluation;
}

std::vector<Parameter> Training::parameters() const {
  std::vector<Parameter> parameters;
  for (const auto& parameter : parts_->run.worker().compiled().graph().parameters)
    parameters.push_back({parameter.name, parameter.spec.shape});
  return parameters;
}

std::vector<float> Training::parameter(const std::string& name) { return parts_->run.parameter(name); }

void Training::set_parameter(const std::string& name, std::span<const float> values) {
  parts_->run.set_parameter(name, values);
}

std::vector<float> Training::predict(const Samples& samples) {
  const auto dataset = SamplesAccess::dataset_of(samples);
  const config::RunConfig& config = parts_->run.worker().config();
  infer::Predictor predictor(*config.graph, std::max(1, config.parallel.intra_op_threads));
  const auto& parameters = predictor.evaluator().graph().parameters;
  for (int p = 0; p < static_cast<int>(parameters.size()); ++p)
    std::ranges::copy(parts_->run.parameter(nth(parameters, p).name),
                      predictor.evaluator().parameter(p).as<float>());
  return dataset == nullptr ? std::vector<float>{} : infer::outputs_of(predictor, *dataset);
}

void Training::save() {
  require(!parts_->options.output_directory.empty(),
          "Training::save: there is no TrainingOptions::output_directory to save in");
  require(!parts_->finished, "Training::save: the training is finished");
  parts_->run.save();
}

TrainingSummary Training::finish() {
  require(!parts_->finished, "Training::finish: the training is finished already");
  const auto [report, stopped] = parts_->run.finish();
  parts_->finished = true;
  parts_->job.stopped = parts_->job.stopped || stopped;
  return {.steps = report.steps,
          .epochs = report.epochs,
          .train_loss = report.train_loss.value_or(std::numeric_limits<double>::quiet_NaN()),
          .eval_loss = report.eval_loss,
          .eval_accuracy = report.eval_accuracy,
          .samples_per_second = report.samples_per_second.value_or(0),
          .parameters_hash = to_hex(report.params_hash),
          .stopped = stopped};
}

}  // namespace lockstep
