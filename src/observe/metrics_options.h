#pragma once

#include <cstdint>

namespace lockstep::observe {

/// What becomes of a run if one of its sinks fails.
enum class SinkFailurePolicy { go_on, stop };

struct MetricsOptions {
  int64_t log_every_steps = 1;                              ///< lines in metrics.jsonl
  bool progress = true;                                     ///< the progress line on stderr
  SinkFailurePolicy on_failure = SinkFailurePolicy::go_on;  ///< of all sinks but metrics.jsonl
  bool operator==(const MetricsOptions&) const = default;
};

}  // namespace lockstep::observe
