#include "cli/chaos/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "base/statistics.h"
#include "base/text.h"

namespace lockstep::cli {
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

std::optional<double> median_of(const std::vector<double>& values) {
  if (values.empty()) return std::nullopt;
  return median(values);
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

/// What the runs have shown together, and no more.
std::string summary_of(const ChaosReport& report) {
  const auto runs = static_cast<int64_t>(report.results.size()), happened = report.happened();
  if (report.wrong() > 0)
    return fmt::format("\n{} of {} runs failed; their output is in {}", report.wrong(), runs,
                       report.kept_folder);
  if (happened == 0)
    return fmt::format(
        "{} runs of {} steps: no fault occurred, so nothing was tested; try more --runs, other --kinds or "
        "another --seed",
        runs, report.steps);
  const int64_t equal = std::count_if(report.results.begin(), report.results.end(),
                                      [](const auto& result) { return result.bits_equal; });
  return fmt::format(
      "{} runs of {} steps: {} occurred and was noticed or survived; {} ended with the bits of the "
      "undisturbed one ({:.1f} s){}",
      runs, report.steps, happened == runs ? "every fault" : fmt::format("each of {} faults", happened),
      equal == runs ? "every run" : fmt::format("{} of the runs", equal), report.reference_seconds,
      equal == runs          ? ""
      : report.keeps_no_bits ? "; with this layout bits depend on the order in which workers arrive"
                             : "; the others skipped a step, which changes bits");
}

/// "forward", "evaluate", ...: where the fault struck.
std::string phase_of(const ChaosFault& fault) {
  if (!fault.failpoint) return "between steps";
  train::Failpoint failpoint = *fault.failpoint;
  failpoint.number = 1;
  const std::string text = train::to_text(failpoint);
  const auto parts = split(text.substr(text.find('@')), ',');
  return parts.size() < 3 ? "begin" : split(parts[2], ':').front();
}

/// How many faults struck where: "forward 21, exchange 17, save 5".
std::string phases_of(const ChaosReport& report) {
  std::map<std::string, int> phases;
  for (const auto& result : report.results)
    if (result.happened) ++phases[phase_of(result.fault)];
  std::vector<std::string> parts;
  for (const auto& [phase, count] : phases) parts.push_back(fmt::format("{} {}", phase, count));
  return join(parts, ", ");
}

std::string end_of(const ChaosResult& result) {
  return result.code ? fmt::format("ended with {}", *result.code) : "was ended";
}

}  // namespace

int64_t ChaosReport::wrong() const {
  return std::count_if(results.begin(), results.end(),
                       [](const auto& result) { return !result.problems.empty(); });
}

int64_t ChaosReport::happened() const {
  return std::count_if(results.begin(), results.end(), [](const auto& result) { return result.happened; });
}

std::string summary_line(const ChaosResult& result) {
  std::string text = fmt::format("run {}: {}: ", result.run, to_text(result.fault));
  if (!result.happened) text += "did not occur; ";
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
                        row.runs, row.happened, row.detected, seconds_or_dash(median_of(row.detection)),
                        seconds_or_dash(greatest(row.detection)), seconds_or_dash(median_of(row.recovery)),
                        row.most_lost ? std::to_string(*row.most_lost) : "-", row.equal, row.leftover);
  if (report.happened() > 0) text += "before: " + phases_of(report) + "\n";
  for (const auto& result : report.results) {
    if (result.problems.empty()) continue;
    text += fmt::format("\nrun {}, {}: {}\n", result.run, to_text(result.fault), end_of(result));
    for (const auto& problem : result.problems) text += "  " + problem + "\n";
    text += "  again: " + result.replay + "\n";
  }
  return text + summary_of(report) + "\n";
}

std::string to_json(const ChaosReport& report) {
  Json json = {{"passed", report.passed()},
               {"seed", report.seed},
               {"reference",
                {{"steps", report.steps},
                 {"seconds", report.reference_seconds},
                 {"params_hash", report.params_hash}}}};
  for (const auto& [kind, row] : rows_of(report))
    json["kinds"][std::string(name_of(kind))] = {
        {"runs", row.runs},
        {"happened", row.happened},
        {"detected", row.detected},
        {"detection_seconds_median", or_null(median_of(row.detection))},
        {"detection_seconds_max", or_null(greatest(row.detection))},
        {"recovery_seconds_median", or_null(median_of(row.recovery))},
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

}  // namespace lockstep::cli
