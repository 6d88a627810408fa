#pragma once

#include <cstdint>
#include <vector>

#include "program/segment_code.h"
#include "proof/graph_symbols.h"

namespace lockstep::proof {

/// Memory that a kernel call accesses, and its expected contents.
struct CallAccess {
  const void* data = nullptr;
  int64_t size_bytes = 0;
  CallSymbol symbol;
  bool in_place = false;  ///< writes: over what the call reads there, which is of no more use
};
struct CallAccesses {
  std::vector<CallAccess> reads, writes;
  CallAccess workspace;
};

/// What a call reads and writes by its op's signature and the graph's edges, at the addresses of its tensors.
/// This includes what the op's kernel does for its neighbours (ops::FusedNeighbors).
CallAccesses accesses_of(const GraphSymbols& symbols, const program::ModelCode& code,
                         const program::KernelCall& call);

}  // namespace lockstep::proof
