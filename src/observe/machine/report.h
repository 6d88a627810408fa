#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "observe/machine/figures.h"
#include "observe/machine/sampler.h"

namespace lockstep::observe {

/// A figure over a run. What its kind has not is 0 (figures.h).
struct FigureReport {
  std::string field;
  double mean = 0, max = 0;
  double p5 = 0, p50 = 0, p95 = 0;  ///< of shares, to a hundredth of the whole
  double total = 0;                 ///< of rates
  double last = 0, increase = 0;    ///< of counters and constants
  bool operator==(const FigureReport&) const = default;
};

/// What became of a host, a process or a GPU during a run.
struct MachineReport {
  MachineSubject subject;
  double seconds = 0;  ///< that samples are about
  int64_t samples = 0;
  std::vector<FigureReport> figures;           ///< in the order of machine_figures()
  std::map<std::string, double> held_down_by;  ///< of a GPU: share of the time, by reason

  /// Null if it is not known.
  const FigureReport* find(std::string_view field) const;
  bool operator==(const MachineReport&) const = default;
};

/// A JSON object, and back. parse throws DataError.
std::string to_json(const MachineReport& report);
MachineReport parse_machine_report(std::string_view json);
/// {"hosts":[...],"processes":[...],"gpus":[...]}
std::string to_json(const std::vector<MachineReport>& reports);
/// Rows of a table for people: a line for each host, and for each of the first GPUs.
std::vector<std::pair<std::string, std::string>> describe(const std::vector<MachineReport>& reports);

/// Sums up one process's samples in constant memory. Its rank is the last one: it gets another if the job
/// continues without others. Not thread-safe.
class MachineSummary {
 public:
  /// What counters count from: a sample before the first one, which is about no time.
  void begin(const MachineSample& sample);
  void add(const MachineSample& sample);
  std::vector<MachineReport> reports() const;

 private:
  struct Figure {
    int64_t count = 0;
    double first = 0, last = 0, max = 0, weighted = 0, seconds = 0;
    std::vector<double> histogram;  // seconds by hundredths of the whole; empty for other than shares

    double percentile(double share) const;
  };
  struct Machine {
    MachineSubject subject;
    double seconds = 0;
    int64_t samples = 0;
    std::map<std::string, Figure, std::less<>> figures;
    std::map<std::string, double> held_down_seconds;
  };
  Machine& machine_of(const MachineSample& sample);
  static FigureReport report_of(const MachineFigure& kind, const Figure& figure);

  std::map<std::string, Machine> machines_;  // by group
};

}  // namespace lockstep::observe
