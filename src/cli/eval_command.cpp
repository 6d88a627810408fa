#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <memory>
#include <optional>

#include "base/hash.h"
#include "base/log.h"
#include "cli/commands.h"
#include "observe/json_text.h"
#include "train/checkpoints/best_checkpoint.h"
#include "train/checkpoints/kept_config.h"
#include "train/faults/position.h"
#include "train/loop/run_recorder.h"
#include "train/loop/stop_request.h"
#include "train/loop/trainer.h"
#include "train/start/world.h"
#include "train/worker/model_state.h"

namespace lockstep::cli {
namespace {

struct EvalArguments {
  jobs::ConfigArguments config;
  jobs::OutputArguments output;
  jobs::DeviceArguments device;
  std::string checkpoint;
  std::optional<bool> average;
};

std::string kept_of(const std::string& checkpoint) {
  return train::kept_config_of(
      checkpoint, fmt::format("name its config: lockstep eval CONFIG --checkpoint {}", checkpoint));
}

config::RunConfig load_config(const EvalArguments& arguments) {
  auto overrides = arguments.config.all_overrides();
  overrides.push_back("checkpoint.resume_path=" + arguments.checkpoint);
  overrides.push_back("parallel.profile=\"\"");          // of training steps
  overrides.push_back("parallel.error_feedback=false");  // no gradient is rounded: its memory is not needed
  if (!arguments.config.path.empty())
    return config::load_run_config(arguments.config.path, overrides, arguments.config.layout);
  // As many processes as there are, however many have trained.
  return config::load_kept_config(kept_of(arguments.checkpoint), overrides,
                                  arguments.config.layout.value_or("pp=1"));
}

/// Nothing of what trained is read but the checkpoint.
config::RunConfig load(const EvalArguments& arguments) {
  config::RunConfig config = load_config(arguments);
  config.data.trains = false;
  // Before data are read by what may be another model's encodings, or judged by another model.
  if (const auto manifest = train::manifest_of(arguments.checkpoint)) {
    train::require_same_model(*manifest, config.math_fields);
    config.data.encodings = manifest->encodings;
  }
  return config;
}

/// e to the loss, of models that have a perplexity.
std::optional<double> perplexity_of(const train::EvaluationRecord& record, const train::Worker& worker) {
  return record.has_loss() && train::tells_perplexity(worker.compiled().graph())
             ? std::optional(std::exp(record.loss))
             : std::nullopt;
}

std::string result_text(const train::EvaluationRecord& record, const train::Worker& worker,
                        uint64_t parameters_hash, bool json) {
  std::optional<double> accuracy;
  if (record.has_loss() && train::tells_accuracy(worker.compiled().graph())) accuracy = record.accuracy;
  const std::optional<double> perplexity = perplexity_of(record, worker);
  const std::string hash = to_hex(parameters_hash);
  const std::string layout = layout::to_string(worker.compiled().layout());
  if (json)
    return fmt::format(
        "{{\"step\":{},\"eval_loss\":{}{}{},\"eval_samples\":{},\"params_hash\":\"{}\",\"layout\":{}}}\n",
        record.step, record.has_loss() ? observe::json_number(record.loss) : "null",
        perplexity ? fmt::format(",\"perplexity\":{}", observe::json_number(*perplexity)) : "",
        accuracy ? fmt::format(",\"eval_accuracy\":{}", observe::json_number(*accuracy)) : "",
        worker.eval_data().size(), hash, observe::json_string(layout));
  std::string text =
      fmt::format("checkpoint       of step {}\nevaluation loss  {}\n", record.step,
                  record.has_loss() ? fmt::format("{:.6g}", record.loss) : "none: all labels are ignored");
  if (perplexity) text += fmt::format("perplexity       {:.6g}\n", *perplexity);
  if (accuracy) text += fmt::format("accuracy         {:.2f} %\n", 100 * *accuracy);
  return text + fmt::format("samples          {}\nparams hash      {}\nlayout           {}\n",
                            worker.eval_data().size(), hash, layout);
}

int evaluate(const EvalArguments& arguments) {
  return train::run_in_world([&](train::World& world) {
    train::DeviceRequest device = arguments.device.request();
    device.say = log_info;
    const auto worker = train::start_worker(
        world, [&] { return load(arguments); }, device);
    const train::WatchedWorker watched(world, *worker);
    if (!worker->has_eval_data())
      throw comm::CollectiveError(
          "eval: there are no evaluation data: set data.idx.eval_images and eval_labels, data.images.eval, a "
          "smaller "
          "data.text.train_fraction, data.tokens.eval_files, or data.synthetic.eval_samples",
          ExitCode::usage);
    train::TrainerEvents events;
    events.on_message = [&](const std::string& text) {
      if (world.rank() == 0) log_info(text);
    };
    train::Trainer trainer(*worker, world.communicator(), std::move(events),
                           {.output_directory = "",
                            .stop_requested = train::stop_requested,
                            .progress = &world.control().progress(),
                            .evaluates = true,
                            .evaluates_average = train::uses_average(worker->config(), arguments.average),
                            .drawing_threads = train::idle_threads(world.launch())});
    trainer.prepare();
    const auto record = trainer.evaluate_now();
    train::enter_phase(&world.control().progress(), train::Phase::outside);
    if (!record) return static_cast<int>(train::stop_exit_code());
    const uint64_t hash = train::parameters_hash_of(*worker, world.communicator());
    if (world.rank() == 0) write_result(result_text(*record, *worker, hash, arguments.output.json));
    return static_cast<int>(ExitCode::done);
  });
}

}  // namespace

void add_eval_command(CLI::App& program, CommandAction& selected) {
  auto& command = add_subcommand(
      program, "eval", "Prints loss and accuracy of a checkpoint over the evaluation data",
      "  lockstep eval --checkpoint runs/digits\n"
      "  lockstep eval configs/digits_quickstart.textproto --checkpoint runs/digits --data-dir digits");
  const auto arguments = std::make_shared<EvalArguments>();
  add_config(command, arguments->config, /*with_data=*/true);
  command.get_option("CONFIG")->required(false)->description(
      "Config file; default: the config saved with the run, on as many processes as there are");
  add_layout(command, arguments->config);
  add_checkpoint(command, arguments->checkpoint);
  add_average(command, arguments->average);
  add_device(command, arguments->device);
  add_output(command, arguments->output);
  command.callback([&selected, arguments] { selected = [arguments] { return evaluate(*arguments); }; });
}

}  // namespace lockstep::cli
