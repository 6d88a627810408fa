#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "comm/measure.h"
#include "ops/cpu/speed.h"
#include "plan/step_prediction.h"

namespace lockstep::compare {

/// The measurements of `lockstep bench`, in seconds.
struct BenchReport {
  std::vector<int> hosts;                  ///< of each rank, as numbers
  std::vector<comm::PairTimes> pairs;      ///< of rank 0 with each other rank
  std::vector<comm::SumTime> sums;         ///< through messages, by size
  std::vector<comm::SumTime> shared_sums;  ///< through memory that all ranks share; none: they cannot
  double addition_per_byte = 0;
  std::optional<ops::ArithmeticSpeed> arithmetic;  ///< of rank 0; none if only messages were measured

  /// The figures that predictions need: the last pair within rank 0's host, and the last pair to another
  /// host.
  plan::MachineFigures figures() const;
  std::string table() const;
  bool operator==(const BenchReport&) const = default;
};

nlohmann::ordered_json to_json(const BenchReport& report);
/// Throws DataError if `json` is not what to_json() makes.
BenchReport bench_report_from(const nlohmann::ordered_json& json);

}  // namespace lockstep::compare
