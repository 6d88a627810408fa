#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/run_config.h"
#include "train/start/device_choice.h"

namespace CLI {
class App;
class Validator;
}  // namespace CLI

namespace lockstep::cli {

/// Runs the chosen command, after all arguments are parsed, and returns the exit code.
using CommandAction = std::function<int()>;

/// A command adds itself to the program's commands, and sets `selected` if it is called.
using AddCommand = void (*)(CLI::App& program, CommandAction& selected);
void add_train_command(CLI::App& program, CommandAction& selected);
void add_eval_command(CLI::App& program, CommandAction& selected);
void add_verify_command(CLI::App& program, CommandAction& selected);
void add_compare_command(CLI::App& program, CommandAction& selected);
void add_chaos_command(CLI::App& program, CommandAction& selected);
void add_bench_command(CLI::App& program, CommandAction& selected);
void add_profile_command(CLI::App& program, CommandAction& selected);
void add_inspect_command(CLI::App& program, CommandAction& selected);
void add_config_command(CLI::App& program, CommandAction& selected);
void add_metrics_command(CLI::App& program, CommandAction& selected);
void add_data_command(CLI::App& program, CommandAction& selected);
void add_doctor_command(CLI::App& program, CommandAction& selected);
void add_completion_command(CLI::App& program, CommandAction& selected);

/// A subcommand whose help begins with `example`.
CLI::App& add_subcommand(CLI::App& parent, const std::string& name, const std::string& description,
                         const std::string& example);

/// CONFIG, --set, --layout and --data-dir: common arguments of commands that read a config.
struct ConfigArguments {
  std::string path;
  std::vector<std::string> overrides;
  std::optional<std::string> layout;  ///< replaces that of the config
  std::string data_directory;

  /// CONFIG, --set and, if `with_data`, --data-dir.
  void add_to(CLI::App& command, bool with_data);
  /// --layout, with its keys at the end of the help.
  void add_layout_to(CLI::App& command);
  /// Overrides by --set, then those of options that are short for one.
  std::vector<std::string> all_overrides() const;
  config::RunConfig load() const { return config::load_run_config(path, all_overrides(), layout); }
};

/// --json, --quiet and --verbose.
struct OutputArguments {
  bool json = false, quiet = false, verbose = false;
  void add_to(CLI::App& command);
  void add_json_to(CLI::App& command);
  void add_verbose_to(CLI::App& command);
};

/// --device and --allow-shared-gpu.
struct DeviceArguments {
  std::string device = "auto";
  bool allow_shared_gpu = false;

  void add_to(CLI::App& command);
  train::DeviceRequest request() const;
};

/// Refuses everything but finite numbers; other checks accept them.
CLI::Validator finite_number();

/// Writes a command's result to stdout. Throws IoError if it cannot be written.
void write_result(std::string_view text);

}  // namespace lockstep::cli
