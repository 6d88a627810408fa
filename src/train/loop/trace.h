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

/// The bits of a run: of every step's loss and gradient norm, every tensor's hash after it, and of
/// evaluations. Names stand in the order in which they came to be, so that the first difference is the one
/// nearest to its cause.
struct Trace {
  using Entries = std::vector<std::pair<std::string, uint64_t>>;
  std::map<int64_t, Entries> steps;        ///< "loss", "gradient norm", then tensors
  std::map<int64_t, Entries> evaluations;  ///< by step: "evaluation loss", "evaluation accuracy"

  /// Goes on with a trace of the same run after it was resumed.
  void append(const Trace& later);
};

/// Writes the trace of one rank while it trains, a line of JSON per step.
class TraceWriter {
 public:
  /// Makes the folder where it is missing. Throws IoError.
  TraceWriter(const std::string& directory, int rank);
  /// COLLECTIVE where the workers hold different parts of the optimizer's state.
  void add(const StepRecord& record, const Worker& worker, comm::Communicator& world);
  void add(const EvaluationRecord& record);

 private:
  void write_line(const std::string& line);

  std::string path_;
  std::ofstream file_;
};

std::string trace_path(const std::string& directory, int rank);
/// Throws IoError where there is none, DataError where a line is not what TraceWriter writes.
Trace read_trace(const std::string& path);

/// Where two runs part: a step, what differs first in it, and both values, as bits, or "absent".
struct TraceDifference {
  int64_t step = 0;
  std::string name;
  std::string first, second;
  int more = 0;  ///< further differences at the same step
  bool operator==(const TraceDifference&) const = default;
};
std::optional<TraceDifference> first_difference(const Trace& first, const Trace& second);

}  // namespace lockstep::train
