#pragma once

#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "layout/layout.h"
#include "model/node_times.h"
#include "program/program.h"

namespace lockstep::parallel {

/// How gradients are summed: FAST by the library's all-reduce or a ring written into the program,
/// REPRODUCIBLE by a tree written into the program, both through memory that the workers of one host share.
enum class AllReduceAlgorithm { automatic, library, ring, shared_memory, tree };

/// Of a bucket on CPUs if nobody says how large, and no owners cut it.
inline constexpr int64_t kBucketBytes = 1 << 20;

/// By what the learning rate is divided where each push is an update: the pushes of a step, nothing, or their
/// square root.
enum class AsyncLearningRate { divided, as_stated, divided_by_root };

/// With `pushes` to a step.
inline double async_divisor(AsyncLearningRate how, int64_t pushes) {
  const auto count = static_cast<double>(pushes);
  return how == AsyncLearningRate::divided     ? count
         : how == AsyncLearningRate::as_stated ? 1
                                               : std::sqrt(count);
}

struct ParallelOptions {
  layout::Layout layout;  ///< as stated; resolve() it for a world size
  layout::Reduction reduction = layout::Reduction::fast;
  AllReduceAlgorithm algorithm = AllReduceAlgorithm::automatic;
  std::optional<int64_t> bucket_bytes =
      {};                    ///< none: kBucketBytes or, on GPUs and if it is cut among owners, more
  int intra_op_threads = 1;  ///< part of the arithmetic
  int server_threads = 1;    ///< of a process that only serves; no part of it
  bool servers_on_gpus =
      false;  ///< those that only serve, where workers are on GPUs; otherwise on processors
  AsyncLearningRate async_learning_rate = AsyncLearningRate::divided;
  /// The nodes with which pieces of a pipeline begin, but for the first; none: where the slowest is fastest.
  std::vector<std::string> cuts = {};
  /// By which pieces are chosen and steps estimated; none: by estimated times.
  std::optional<model::Profile> profile = {};
  bool operator==(const ParallelOptions&) const = default;
};

}  // namespace lockstep::parallel
