#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "lockstep/error.h"
#include "observe/sinks/append_file.h"
#include "report/run_page.h"

namespace lockstep::cli {
namespace {

struct ReportArguments {
  std::vector<std::string> runs;
  std::string out;
};

int draw_report(const ReportArguments& arguments) {
  if (arguments.runs.size() > 1 && arguments.out.empty())
    throw ConfigError(
        "report: several runs make a page that belongs to none of them; name its file by --out FILE.html");
  std::vector<report::RunFolder> runs;
  for (const std::string& path : arguments.runs) runs.push_back(report::read_run(path));
  report::name_apart(runs);
  const std::string path =
      arguments.out.empty() ? fmt::format("{}/{}", arguments.runs.front(), report::kPageFile) : arguments.out;
  observe::replace_file(path, report::run_page(runs));
  write_result(path + "\n");
  return static_cast<int>(ExitCode::done);
}

}  // namespace

void add_report_command(CLI::App& program, CommandAction& selected) {
  auto& command = add_subcommand(program, "report", "Draws runs as a page, each or beside each other",
                                 "  lockstep report runs/digits\n"
                                 "  lockstep report runs/small runs/large --out both.html");
  const auto arguments = std::make_shared<ReportArguments>();
  command.add_option("RUN", arguments->runs, "The folders of runs (--out), which may still be going on")
      ->type_name("DIR")
      ->required();
  command.add_option("--out", arguments->out, "The page; default: report.html in the folder of the only run")
      ->type_name("FILE.html");
  command.callback([&selected, arguments] { selected = [arguments] { return draw_report(*arguments); }; });
}

}  // namespace lockstep::cli
