#pragma once

#include <vector>

#include "base/index.h"
#include "model/graph.h"
#include "model/partition.h"

namespace lockstep::model {

/// Which kernels do their neighbours' work in the same pass over memory. By node.
struct Fusion {
  std::vector<ops::FusedNeighbors> neighbors;
  std::vector<int> forward_node,
      backward_node;  ///< whose kernel does the node's forward, its backward: its own, or a neighbour's

  bool runs_forward(int node) const { return nth(forward_node, node) == node; }
  bool runs_backward(int node) const { return nth(backward_node, node) == node; }
};

/// Every kernel does its own work: CPUs.
Fusion no_fusion(const Graph& graph);

/// What the kernels of GPUs can do. Within a segment, a layer norm adds up what it reads and its gradient and
/// that of the input's other reader: bits are those of add, layer norm and fork apart. With `loss`, a softmax
/// cross entropy writes the gradient of its logits over them as it reads them, if they were made in its
/// segment and nobody else wants them; bits are those of forward and backward apart. With `gelu`, linear
/// layers before and behind a GELU compute it and its gradient, where ops/fusion.h can and they are one fused
/// group: its numbers are rounded less often than apart, and where segments end must not decide that. A group
/// is in one segment of every partition.
struct GpuFusions {
  bool loss = false, gelu = false;
};
Fusion fuse_for_gpu(const Graph& graph, const Partition& partition, const GpuFusions& fusions);

}  // namespace lockstep::model
