#include "report/run_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "base/text.h"
#include "config/run_config.h"
#include "lockstep/error.h"
#include "observe/metrics_reader.h"

namespace lockstep::report {
namespace {

namespace fs = std::filesystem;

constexpr const char* kMetrics = "metrics.jsonl";
constexpr const char* kConfig = "config.effective.textproto";

bool is_there(const fs::path& path) {
  std::error_code unknown;
  return fs::exists(path, unknown);
}

/// Null if there is no such file.
Json read_json(const fs::path& path) {
  if (!is_there(path)) return {};
  try {
    return Json::parse(read_text_file(path.string()));
  } catch (const Json::exception& error) {
    throw DataError(fmt::format("{}: is no JSON ({})", path.string(), error.what()));
  }
}

/// A config of another version may hold fields that this one does not know: the run is shown all the same.
void read_config(RunFolder& run) {
  const std::string path = (fs::path(run.path) / kConfig).string();
  if (!is_there(path)) return;
  run.config = read_text_file(path);
  try {
    run.fields = config::parse_run_config(run.config, path, {}, {}).fields;
  } catch (const Error& error) {
    run.config_problem = error.what();
  }
}

}  // namespace

std::optional<double> number_of(const Json& object, const std::string& name) {
  if (!object.is_object()) return std::nullopt;
  const auto found = object.find(name);
  if (found == object.end() || !found->is_number()) return std::nullopt;
  return found->get<double>();
}

RunFolder read_run(const std::string& path) {
  std::error_code unknown;
  const fs::path folder(path);
  if (!fs::is_directory(folder, unknown))
    throw ConfigError(fmt::format("there is no folder {}; name the folder of a run, its --out", path));
  if (!is_there(folder / kMetrics) && !is_there(folder / kReportFile))
    throw ConfigError(
        fmt::format("{} is not the folder of a run: it has no {}; name a run's --out", path, kMetrics));
  RunFolder run{.path = path, .name = fs::absolute(folder).lexically_normal().filename().string()};
  if (run.name.empty()) run.name = fs::absolute(folder).lexically_normal().parent_path().filename().string();
  if (is_there(folder / kMetrics))
    for (auto& row : observe::read_metrics((folder / kMetrics).string(), observe::MetricsLines::all))
      (row.has("kind") ? run.machines : run.rows).push_back(std::move(row));
  run.report = read_json(folder / kReportFile);
  if (!run.report.is_null() && !run.report.is_object())
    throw DataError(fmt::format("{}/{}: is no JSON object", path, kReportFile));
  run.explanation = run.report.is_object() && run.report.contains("explanation")
                        ? run.report["explanation"]
                        : read_json(folder / kExplanationFile);
  read_config(run);
  return run;
}

void name_apart(std::vector<RunFolder>& runs) {
  const auto are_apart = [&] {
    std::set<std::string> names;
    for (const RunFolder& run : runs) names.insert(run.name);
    return names.size() == runs.size();
  };
  if (are_apart()) return;
  for (RunFolder& run : runs) run.name = run.path;
  if (are_apart()) return;
  for (size_t i = 0; i < runs.size(); ++i) runs[i].name = fmt::format("{} ({})", runs[i].path, i + 1);
}

}  // namespace lockstep::report
