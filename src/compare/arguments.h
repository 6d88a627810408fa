#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "compare/results.h"
#include "jobs/arguments.h"

namespace lockstep::compare {

/// The arguments of `lockstep compare`.
struct CompareArguments {
  jobs::ConfigArguments config;
  jobs::OutputArguments output;
  jobs::DeviceArguments device;
  std::string layouts, workers = "1", predicted_workers, directory, scaling = "strong", links, hostfile,
                       straggler;
  int64_t steps = 50, proof_steps = 5;
  double precision_percent = 5, minutes = 10, price = 0, target_loss = 0;
  int kill_rank = -1;  // -1: none is killed
  bool resume = false, predicts = true;

  bool is_weak() const { return scaling == "weak"; }
  /// Every layout with every number of workers over every link. `global_batch`: the config's. What cannot be
  /// is not among them, and `refused` says why, a line each. Throws ConfigError if options make no sense
  /// together.
  std::vector<CompareRow> rows(int64_t global_batch, std::vector<std::string>& refused) const;
  /// Likewise of --predict, which are not measured.
  std::vector<CompareRow> predicted_rows(int64_t global_batch, std::vector<std::string>& refused) const;
  /// The command that repeats the comparison.
  std::string command_line() const;
};

}  // namespace lockstep::compare
