#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/chaos/faults.h"

namespace lockstep::cli {

/// One disturbed run, from its first start to its end.
struct ChaosResult {
  int run = 0;  ///< counted from 1
  ChaosFault fault;
  bool happened = false;                    ///< a fault that waits for what never comes does not
  std::optional<int> code;                  ///< of the first start; nothing if it had to be ended
  bool detected = false;                    ///< ended, or went on, as it should
  std::optional<double> detection_seconds;  ///< from the fault to the end of the job
  std::optional<double> recovery_seconds;   ///< from there to the first step beyond the last one before
  std::optional<int64_t> steps_lost;        ///< if it was resumed
  int restarts = 0;
  bool bits_equal = false;  ///< with those of the undisturbed run
  int leftover_processes = 0;
  std::vector<std::string> problems;  ///< what went wrong; empty: nothing
  std::string replay;                 ///< commands that do the same again
};

struct ChaosReport {
  int64_t steps = 0;
  double reference_seconds = 0;
  std::string params_hash;
  uint64_t seed = 0;
  bool keeps_no_bits = false;  ///< no two runs of this layout have the same
  std::vector<ChaosResult> results;
  std::string kept_folder;  ///< where problems can be looked at; empty: there are none

  int64_t wrong() const;     ///< runs with problems
  int64_t happened() const;  ///< runs in which the fault came about
  /// Nothing went wrong, and something happened.
  bool passed() const { return wrong() == 0 && happened() > 0; }
};

/// A table by kind, then everything that went wrong.
std::string describe(const ChaosReport& report);
/// One line without its newline.
std::string to_json(const ChaosReport& report);
/// "run 12: kill@1,37,norm: ended with 137 after 0.5 s; ...": what is shown while it goes on.
std::string summary_line(const ChaosResult& result);

}  // namespace lockstep::cli
