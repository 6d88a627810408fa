#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>

#include "base/text.h"
#include "cli/commands.h"
#include "lockstep/error.h"
#include "observe/explanation.h"

namespace lockstep::cli {
namespace {

namespace fs = std::filesystem;

struct ExplainArguments {
  std::string run;
  jobs::OutputArguments output;
};

int explain_run(const ExplainArguments& arguments) {
  std::error_code unknown;
  const std::string path =
      fs::is_directory(arguments.run, unknown) ? arguments.run + "/explain.json" : arguments.run;
  if (!fs::exists(path, unknown))
    throw ConfigError(
        fmt::format("explain: there is no {}; name the folder of a run, its --out, which has "
                    "made a step",
                    path));
  observe::Explanation explanation;
  try {
    explanation = observe::explanation_from_json(read_text_file(path));
  } catch (const DataError& error) {
    throw DataError(fmt::format("{}: {}", path, error.what()));
  }
  write_result(arguments.output.json ? observe::to_json(explanation) + "\n" : observe::describe(explanation));
  return static_cast<int>(ExitCode::done);
}

}  // namespace

void add_explain_command(CLI::App& program, CommandAction& selected) {
  auto& command =
      add_subcommand(program, "explain", "Shows where a run's time went; the run may still be going on",
                     "  lockstep explain runs/digits");
  const auto arguments = std::make_shared<ExplainArguments>();
  command.add_option("RUN", arguments->run, "The folder of a run (--out), or its explain.json")
      ->type_name("DIR")
      ->required();
  add_json(command, arguments->output);
  command.callback([&selected, arguments] { selected = [arguments] { return explain_run(*arguments); }; });
}

}  // namespace lockstep::cli
