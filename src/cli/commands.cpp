#include "cli/commands.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>

#include "base/log.h"
#include "layout/layout.h"
#include "lockstep/error.h"

namespace lockstep::cli {
namespace {

/// People read the first lines of a help text and copy from them.
class ExampleFirst : public CLI::Formatter {
 public:
  explicit ExampleFirst(std::string example) : example_(std::move(example)) {}

  std::string make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const override {
    return fmt::format("Example:\n{}\n\n{}", example_, CLI::Formatter::make_help(app, std::move(name), mode));
  }

 private:
  std::string example_;
};

}  // namespace

CLI::App& add_subcommand(CLI::App& parent, const std::string& name, const std::string& description,
                         const std::string& example) {
  CLI::App& command = *parent.add_subcommand(name, description);
  command.formatter(std::make_shared<ExampleFirst>(example));
  return command;
}

void add_config(CLI::App& command, jobs::ConfigArguments& arguments, bool with_data) {
  command.add_option("CONFIG", arguments.path, "Config file (text proto); docs/config.md lists its fields")
      ->required();
  // Each --set takes one value, so that it may stand before CONFIG.
  command
      .add_option("--set", arguments.overrides,
                  "Replaces a field of the config, such as optimizer.learning_rate=0.05; may be repeated")
      ->allow_extra_args(false)
      ->type_name("PATH=VALUE");
  if (with_data)
    command.add_option("--data-dir", arguments.data_directory, "Folder of the data files (data.directory)")
        ->type_name("DIR");
}

void add_layout(CLI::App& command, jobs::ConfigArguments& arguments) {
  command
      .add_option("--layout", arguments.layout,
                  "How processes share the work, such as dp=2; replaces the whole layout of the config; "
                  "keys below")
      ->type_name("KEY=VALUE,...");
  command.footer(layout::layout_help());
}

void add_checkpoint(CLI::App& command, std::string& path) {
  command
      .add_option("--checkpoint", path,
                  "A checkpoint, or a run, whose newest checkpoint is taken; RUN/best: the one with the "
                  "lowest loss")
      ->type_name("DIR")
      ->required();
}

void add_average(CLI::App& command, std::optional<bool>& average) {
  CLI::Option* use = command.add_flag_callback(
      "--average", [&average] { average = true; },
      "Use the moving averages of the parameters (optimizer.ema); default: whatever the training evaluated");
  command
      .add_flag_callback(
          "--no-average", [&average] { average = false; },
          "Use the parameters, also if the training evaluated their averages (ema.evaluate)")
      ->excludes(use);
}

void add_output(CLI::App& command, jobs::OutputArguments& arguments) {
  add_json(command, arguments);
  command.add_flag("--quiet", arguments.quiet, "Only warnings and errors on stderr")
      ->each([](const std::string&) { set_log_level(LogLevel::warning); });
}

void add_verbose(CLI::App& command, jobs::OutputArguments& arguments) {
  command
      .add_flag("--verbose", arguments.verbose, "Everything about memory, start-up times, hashes and GPUs")
      ->excludes("--quiet")
      ->each([](const std::string&) { set_log_level(LogLevel::debug); });
}

void add_device(CLI::App& command, jobs::DeviceArguments& arguments) {
  command
      .add_option("--device", arguments.device,
                  "Where to compute; auto: on GPUs if there are any, one per worker, otherwise on CPUs")
      ->type_name("auto|cpu|cuda")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}));
  command.add_flag("--allow-shared-gpu", arguments.allow_shared_gpu,
                   "Let several workers use one GPU; slow, for trying things out");
}

void add_json(CLI::App& command, jobs::OutputArguments& arguments) {
  command.add_flag("--json", arguments.json, "Print the result as one JSON object, the only thing on stdout");
}

CLI::Validator finite_number() {
  return CLI::Validator(
      [](const std::string& text) {
        double number = 0;
        const bool reads = CLI::detail::lexical_cast(text, number);
        return reads && std::isfinite(number) ? std::string() : std::string("expected a finite number");
      },
      "");
}

void write_result(std::string_view text) {
  const bool written =
      std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  // Whoever wanted the first lines has them.
  if (!written && errno != EPIPE)
    throw IoError(fmt::format("cannot write the result to stdout: {}", std::strerror(errno)));
}

}  // namespace lockstep::cli
