#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/text.h"
#include "cli/commands.h"
#include "exchange/exported_model.h"
#include "lockstep/error.h"
#include "train/checkpoints/kept_config.h"

namespace lockstep::cli {
namespace {

struct ExportArguments {
  std::string checkpoint, config, format, directory, dtype = "float32";
  int64_t shard_mb = 5000;
  std::optional<bool> average;
  jobs::OutputArguments output;
};

std::string result_text(const exchange::ExportedModel& exported, const ExportArguments& arguments) {
  if (arguments.output.json)
    return nlohmann::ordered_json{{"directory", arguments.directory},    {"format", arguments.format},
                                  {"family", exported.family},           {"dtype", arguments.dtype},
                                  {"tensors", exported.tensors},         {"size_bytes", exported.size_bytes},
                                  {"tokenizer", exported.has_tokenizer}, {"files", exported.files}}
               .dump() +
           "\n";
  return fmt::format(
      "exported         {} tensors of {}, {}, as {}{}\nfolder           {}\n", exported.tensors,
      arguments.dtype, human_bytes(exported.size_bytes),
      exported.family == "layers" ? "a state dict of PyTorch" : "a model of type " + exported.family,
      exported.has_tokenizer ? ", with its tokenizer" : "", arguments.directory);
}

int export_weights(const ExportArguments& arguments) {
  exchange::ExportOptions options{.format = exchange::format_from_name(arguments.format),
                                  .dtype = dtype_from_name(arguments.dtype),
                                  .shard_bytes = arguments.shard_mb * 1'000'000,
                                  .directory = arguments.directory};
  const train::OpenedRun run = train::open_run(
      arguments.checkpoint, arguments.config, {}, arguments.average,
      fmt::format("name its config: lockstep export {} --config CONFIG", arguments.checkpoint));
  options.weights = run.weights;
  write_result(result_text(exchange::export_model(run.config.model, run.checkpoint, options), arguments));
  return static_cast<int>(ExitCode::done);
}

}  // namespace

void add_export_command(CLI::App& program, CommandAction& selected) {
  auto& command =
      add_subcommand(program, "export", "Writes the weights of a checkpoint for transformers or PyTorch",
                     "  lockstep export runs/gpt --format huggingface --out gpt-hf\n"
                     "  lockstep export runs/mnist/best --format pytorch --out lenet-torch --dtype bfloat16");
  const auto arguments = std::make_shared<ExportArguments>();
  command
      .add_option(
          "CHECKPOINT", arguments->checkpoint,
          "A checkpoint, or a run, whose newest checkpoint is taken; RUN/best: the one with the lowest loss")
      ->required();
  command
      .add_option(
          "--format", arguments->format,
          "huggingface: GPT-2 and Llama, as transformers opens them; pytorch: a state dict of any model")
      ->type_name("huggingface|pytorch")
      ->check(CLI::IsMember({"huggingface", "pytorch"}))
      ->required();
  command.add_option("--out", arguments->directory, "New folder for the files")->type_name("DIR")->required();
  command.add_option("--dtype", arguments->dtype, "Element type of the tensors; default: float32")
      ->type_name("float32|bfloat16|float16")
      ->check(CLI::IsMember({"float32", "bfloat16", "float16"}));
  command
      .add_option("--shard-mb", arguments->shard_mb,
                  "Megabytes after which another file of tensors is begun; default: 5000")
      ->type_name("N")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30));
  command
      .add_option("--config", arguments->config,
                  "Config of the model; default: the config saved with the run")
      ->type_name("FILE");
  add_average(command, arguments->average);
  add_output(command, arguments->output);
  command.callback([&selected, arguments] { selected = [arguments] { return export_weights(*arguments); }; });
}

}  // namespace lockstep::cli
