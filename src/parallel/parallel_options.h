#pragma once

#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "layout/layout.h"
#include "lockstep/tensor.h"
#include "model/node_times.h"
#include "program/program.h"

namespace lockstep::parallel {

/// How gradients are summed. FAST: by the library's all-reduce, or by a ring written into the program.
/// REPRODUCIBLE: by a tree written into the program. Both: through memory that the workers of one host share.
enum class AllReduceAlgorithm { automatic, library, ring, shared_memory, tree };

/// The default size of a bucket on CPUs, if no owners cut it.
inline constexpr int64_t kBucketBytes = 1 << 20;

/// The divisor of the learning rate if each push is an update: the number of pushes in a step, 1, or the
/// square root of that number.
enum class AsyncLearningRate { divided, as_stated, divided_by_root };

/// The divisor with `pushes` per step.
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
  DType wire = DType::float32;  ///< of gradients that workers sum: float32 or bfloat16
  bool error_feedback =
      false;  ///< what rounding a worker's or leaf's gradient loses is added to its next one
  std::optional<int64_t> bucket_bytes =
      {};                        ///< none: kBucketBytes or, on GPUs and if it is cut among owners, more
  int intra_op_threads = 1;      ///< no bit depends on it
  int server_threads = 1;        ///< of a process that only serves; not a part of the arithmetic
  bool servers_on_gpus = false;  ///< ranks that only serve use GPUs, if workers do; otherwise processors
  AsyncLearningRate async_learning_rate = AsyncLearningRate::divided;
  /// The first nodes of all pieces of a pipeline but the first; none: cuts that minimise the slowest piece's
  /// time.
  std::vector<std::string> cuts = {};
  /// Measured times by which pieces are chosen and steps estimated; none: by estimated times.
  std::optional<model::Profile> profile = {};
  bool operator==(const ParallelOptions&) const = default;
};

}  // namespace lockstep::parallel
