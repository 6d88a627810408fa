#include "cli/chaos_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "base/text.h"

namespace lockstep {
namespace {

using Json = nlohmann::ordered_json;

/// Of one kind, in the order of ChaosKind.
struct Row {
  int runs = 0, happened = 0, detected = 0, equal = 0, leftover = 0;
  std::vector<double> detection, recovery;
  std::optional<int64_t> most_lost;
};

std::map<ChaosKind, Row> rows_of(const ChaosReport& report) {
  std::map<ChaosKind, Row> rows;
  for (const auto& result : report.results) {
    Row& row = rows[result.fault.kind];
    ++row.runs;
    row.happened += result.happened;
    row.detected += result.happened && result.detected;
    row.equal += result.bits_equal;
    row.leftover += result.leftover_processes;
    if (result.detection_seconds) row.detection.push_back(*result.detection_seconds);
    if (result.recovery_seconds) row.recovery.push_back(*result.recovery_seconds);
    if (result.steps_lost) row.most_lost = std::max(row.most_lost.value_or(0), *result.steps_lost);
  }
  return rows;
}

/// The middle one, or the mean of the two in the middle.
std::optional<double> median(std::vector<double> values) {
  if (values.empty()) return std::nullopt;
  std::sort(values.begin(), values.end());
  return (values[(values.size() - 1) / 2] + values[values.size() / 2]) / 2;
}

std::optional<double> greatest(const std::vector<double>& values) {
  if (values.empty()) return std::nullopt;
  return *std::max_element(values.begin(), values.end());
}

std::string seconds_or_dash(const std::optional<double>& seconds) {
  return seconds ? fmt::format("{:.2f}", *seconds) : "-";
}

template <class T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

std::string end_of(const ChaosResult& result) {
  return result.code ? fmt::format("ended with {}", *result.code) : "had to be ended";
}

}  // namespace

bool ChaosReport::passed() const {
  return std::all_of(results.begin(), results.end(),
                     [](const auto& result) { return result.problems.empty(); });
}

std::string summary_line(const ChaosResult& result) {
  std::string text = fmt::format("run {}: {}: ", result.run, to_text(result.fault));
  if (!result.happened) text += "did not come about; ";
  text += end_of(result);
  if (result.detection_seconds) text += fmt::format(" after {:.2f} s", *result.detection_seconds);
  if (result.steps_lost) text += fmt::format(", lost {} steps", *result.steps_lost);
  if (!result.problems.empty()) return text + "; " + join(result.problems, "; ");
  return text + (result.bits_equal ? ", same bits" : "");
}

std::string describe(const ChaosReport& report) {
  std::string text = fmt::format("{:<8} {:>5} {:>9} {:>9} {:>14} {:>11} {:>11} {:>10} {:>10} {:>9}\n", "kind",
                                 "runs", "came about", "detected", "detection s", "(longest)", "recovery s",
                                 "most lost", "same bits", "leftover");
  for (const auto& [kind, row] : rows_of(report))
    text += fmt::format("{:<8} {:>5} {:>10} {:>9} {:>14} {:>11} {:>11} {:>10} {:>10} {:>9}\n", name_of(kind),
                        row.runs, row.happened, row.detected, seconds_or_dash(median(row.detection)),
                        seconds_or_dash(greatest(row.detection)), seconds_or_dash(median(row.recovery)),
                        row.most_lost ? std::to_string(*row.most_lost) : "-", row.equal, row.leftover);
  size_t wrong = 0;
  for (const auto& result : report.results) {
    if (result.problems.empty()) continue;
    ++wrong;
    text += fmt::format("\nrun {}, {}: {}\n", result.run, to_text(result.fault), end_of(result));
    for (const auto& problem : result.problems) text += "  " + problem + "\n";
    text += "  again: " + result.replay + "\n";
  }
  if (wrong > 0)
    return text + fmt::format("\n{} of {} runs went wrong; what they wrote is in {}\n", wrong,
                              report.results.size(), report.kept_folder);
  return text + fmt::format(
                    "{} runs of {} steps: every fault was noticed or survived, and every run ended with the "
                    "bits of the "
                    "undisturbed one ({:.1f} s)\n",
                    report.results.size(), report.steps, report.reference_seconds);
}

std::string to_json(const ChaosReport& report) {
  Json json = {{"passed", report.passed()},
               {"seed", report.seed},
               {"reference",
                {{"steps", report.steps},
                 {"seconds", report.reference_seconds},
                 {"params_hash", report.params_hash}}}};
  for (const auto& [kind, row] : rows_of(report))
    json["kinds"][std::string(name_of(kind))] = {{"runs", row.runs},
                                                 {"happened", row.happened},
                                                 {"detected", row.detected},
                                                 {"detection_seconds_median", or_null(median(row.detection))},
                                                 {"detection_seconds_max", or_null(greatest(row.detection))},
                                                 {"recovery_seconds_median", or_null(median(row.recovery))},
                                                 {"steps_lost_max", or_null(row.most_lost)},
                                                 {"bits_equal", row.equal},
                                                 {"leftover_processes", row.leftover}};
  json["runs"] = Json::array();
  for (const auto& result : report.results)
    json["runs"].push_back({{"run", result.run},
                            {"fault", to_text(result.fault)},
                            {"kind", name_of(result.fault.kind)},
                            {"happened", result.happened},
                            {"exit_code", or_null(result.code)},
                            {"detected", result.detected},
                            {"detection_seconds", or_null(result.detection_seconds)},
                            {"recovery_seconds", or_null(result.recovery_seconds)},
                            {"steps_lost", or_null(result.steps_lost)},
                            {"restarts", result.restarts},
                            {"bits_equal", result.bits_equal},
                            {"leftover_processes", result.leftover_processes},
                            {"problems", result.problems},
                            {"replay", result.replay}});
  if (!report.kept_folder.empty()) json["folder"] = report.kept_folder;
  return json.dump();
}

}  // namespace lockstep
