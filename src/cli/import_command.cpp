#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/hash.h"
#include "base/index.h"
#include "base/log.h"
#include "base/text.h"
#include "checkpoint/checkpoint_share.h"
#include "checkpoint/strict_json.h"
#include "cli/commands.h"
#include "config/run_config.h"
#include "exchange/family.h"
#include "exchange/new_folder.h"
#include "exchange/tensor_store.h"
#include "exchange/weight_source.h"
#include "lockstep/error.h"
#include "model/graph.h"
#include "tokenizer/tokenizer_file.h"

namespace lockstep::cli {
namespace {

namespace fs = std::filesystem;

struct ImportArguments {
  std::string source, directory;
  int64_t context = 0;
  jobs::OutputArguments output;
};

/// Rotary positions can be computed for any context, but a model does not know those it never saw.
void warn_of_long_context(const nlohmann::json& config, int64_t context) {
  constexpr const char* kTrained = "max_position_embeddings";
  if (!config.is_object() || !config.contains(kTrained) || !config[kTrained].is_number_integer()) return;
  const auto trained = config[kTrained].get<int64_t>();
  if (context > trained)
    log_warning(
        fmt::format("--context {}: the model was trained on at most {} positions ({}), and what it "
                    "makes of more of them is not known before it is trained on them",
                    context, trained, kTrained));
}

/// A config of the model; what trains it is for its owner to choose.
std::string config_text(const ImportArguments& arguments) {
  const std::string path = (fs::path(arguments.source) / "config.json").string();
  if (!exchange::is_huggingface_folder(arguments.source))
    throw CheckpointError(fmt::format("{}: expected a folder of Hugging Face with a config.json, found none",
                                      arguments.source));
  exchange::require_regular_file(path);
  const auto json = checkpoint::parse_strict_json(read_text_file(path), path);
  warn_of_long_context(json, arguments.context);
  const exchange::Family& family = exchange::family_of(json, path);
  return fmt::format(
      "# The model of {}. Data, trainer and optimizer are a proposal for fine-tuning.\nformat_version: 1\n{}"
      "data {{\n  tokens {{ files: \"train_*.bin\" eval_files: \"val_*.bin\" }}\n}}\n"
      "trainer {{\n  global_batch: 8\n  steps: 1000\n  clip_norm: 1\n}}\n"
      "optimizer {{\n  learning_rate: 5e-5\n  adamw {{}}\n  schedule {{ warmup_steps: 50 cosine {{}} "
      "}}\n}}\n",
      fs::path(arguments.source).lexically_normal().filename().string(),
      family.preset_text(json, arguments.context));
}

/// As lockstep writes it, so that data that are read by it compare equal.
std::optional<std::string> tokenizer_text(const exchange::WeightSource& source) {
  const auto text = source.tokenizer_text();
  if (!text) return std::nullopt;
  try {
    return tokenizer::to_json(tokenizer::tokenizer_from_json(*text, std::string(tokenizer::kTokenizerFile)));
  } catch (const DataError& error) {
    log_warning(fmt::format("the checkpoint has no tokenizer, so generate cannot use it: {}", error.what()));
    return std::nullopt;
  }
}

checkpoint::Manifest manifest_of(const config::RunConfig& config, const exchange::WeightSource& source) {
  checkpoint::Manifest manifest;
  manifest.run_id = to_hex(hash64(source.path()));
  manifest.total_steps = config.trainer.steps;
  manifest.seed = config.trainer.seed;
  manifest.math_hash = config.math_hash;
  manifest.config_hash = config.config_hash;
  manifest.math_fields = config.math_fields;
  if (const auto text = tokenizer_text(source))
    manifest.encodings[std::string(tokenizer::kTokenizerFile)] = *text;
  return manifest;
}

std::string save(const std::string& directory, const config::RunConfig& config,
                 const exchange::WeightSource& source) {
  const model::Graph& graph = *config.graph;
  std::vector<std::vector<float>> values;
  checkpoint::CheckpointShare share{
      .parameters = {}, .state = {}, .model = {.index = 1, .count = 1}, .optimizer = {}};
  for (int p = 0; p < static_cast<int>(graph.parameters.size()); ++p) {
    const auto& parameter = graph.parameter(p);
    values.emplace_back(static_cast<size_t>(parameter.spec.shape.count()));
    source.read(p, tensor::Part::whole(parameter.spec.shape), values.back());
    share.parameters.push_back({parameter.name, DType::float32, parameter.spec.shape, values.back().data()});
  }
  checkpoint::Manifest manifest = manifest_of(config, source);
  manifest.weights_from = fs::absolute(source.path()).string();
  manifest.weights_hash = checkpoint::parameters_hash(share.parameters);
  checkpoint::CheckpointWriter writer(directory + "/checkpoints", 0);
  writer.begin(4 * graph.parameter_count());
  const auto outcome = checkpoint::conclude_save(writer, std::move(manifest),
                                                 {{0, checkpoint::write_share(writer, share)}}, 0);
  if (!outcome.error.empty()) throw Error(outcome.error, outcome.code);
  return outcome.path;
}

constexpr const char* kConfigName = "config.effective.textproto";

int import_weights(const ImportArguments& arguments) {
  exchange::NewFolder folder(arguments.directory, posix_file_system());
  const std::string name = (fs::path(arguments.directory) / kConfigName).string();
  const config::RunConfig config = config::parse_run_config(config_text(arguments), name, {});
  const exchange::WeightSource source(config.model, {.path = arguments.source});
  for (const auto& note : source.notes()) log_info(fmt::format("{}: {}", arguments.source, note));
  const fs::path saved = save(folder.unfinished(), config, source);
  const std::string path =
      (fs::path(arguments.directory) / saved.lexically_relative(folder.unfinished())).string();
  folder.write(kConfigName, config.effective_text);
  folder.finish();
  write_result(
      arguments.output.json
          ? nlohmann::ordered_json{{"checkpoint", path}, {"config", name}, {"tensors", source.tensor_count()}}
                    .dump() +
                "\n"
          : fmt::format("imported         {}, {} tensors\ncheckpoint       {}\nconfig           {}\n",
                        source.kind(), source.tensor_count(), path, name));
  return static_cast<int>(ExitCode::done);
}

}  // namespace

void add_import_command(CLI::App& program, CommandAction& selected) {
  auto& command =
      add_subcommand(program, "import", "Makes a run with a checkpoint from a model of Hugging Face",
                     "  lockstep import gpt2-folder --out runs/gpt2\n"
                     "  lockstep generate --checkpoint runs/gpt2 --prompt 'Once'");
  const auto arguments = std::make_shared<ImportArguments>();
  command
      .add_option("SOURCE", arguments->source,
                  "Folder with config.json and model.safetensors, or its shards and index")
      ->required();
  command
      .add_option("--out", arguments->directory,
                  "New folder for the run: its config and a checkpoint of step 0")
      ->type_name("DIR")
      ->required();
  command
      .add_option("--context", arguments->context,
                  "Tokens in a sample, at most as many as the model has positions; default: all of them")
      ->type_name("N")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 24));
  add_output(command, arguments->output);
  command.callback([&selected, arguments] { selected = [arguments] { return import_weights(*arguments); }; });
}

}  // namespace lockstep::cli
