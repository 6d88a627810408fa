#pragma once

#include <cstdint>
#include <vector>

#include "model/graph.h"

namespace lockstep {

/// One tensor of a checkpoint: a parameter, or a slot of its optimizer state.
struct SavedTensor {
  int parameter = 0;
  int slot = -1;  ///< -1: the parameter itself
  int64_t size_bytes = 0;
  bool operator==(const SavedTensor&) const = default;
};

/// By rank, the tensors that it saves, in the order in which they lie in its snapshot: parameters by
/// ascending number, then their optimizer state likewise.
using CheckpointShares = std::vector<std::vector<SavedTensor>>;

/// Divides a model among `ranks` replicas, any of which could save all of it: a parameter goes with its
/// state, largest first, to the rank that has the fewest bytes so far; among equals the first. Statistics
/// have no state. A rank's share may be empty.
CheckpointShares divide_checkpoint(const Graph& graph, int state_slots, int ranks);

int64_t size_bytes_of(const std::vector<SavedTensor>& share);

}  // namespace lockstep
