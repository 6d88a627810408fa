#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <thread>

#include "cli/commands.h"
#include "data/documents.h"
#include "device/openmp_team.h"
#include "infer/checkpoint_model.h"
#include "infer/language_model.h"
#include "lockstep/error.h"
#include "observe/json_text.h"
#include "tokenizer/tokenizer_file.h"
#include "train/checkpoints/kept_config.h"

namespace lockstep::cli {
namespace {

struct GenerateArguments {
  jobs::ConfigArguments config;
  jobs::OutputArguments output;
  std::string checkpoint, prompt;
  std::optional<bool> average;
  int samples = 1, threads = 0;
  infer::WritingOptions writing{.tokens = 200};
};

/// What the run's tokens stand for.
tokenizer::Tokenizer tokenizer_of(const checkpoint::Checkpoint& checkpoint) {
  auto tokenizer = tokenizer::tokenizer_among(checkpoint.manifest().encodings, checkpoint.path());
  if (!tokenizer)
    throw ConfigError(fmt::format(
        "generate: the checkpoint {} does not say what its tokens stand for: it has no {}, because "
        "it was not trained on text",
        checkpoint.path(), tokenizer::kTokenizerFile));
  return std::move(*tokenizer);
}

/// A model opened from a checkpoint, and what its tokens stand for.
struct Opened {
  checkpoint::Checkpoint checkpoint;
  tokenizer::Tokenizer tokenizer;
  infer::LanguageModel model;
};

int threads_of(const GenerateArguments& arguments) {
  return arguments.threads > 0 ? arguments.threads
                               : static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
}

Opened open(const GenerateArguments& arguments) {
  train::OpenedRun run = train::open_run(
      arguments.checkpoint, arguments.config.path, arguments.config.all_overrides(), arguments.average,
      fmt::format("name its config: lockstep generate CONFIG --checkpoint {}", arguments.checkpoint));
  tokenizer::Tokenizer tokenizer = tokenizer_of(run.checkpoint);
  infer::LanguageModel model(*run.config.graph, threads_of(arguments),
                             data::begin_of_documents(run.config.data, &tokenizer));
  if (tokenizer.size() > model.vocabulary())
    throw ConfigError(fmt::format("generate: the tokenizer has {} tokens, the model {}", tokenizer.size(),
                                  model.vocabulary()));
  infer::load_parameters(model.evaluator(), run.checkpoint, run.weights);
  return {std::move(run.checkpoint), std::move(tokenizer), std::move(model)};
}

std::string json_of(const Opened& opened, const GenerateArguments& arguments, uint32_t sample,
                    const std::string& text) {
  return fmt::format("{{\"sample\":{},\"step\":{},\"seed\":{},\"prompt\":{},\"text\":{}}}\n", sample,
                     opened.checkpoint.manifest().step, arguments.writing.seed,
                     observe::json_string(arguments.prompt), observe::json_string(text));
}

/// Text is shown while it is written, one sample after another; JSON when a sample is complete.
void write_sample(Opened& opened, const GenerateArguments& arguments, uint32_t sample) {
  infer::WritingOptions options = arguments.writing;
  options.sample = sample;
  options.end = opened.tokenizer.end_of_text().value_or(-1);
  options.vocabulary = opened.tokenizer.size();  // a model may have a few more, to be faster
  const std::vector<int32_t> prompt = opened.tokenizer.encode(arguments.prompt);
  const bool json = arguments.output.json;
  if (!json && arguments.samples > 1) write_result(fmt::format("{}--- {}\n", sample > 0 ? "\n" : "", sample));
  if (!json) write_result(arguments.prompt);
  std::string text;
  opened.model.write(prompt, options, [&](int32_t token) {
    if (token == options.end) return;
    const std::string piece = opened.tokenizer.decode({&token, 1});
    text += piece;
    if (!json) write_result(piece);
  });
  write_result(json ? json_of(opened, arguments, sample, text) : "\n");
}

int generate(const GenerateArguments& arguments) {
  infer::check(arguments.writing.sampling);
  device::set_openmp_team(threads_of(arguments));
  Opened opened = open(arguments);
  for (int sample = 0; sample < arguments.samples; ++sample)
    write_sample(opened, arguments, static_cast<uint32_t>(sample));
  return static_cast<int>(ExitCode::done);
}

void add_sampling(CLI::App& command, GenerateArguments& arguments) {
  infer::SamplingOptions& sampling = arguments.writing.sampling;
  command.add_option("--tokens", arguments.writing.tokens, "Tokens to write; default: 200")
      ->type_name("N")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30));
  command
      .add_option("--seed", arguments.writing.seed,
                  "Decides the text: the same seed writes the same; default: 0")
      ->type_name("S");
  command.add_option("--samples", arguments.samples, "Texts to write from the prompt; default: 1")
      ->type_name("N")
      ->check(CLI::Range(1, 65536));
  command
      .add_option(
          "--temperature", sampling.temperature,
          "Below 1: safer text, above 1: more surprising; 0: always the most probable token; default: 1")
      ->type_name("T")
      ->check(finite_number());
  command
      .add_option("--top-k", sampling.top_k, "Only the K most probable tokens are chosen from; default: all")
      ->type_name("K")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30));
  command
      .add_option("--top-p", sampling.top_p,
                  "Only the most probable tokens that together have probability P; default: 1, all")
      ->type_name("P")
      ->check(finite_number());
}

}  // namespace

void add_generate_command(CLI::App& program, CommandAction& selected) {
  auto& command = add_subcommand(
      program, "generate", "Writes text with a language model, from a checkpoint",
      "  lockstep generate --checkpoint runs/shakespeare --prompt 'ROMEO:' --tokens 300 --temperature 0.8\n"
      "  lockstep generate --checkpoint runs/shakespeare/best --prompt 'O ' --samples 3 --seed 7 --json");
  const auto arguments = std::make_shared<GenerateArguments>();
  add_config(command, arguments->config, /*with_data=*/false);
  command.get_option("CONFIG")->required(false)->description(
      "Config file; default: the config saved with the run");
  add_checkpoint(command, arguments->checkpoint);
  add_average(command, arguments->average);
  command.add_option("--prompt", arguments->prompt, "Text to continue")->type_name("TEXT")->required();
  add_sampling(command, *arguments);
  command.add_option("--threads", arguments->threads, "Threads to compute with; default: all cores")
      ->type_name("N")
      ->check(CLI::Range(1, 1024));
  add_json(command, arguments->output);
  command.callback([&selected, arguments] { selected = [arguments] { return generate(*arguments); }; });
}

}  // namespace lockstep::cli
