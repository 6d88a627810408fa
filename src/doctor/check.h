#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "doctor/verdict.h"

namespace lockstep::doctor {

/// What a user wants looked at beside the host itself; empty: not given.
struct Request {
  std::string config;
  std::vector<std::string> overrides;  ///< of the config, as --set takes them
  std::string data_directory, output_directory;
};

/// A row of the table of what is looked at on one host.
struct Check {
  std::string_view name;
  std::string_view looks_at;
  std::string_view by_hand;  ///< a command that looks at the same: what to do if the check itself ends badly
  int limit_seconds;
  std::vector<Verdict> (*look)(const Request&);
  bool in_job = true;  ///< whether a job looks at it on each host, or knows better from having started
};

/// The table, which the command, its documentation and the tests go through.
std::span<const Check> host_checks();

/// Runs each check in a process of its own, all at the same time. One that crashes or takes longer than its
/// limit has failed, and is ended. `tell` gets the verdicts in the table's order, each as soon as those
/// before it are known. REQUIRES: this process has a single thread.
std::vector<Verdict> run_checks(std::span<const Check> checks, const Request& request,
                                const std::function<void(const Verdict&)>& tell);

}  // namespace lockstep::doctor
