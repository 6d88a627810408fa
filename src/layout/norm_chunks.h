#pragma once

#include <cstdint>
#include <vector>

#include "model/graph.h"

namespace lockstep::layout {

/// Elements of a parameter's gradient whose squares are summed at once. These sums are then folded in order.
inline constexpr int64_t kNormChunk = 65536;

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
