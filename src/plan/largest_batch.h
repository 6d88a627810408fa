#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

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

/// What limits a batch.
struct LargestBatch {
  std::optional<BatchFit> fit;  ///< nothing: not even the smallest batch does
  /// The next larger batch of this kind, which takes more than the limit; nothing if the bound is another.
  std::optional<BatchFit> next;
  std::string bound;  ///< that other bound, for people; "" if there is a `next`
};

/// The largest of these batches that fits into `limit` bytes of the fullest rank: with the next size it is
/// refused under device.memory_limit. Plans are compiled, nothing is tried on a device. The next size is one
/// sample more, but on GPUs that compute several virtual replicas at once, 8 samples more for each of them
/// (ops::kReplicaSamplesOnGpu): with sizes between, they would be computed one after the other, which is
/// another division with other, less memory. `most_samples`: upper bound of the global batch, such as the
/// samples of the data set. Throws ConfigError if `options` cannot be compiled as they are.
///
/// Memory grows with the batch, except that a pipeline's stages may be cut otherwise for a larger one
/// (plan::balanced): with stages, a batch larger than the next may fit again. `gets_on` (may be empty) is
/// called before each plan is compiled; what it throws ends the search.
LargestBatch largest_batch(const compile::CompileOptions& options, const compile::CompileFacts& facts,
                           int64_t limit, int64_t most_samples, const std::function<void()>& gets_on = {});

}  // namespace lockstep::plan
