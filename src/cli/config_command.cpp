#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "base/ensure.h"
#include "base/hash.h"
#include "cli/commands.h"
#include "compile/run_plan.h"
#include "lockstep/error.h"
#include "observe/json_text.h"
#include "train/worker/compile_options.h"

namespace lockstep::cli {
namespace {

struct ConfigCommandArguments {
  jobs::ConfigArguments config;
  jobs::OutputArguments output;
  bool expand = false;
};

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

/// The effective config with its model written as plain layers.
std::string expanded(const config::RunConfig& config) {
  // The printer begins a message of the outermost level with "name {" and ends it with "}", each a line of
  // its own.
  const std::string& text = config.effective_text;
  const size_t begin = text.find("\nmodel {\n") + 1;
  const size_t end = text.find("\n}\n", begin);
  ensure(begin > 0 && end != std::string::npos, "the effective config has no message 'model'");
  std::string model;
  for (const auto& line : lines_of(config::model_to_text(config.model))) model += "  " + line + "\n";
  return text.substr(0, begin) + "model {\n" + model + text.substr(end + 1);
}

int print(const ConfigCommandArguments& arguments) {
  const config::RunConfig config = arguments.config.load();
  const std::string scaling = config::describe_batch_scaling(config);
  write_result((scaling.empty() ? "" : fmt::format("# {}\n", scaling)) +
               (arguments.expand ? expanded(config) : config.effective_text));
  return static_cast<int>(ExitCode::done);
}

int check(const ConfigCommandArguments& arguments) {
  const config::RunConfig config = arguments.config.load();
  compile::CompileOptions options = train::compile_options(config);
  options.measures_noise = config.metrics.noise_scale_every_steps > 0;
  compile::require_plan(options);
  if (arguments.output.json)
    write_result(fmt::format("{{\"config\":{},\"config_hash\":\"{}\",\"math_hash\":\"{}\"}}\n",
                             observe::json_string(arguments.config.path), to_hex(config.config_hash),
                             to_hex(config.math_hash)));
  else
    write_result(fmt::format("{} is good\nconfig hash  {}\nmath hash    {}\n", arguments.config.path,
                             to_hex(config.config_hash), to_hex(config.math_hash)));
  return static_cast<int>(ExitCode::done);
}

}  // namespace

void add_config_command(CLI::App& program, CommandAction& selected) {
  auto& command =
      add_subcommand(program, "config", "Prints or checks a config",
                     "  lockstep config print configs/mnist_lenet.textproto --set trainer.seed=2");
  command.require_subcommand(1);

  auto& print_command =
      add_subcommand(command, "print", "Prints the config with every default; it reads back as the same run",
                     "  lockstep config print configs/mnist_lenet.textproto --set trainer.seed=2");
  const auto print_arguments = std::make_shared<ConfigCommandArguments>();
  add_config(print_command, print_arguments->config, /*with_data=*/true);
  print_command.add_flag("--expand", print_arguments->expand,
                         "Write presets and repeated blocks of the model layer by layer");
  print_command.callback(
      [&selected, print_arguments] { selected = [print_arguments] { return print(*print_arguments); }; });

  auto& check_command =
      add_subcommand(command, "check", "Checks everything that needs neither data nor workers",
                     "  lockstep config check configs/mnist_lenet.textproto");
  const auto check_arguments = std::make_shared<ConfigCommandArguments>();
  add_config(check_command, check_arguments->config, /*with_data=*/true);
  add_layout(check_command, check_arguments->config);
  add_json(check_command, check_arguments->output);
  check_command.callback(
      [&selected, check_arguments] { selected = [check_arguments] { return check(*check_arguments); }; });
}

}  // namespace lockstep::cli
