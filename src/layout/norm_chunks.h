#pragma once

#include <cstdint>
#include <vector>

#include "model/graph.h"
#include "tensor/part.h"

namespace lockstep::layout {

/// Elements of a parameter's gradient whose squares are summed at once. These sums are then folded in order.
inline constexpr int64_t kNormChunk = tensor::kChunkElements;
inline int64_t chunks_in(int64_t elements) { return (elements + kNormChunk - 1) / kNormChunk; }

/// What sums of squares are of. Programs number their operands `chunks` so.
enum class Measured { gradients, parameters, updates };
inline constexpr int kMeasuredCount = 3;

/// The sums of squares that updates need of each parameter, besides those of gradients.
struct Measures {
  bool parameters = false;
  /// Of updates as well, which follow from so many first slots of the optimizer's state once these have
  /// moved; 0: no sums of updates.
  int proposed_slots = 0;

  bool updates() const { return proposed_slots > 0; }
  bool any() const { return parameters || updates(); }
  bool operator==(const Measures&) const = default;
};

/// The order of a model's sums of squares: one for each chunk of kNormChunk elements of each parameter,
/// weights first, then statistics, both in graph order. They are folded in this order in every layout.
struct NormChunks {
  std::vector<int64_t> first;  ///< by parameter: its first chunk
  int64_t weights = 0;         ///< chunks of weights
  int64_t count = 0;           ///< of all

  int parameter_of(int64_t chunk) const;
};

NormChunks norm_chunks_of(const model::Graph& graph);

}  // namespace lockstep::layout
