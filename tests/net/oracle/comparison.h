#pragma once

#include <cstdint>
#include <string>

#include "config/run_config.h"
#include "net/training.h"

namespace lockstep::net {

/// How closely one rank's numbers were compared with the oracle's.
struct OracleReport {
  std::string difference;  ///< "" where they are equal, as far as rounding allows
  bool compared = false;   ///< false: where rounding decides too much, as after a step that was skipped
  bool tensors = false;    ///< parameters were compared, too: no value lies next to a kink
  int64_t tensor_count = 0;
  int64_t sharp_tensors = 0;  ///< whose tolerance is below a hundredth of what training has changed of them
  int64_t state_count = 0, sharp_states = 0;  ///< likewise of the optimizer's state, which began with zeros
};

/// Compares what has been trained, on one rank or in the config's layout with FAST sums, with the oracle, and
/// the oracle's gradients with differences.
OracleReport compare_with_oracle(const config::RunConfig& config, const Trained& trained);

}  // namespace lockstep::net
