#pragma once

#include <cstdint>
#include <vector>

#include "program/segment_code.h"
#include "proof/graph_symbols.h"

namespace lockstep::proof {

/// Memory that a kernel call touches, and what it takes it to hold.
struct CallAccess {
  const void* data = nullptr;
  int64_t size_bytes = 0;
  CallSymbol symbol;
};
struct CallAccesses {
  std::vector<CallAccess> reads, writes;
  CallAccess workspace;
};

/// What a call reads and writes by its op's signature and the graph's edges, and where its tensors say that
/// this lies. What the op's kernel does for its neighbours (ops::FusedNeighbors) is among it.
CallAccesses accesses_of(const GraphSymbols& symbols, const program::ModelCode& code,
                         const program::KernelCall& call);

}  // namespace lockstep::proof
