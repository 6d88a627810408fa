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

/// What was asked for, once all arguments are understood: runs it and returns the exit code.
using CommandAction = std::function<int()>;

/// A command adds itself to the program's commands, and sets `selected` where it is the one that was called.
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

/// CONFIG, --set, --layout and --data-dir: what commands that read a config have in common.
struct ConfigArguments {
  std::string path;
  std::vector<std::string> overrides;
  std::optional<std::string> layout;  ///< replaces that of the config
  std::string data_directory;

  /// CONFIG, --set and, where `with_data`, --data-dir.
  void add_to(CLI::App& command, bool with_data);
  /// --layout, with its keys at the end of the help.
  void add_layout_to(CLI::App& command);
  /// Overrides by --set, then those of the options that stand for one.
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

/// Refuses what is no finite number, which other checks let pass.
CLI::Validator finite_number();

/// A command's result, on stdout. Throws IoError if it cannot be written.
void write_result(std::string_view text);

}  // namespace lockstep::cli
