#pragma once

#include <cstdint>
#include <optional>

#include "compile/compiled_run.h"

namespace lockstep::plan {

/// A batch, and what the fullest rank's plan takes with it.
struct BatchFit {
  int64_t micro_batch = 0;   ///< samples, as trainer.micro_batch states them
  int64_t global_batch = 0;  ///< samples, as trainer.global_batch states them
  int64_t bytes = 0;
  bool operator==(const BatchFit&) const = default;
};

/// The batch of `options` with micro-batches of `samples` for each virtual replica that a kernel computes at
/// once (with FAST: for each worker). The layout, the number of virtual replicas and the number of
/// micro-batches stay, so that the global batch grows in proportion. Nothing if the options cannot be
/// compiled so, or if the fullest rank takes more than `limit` bytes.
std::optional<BatchFit> fit_batch(const compile::CompileOptions& options, const compile::CompileFacts& facts,
                                  int64_t limit, int64_t samples);

/// The largest of these batches that fits: with one sample more it is refused under device.memory_limit.
/// Plans are compiled, nothing is tried on a device. `most_samples`: upper bound of the global batch, such as
/// the samples of the data set. Nothing if not even one sample fits, or `limit` is 0. Throws ConfigError if
/// `options` cannot be compiled as they are.
std::optional<BatchFit> largest_batch(const compile::CompileOptions& options,
                                      const compile::CompileFacts& facts, int64_t limit,
                                      int64_t most_samples);

}  // namespace lockstep::plan
