#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>

#include "base/text.h"
#include "cli/commands.h"
#include "cli/new_file.h"
#include "lockstep/error.h"
#include "observe/timeline/breakdown.h"
#include "observe/timeline/chrome_trace.h"

namespace lockstep::cli {
namespace {

namespace fs = std::filesystem;

struct TimelineArguments {
  std::string file, per_rank;
  jobs::OutputArguments output;
};

void write_per_rank(const observe::Timeline& timeline, const std::string& directory) {
  std::error_code error;
  fs::create_directories(directory, error);
  if (error)
    throw IoError(fmt::format("--per-rank {}: cannot make the folder: {}", directory, error.message()));
  for (const observe::RankTimeline& rank : timeline.ranks)
    NewFile("--per-rank", fmt::format("{}/rank-{}.json", directory, rank.rank))
        .write(observe::to_profiler_trace(timeline, rank));
}

int show(const TimelineArguments& arguments) {
  observe::Timeline timeline;
  try {
    timeline = observe::timeline_from_chrome_trace(read_text_file(arguments.file));
  } catch (const DataError& error) {
    throw DataError(fmt::format("{}: {}", arguments.file, error.what()));
  }
  if (!arguments.per_rank.empty()) write_per_rank(timeline, arguments.per_rank);
  write_result(arguments.output.json ? observe::breakdown_json(timeline) + "\n"
                                     : observe::describe(timeline));
  return static_cast<int>(ExitCode::done);
}

}  // namespace

void add_timeline_command(CLI::App& program, CommandAction& selected) {
  auto& command = add_subcommand(program, "timeline",
                                 "Shows how ranks share their time in a timeline of train or inspect",
                                 "  lockstep timeline steps.json\n"
                                 "  lockstep timeline steps.json --per-rank traces");
  const auto arguments = std::make_shared<TimelineArguments>();
  command.add_option("FILE", arguments->file, "File that train --timeline or inspect --timeline wrote")
      ->type_name("FILE.json")
      ->required();
  command
      .add_option("--per-rank", arguments->per_rank,
                  "Also write one file per rank, in a form that Holistic Trace Analysis reads")
      ->type_name("DIR");
  add_json(command, arguments->output);
  command.callback([&selected, arguments] { selected = [arguments] { return show(*arguments); }; });
}

}  // namespace lockstep::cli
