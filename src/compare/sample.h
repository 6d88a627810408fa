#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "compare/results.h"

namespace lockstep::compare {

/// The measurements in a training's report (`train --json`). Throws nlohmann::json::exception if it is no
/// such report.
CompareSample sample_of(const nlohmann::ordered_json& report, int round);

/// The name of each rank's host.
std::vector<std::string> hosts_of_ranks(const nlohmann::ordered_json& report);

/// Losses of a training that wrote its metrics to `path`, of batches of so many samples: means of equal
/// numbers of steps, kMostLosses of them at most. Throws IoError and DataError.
std::vector<CompareLoss> losses_of(const std::string& path, int64_t global_batch);
inline constexpr int kMostLosses = 50;

}  // namespace lockstep::compare
