#include "base/hash.h"
#include "lockstep/train.h"
#include "train/session.h"
#include "train/world.h"

namespace lockstep {
namespace {

class WorldJob : public Job {
 public:
  explicit WorldJob(World& world) : world_(world) {}

  int rank() const override { return world_.rank(); }
  int world_size() const override { return world_.size(); }

  TrainingSummary train(const ModelSpec& model, const std::string& config,
                        const TrainingOptions& options) override {
    SessionOptions session;
    session.load_config = [&] {
      // Behind the rest, so that the lines which errors name are the caller's.
      return parse_run_config(config + "\nmodel {\n" + model_to_text(model) + "}\n", "config",
                              options.overrides);
    };
    session.output_directory = options.output_directory;
    session.quiet = options.quiet;
    if (options.on_step)
      session.on_step = [&](const StepRecord& record) {
        options.on_step({.step = record.step,
                         .loss = record.loss,
                         .learning_rate = record.learning_rate,
                         .gradient_norm = record.gradient_norm});
      };
    const RunReport report = train_session(world_, session).report;
    return {.steps = report.steps,
            .epochs = report.epochs,
            .train_loss = report.train_loss.value_or(0),
            .eval_loss = report.eval_loss,
            .eval_accuracy = report.eval_accuracy,
            .samples_per_second = report.samples_per_second.value_or(0),
            .parameters_hash = to_hex(report.params_hash)};
  }

 private:
  World& world_;
};

}  // namespace

int run_job(const std::function<void(Job&)>& body) {
  return run_in_world([&](World& world) {
    WorldJob job(world);
    body(job);
    return static_cast<int>(ExitCode::done);
  });
}

}  // namespace lockstep
