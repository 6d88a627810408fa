#include "base/hash.h"
#include "lockstep/train.h"
#include "train/loop/stop_request.h"
#include "train/start/session.h"
#include "train/start/world.h"

namespace lockstep {
namespace {

class WorldJob : public Job {
 public:
  explicit WorldJob(train::World& world) : world_(world) {}

  int rank() const override { return world_.rank(); }
  int world_size() const override { return world_.size(); }
  bool stopped() const { return stopped_; }

  TrainingSummary train(const ModelSpec& model, const std::string& config,
                        const TrainingOptions& options) override {
    train::SessionOptions session;
    session.load_config = [&] {
      // Behind the rest, so that the lines which errors name are the caller's.
      return config::parse_run_config(config + "\nmodel {\n" + config::model_to_text(model) + "}\n", "config",
                                      options.overrides);
    };
    session.output_directory = options.output_directory;
    session.quiet = options.quiet;
    session.stop_requested = train::stop_requested;
    if (options.on_step)
      session.on_step = [&](const train::StepRecord& record) {
        options.on_step({.step = record.step,
                         .loss = record.loss,
                         .learning_rate = record.learning_rate,
                         .gradient_norm = record.gradient_norm});
      };
    const auto [report, stopped] = train::train_session(world_, session);
    stopped_ = stopped_ || stopped;
    return {.steps = report.steps,
            .epochs = report.epochs,
            .train_loss = report.train_loss.value_or(0),
            .eval_loss = report.eval_loss,
            .eval_accuracy = report.eval_accuracy,
            .samples_per_second = report.samples_per_second.value_or(0),
            .parameters_hash = to_hex(report.params_hash),
            .stopped = stopped};
  }

 private:
  train::World& world_;
  bool stopped_ = false;
};

}  // namespace

int run_job(const std::function<void(Job&)>& body) {
  return train::run_in_world([&](train::World& world) {
    WorldJob job(world);
    body(job);
    return static_cast<int>(job.stopped() ? train::stop_exit_code() : ExitCode::done);
  });
}

}  // namespace lockstep
