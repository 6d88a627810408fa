#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "jobs/arguments.h"

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

/// CONFIG, --set and, if `with_data`, --data-dir.
void add_config(CLI::App& command, jobs::ConfigArguments& arguments, bool with_data);
/// --layout, with its keys at the end of the help.
void add_layout(CLI::App& command, jobs::ConfigArguments& arguments);
/// --json and --quiet.
void add_output(CLI::App& command, jobs::OutputArguments& arguments);
void add_json(CLI::App& command, jobs::OutputArguments& arguments);
void add_verbose(CLI::App& command, jobs::OutputArguments& arguments);
/// --device and --allow-shared-gpu.
void add_device(CLI::App& command, jobs::DeviceArguments& arguments);

/// Refuses what is no finite number, which other checks let pass.
CLI::Validator finite_number();

/// A command's result, on stdout. Throws IoError where it cannot be written.
void write_result(std::string_view text);

}  // namespace lockstep::cli
