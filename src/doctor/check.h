#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "doctor/finding.h"

namespace lockstep::doctor {

/// What a user wants checked besides the host itself; empty: not given.
struct Request {
  std::string config;
  std::vector<std::string> overrides;  ///< of the config, as --set takes them
  std::string data_directory, output_directory;
};

/// A row of the table of checks of one host.
struct Check {
  std::string_view name;
  std::string_view looks_at;
  std::string_view by_hand;  ///< a command for the same check by hand, if the check itself fails
  int limit_seconds;
  std::vector<Finding> (*look)(const Request&);
  bool in_job = true;  ///< whether a job runs it on each host; otherwise the job's start has shown it
};

/// The table of checks, for the command, its documentation and the tests.
std::span<const Check> host_checks();

/// Runs each check in a separate process, all at the same time. A check that crashes or exceeds its limit has
/// failed, and is ended. `tell` gets the findings in the table's order, each as soon as those before it are
/// known. REQUIRES: this process has a single thread.
std::vector<Finding> run_checks(std::span<const Check> checks, const Request& request,
                                const std::function<void(const Finding&)>& tell);

}  // namespace lockstep::doctor
