#include "cli/application.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <exception>
#include <utility>

#include "base/text.h"
#include "cli/commands.h"
#include "cli/version.h"
#include "comm/communicator.h"
#include "lockstep/error.h"
#include "train/start/world.h"

namespace lockstep::cli {
namespace {

constexpr AddCommand kCommands[] = {
    add_train_command,   add_eval_command,      add_verify_command,   add_compare_command,
    add_chaos_command,   add_profile_command,   add_bench_command,    add_inspect_command,
    add_batch_command,   add_rates_command,     add_config_command,   add_metrics_command,
    add_report_command,  add_explain_command,   add_timeline_command, add_generate_command,
    add_predict_command, add_export_command,    add_import_command,   add_data_command,
    add_doctor_command,  add_completion_command};

constexpr const char* kExample =
    "  lockstep data digits --out digits\n"
    "  mpirun -n 2 lockstep train configs/digits_quickstart.textproto --data-dir digits --out runs/digits";

/// The command that the arguments reached before they were no longer understood.
const CLI::App& deepest(const CLI::App& app) {
  const auto chosen = app.get_subcommands();
  return chosen.empty() ? app : deepest(*chosen.back());
}

std::vector<std::string> names_of_options(const CLI::App& command) {
  std::vector<std::string> names;
  for (const auto* option : command.get_options())
    for (const auto& name : option->get_lnames()) names.push_back("--" + name);
  return names;
}

std::vector<std::string> names_of_commands(const CLI::App& command) {
  std::vector<std::string> names;
  for (const auto* sub : command.get_subcommands([](const CLI::App*) { return true; }))
    names.push_back(sub->get_name());
  return names;
}

std::string no_such_command(const std::string& name, const std::string& wanted,
                            const std::vector<std::string>& commands) {
  return fmt::format("{} has no command '{}'{}; there are {}", name, wanted, did_you_mean(wanted, commands),
                     join(commands, ", "));
}

/// What other trainers call a field of the config.
std::string meant_field(const std::string& flag) {
  constexpr std::pair<std::string_view, std::string_view> kNames[] = {
      {"--lr", "optimizer.learning_rate"},
      {"--learning-rate", "optimizer.learning_rate"},
      {"--epochs", "trainer.epochs"},
      {"--steps", "trainer.steps"},
      {"--max-steps", "trainer.steps"},
      {"--batch-size", "trainer.global_batch"},
      {"--batch", "trainer.global_batch"},
      {"--seed", "trainer.seed"},
      {"--weight-decay", "optimizer.weight_decay"}};
  for (const auto& [name, field] : kNames)
    if (flag == name) return fmt::format(" (did you mean --set {}=VALUE?)", field);
  return "";
}

/// Says what would have been understood.
std::string explain(const CLI::App& program, const CLI::ParseError& error) {
  const CLI::App& command = deepest(program);
  const std::string name = &command == &program ? "lockstep" : command.get_display_name();
  const auto commands = names_of_commands(command);
  const auto left = command.remaining();
  if (!commands.empty() && !left.empty() && !left.front().starts_with("-"))
    return no_such_command(name, left.front(), commands);
  const auto unknown =
      std::find_if(left.begin(), left.end(), [](const auto& word) { return word.starts_with("--"); });
  if (unknown != left.end()) {
    const std::string flag = unknown->substr(0, unknown->find('='));
    const auto options = names_of_options(command);
    const bool takes_fields = std::ranges::find(options, "--set") != options.end();
    const std::string field = takes_fields ? meant_field(flag) : "";
    return fmt::format("{} has no option {}{}; lockstep {}--help lists them", name, flag,
                       field.empty() ? did_you_mean(flag, options) : field,
                       &command == &program ? "" : command.get_name() + " ");
  }
  if (!commands.empty()) return fmt::format("{} needs a command: {}", name, join(commands, ", "));
  if (!left.empty()) return fmt::format("{}: unexpected argument '{}'", name, left.front());
  return fmt::format("{}: {}", name, error.what());
}

void add_all(CLI::App& program, CommandAction& selected) {
  program.require_subcommand(1);
  program.set_version_flag("--version", [] { return version_text(); });
  for (const AddCommand add : kCommands) add(program, selected);
}

/// What the arguments ask for. Throws ConfigError if they make no sense.
CommandAction understand(std::vector<std::string> arguments) {
  // As people type it: "help", "help train".
  std::string wanted;  // whose help
  if (!arguments.empty() && arguments.front() == "help") {
    arguments.erase(arguments.begin());
    if (!arguments.empty()) wanted = arguments.front();
    arguments.push_back("--help");
  }
  CLI::App program("Trains neural networks on many workers, with the same bits on any number of them.",
                   "lockstep");
  CLI::App& root = program;
  CommandAction selected;
  add_all(root, selected);
  try {
    // CLI11 takes them from the back.
    program.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::CallForHelp&) {
    const std::string help = program.help();
    const bool is_root = program.get_subcommands().empty();
    if (is_root && !wanted.empty())
      throw ConfigError(no_such_command("lockstep", wanted, names_of_commands(program)));
    return [text = is_root ? fmt::format("Example:\n{}\n\n{}", kExample, help) : help] {
      write_result(text);
      return static_cast<int>(ExitCode::done);
    };
  } catch (const CLI::CallForVersion& version) {
    return [text = std::string(version.what())] {
      write_result(text);
      return static_cast<int>(ExitCode::done);
    };
  } catch (const CLI::ParseError& error) {
    throw ConfigError(explain(program, error));
  }
  return selected;
}

/// Whether other ranks may be waiting in the start of a training that this one's arguments do not lead to.
bool peers_may_wait(const std::vector<std::string>& arguments) {
  return comm::started_by_mpi_launcher() && !arguments.empty() &&
         (arguments[0] == "train" || arguments[0] == "eval");
}

}  // namespace

int run_command_line(const std::vector<std::string>& arguments) {
  CommandAction action;
  try {
    action = understand(arguments);
  } catch (const std::exception& error) {
    if (!peers_may_wait(arguments)) return static_cast<int>(train::report_error(error));
    const auto failure = std::current_exception();
    return train::run_in_world([&](train::World& world) {
      // As the others start, so that all find out in the same agreement.
      train::start_worker(world, [&]() -> config::RunConfig { std::rethrow_exception(failure); });
      return static_cast<int>(ExitCode::usage);
    });
  }
  try {
    return action();
  } catch (const std::exception& error) {
    return static_cast<int>(train::report_error(error));
  }
}

}  // namespace lockstep::cli
