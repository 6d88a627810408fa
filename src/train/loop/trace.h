#pragma once

#include <cstdint>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "train/loop/trainer.h"

namespace lockstep::train {

/// The bits of a run: loss and gradient norm of every step, every tensor's hash after it, and evaluations.
/// Names are in the order of their computation, so that the first difference is the nearest to its cause.
struct Trace {
  using Entries = std::vector<std::pair<std::string, uint64_t>>;
  std::map<int64_t, Entries> steps;        ///< "loss", "gradient norm", then tensors
  std::map<int64_t, Entries> evaluations;  ///< by step: "evaluation loss", "evaluation accuracy"

  /// Appends the trace of the same run after it was resumed.
  void append(const Trace& later);
};

/// Writes the trace of one rank while it trains: one line of JSON per step.
class TraceWriter {
 public:
  /// Makes the folder if it is missing. Throws IoError.
  TraceWriter(const std::string& directory, int rank);
  /// COLLECTIVE if the workers hold different parts of the optimizer state.
  void add(const StepRecord& record, const Worker& worker, comm::Communicator& world);
  void add(const EvaluationRecord& record);

 private:
  void write_line(const std::string& line);

  std::string path_;
  std::ofstream file_;
};

std::string trace_path(const std::string& directory, int rank);
/// Throws IoError if there is no trace, DataError if a line is not as TraceWriter writes it.
Trace read_trace(const std::string& path);

/// The first difference of two runs: the step, the name of what differs, and both values, as bits or
/// "absent".
struct TraceDifference {
  int64_t step = 0;
  std::string name;
  std::string first, second;
  int more = 0;  ///< further differences at the same step
  bool operator==(const TraceDifference&) const = default;
};
std::optional<TraceDifference> first_difference(const Trace& first, const Trace& second);

}  // namespace lockstep::train
