#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "jobs/arguments.h"

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
void add_generate_command(CLI::App& program, CommandAction& selected);
void add_export_command(CLI::App& program, CommandAction& selected);
void add_import_command(CLI::App& program, CommandAction& selected);
void add_predict_command(CLI::App& program, CommandAction& selected);
void add_verify_command(CLI::App& program, CommandAction& selected);
void add_compare_command(CLI::App& program, CommandAction& selected);
void add_chaos_command(CLI::App& program, CommandAction& selected);
void add_bench_command(CLI::App& program, CommandAction& selected);
void add_profile_command(CLI::App& program, CommandAction& selected);
void add_inspect_command(CLI::App& program, CommandAction& selected);
void add_config_command(CLI::App& program, CommandAction& selected);
void add_metrics_command(CLI::App& program, CommandAction& selected);
void add_report_command(CLI::App& program, CommandAction& selected);
void add_explain_command(CLI::App& program, CommandAction& selected);
void add_timeline_command(CLI::App& program, CommandAction& selected);
void add_data_command(CLI::App& program, CommandAction& selected);
/// Subcommands of `data` in files of their own.
void add_data_check_command(CLI::App& data, CommandAction& selected);
void add_data_pack_command(CLI::App& data, CommandAction& selected);
void add_data_show_command(CLI::App& data, CommandAction& selected);
void add_data_summary_command(CLI::App& data, CommandAction& selected);
void add_doctor_command(CLI::App& program, CommandAction& selected);
void add_completion_command(CLI::App& program, CommandAction& selected);

/// A subcommand whose help begins with `example`.
CLI::App& add_subcommand(CLI::App& parent, const std::string& name, const std::string& description,
                         const std::string& example);

/// CONFIG, --set and, if `with_data`, --data-dir.
void add_config(CLI::App& command, jobs::ConfigArguments& arguments, bool with_data);
/// --layout, with its keys at the end of the help.
void add_layout(CLI::App& command, jobs::ConfigArguments& arguments);
/// --checkpoint, which is required.
void add_checkpoint(CLI::App& command, std::string& path);
/// --average and --no-average.
void add_average(CLI::App& command, std::optional<bool>& average);
/// --json and --quiet.
void add_output(CLI::App& command, jobs::OutputArguments& arguments);
void add_json(CLI::App& command, jobs::OutputArguments& arguments);
void add_verbose(CLI::App& command, jobs::OutputArguments& arguments);
/// --device and --allow-shared-gpu.
void add_device(CLI::App& command, jobs::DeviceArguments& arguments);

/// Refuses everything but finite numbers; other checks accept them.
CLI::Validator finite_number();

/// Writes a command's result to stdout. Throws IoError if it cannot be written.
void write_result(std::string_view text);

}  // namespace lockstep::cli
