#pragma once

#include <cstdint>

namespace lockstep::observe {

struct MetricsOptions {
  int64_t log_every_steps = 1;  ///< lines in metrics.jsonl
  bool progress = true;         ///< the progress line on stderr
  bool operator==(const MetricsOptions&) const = default;
};

}  // namespace lockstep::observe
