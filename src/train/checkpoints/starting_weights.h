#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

#include "comm/communicator.h"
#include "control/progress.h"
#include "train/worker/worker.h"

namespace lockstep::train {

/// Where the weights came from that a run began with; empty if it drew them.
struct StartingWeights {
  std::string path;          ///< of the folder, file or checkpoint that was read
  uint64_t params_hash = 0;  ///< of the parameters that it began with (docs/reports.md)
};

struct StartingWeightsOptions {
  control::Progress* progress = nullptr;               ///< may be null
  std::function<void(const std::string&)> on_message;  ///< for people; may be empty
};

/// COLLECTIVE: replaces the worker's drawn parameters by those of config.weights, except for new layers'.
/// Every rank reads what it holds, so all must see the same file. Throws CollectiveError if it is missing,
/// damaged or of another model, or if ranks have read different weights.
StartingWeights load_starting_weights(Worker& worker, comm::Communicator& world,
                                      const StartingWeightsOptions& options);

}  // namespace lockstep::train
