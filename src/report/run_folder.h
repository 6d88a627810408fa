#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "report/curves.h"

namespace lockstep::report {

using Json = nlohmann::ordered_json;

/// A member of an object; nothing if it has none, or if that is no number.
std::optional<double> number_of(const Json& object, const std::string& name);

inline constexpr const char* kReportFile = "report.json";  ///< in the folder of a run, once it has ended
inline constexpr const char* kPageFile = "report.html";    ///< likewise
inline constexpr const char* kExplanationFile = "explain.json";

/// What the folder of a run holds, which may still be going on. What is missing is empty.
struct RunFolder {
  std::string path, name;
  Rows rows;                                                ///< of steps and evaluations
  Rows machines;                                            ///< samples of hosts, processes and GPUs
  Json report;                                              ///< of the last start that ended; null: none has
  Json explanation;                                         ///< null: not known
  std::string config;                                       ///< as text
  std::vector<std::pair<std::string, std::string>> fields;  ///< of the config, flattened
  std::string config_problem;                               ///< why there are no fields, if there are none

  bool has_ended() const { return !report.is_null(); }
};

/// Throws ConfigError if there is no run, DataError if a file of it is damaged, IoError if one cannot be
/// read.
RunFolder read_run(const std::string& path);

/// Runs with different names: those of their folders, with as much of their paths as tells them apart.
void name_apart(std::vector<RunFolder>& runs);

}  // namespace lockstep::report
