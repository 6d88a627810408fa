#pragma once

#include <vector>

#include "base/index.h"
#include "model/graph.h"
#include "model/partition.h"

namespace lockstep::model {

/// For each node, whether its kernels do work of its neighbours in the same pass over memory.
struct Fusion {
  std::vector<ops::FusedNeighbors> neighbors;
  std::vector<int> forward_node,
      backward_node;  ///< the node whose kernel does this node's forward, backward: itself, or a neighbour

  /// For each node, the linear layer of whose bias it sums the gradient in its backward; -1: none. Halves of
  /// backward do not: the linear layer's second half does.
  std::vector<int> bias_of;

  /// Whether another node's backward sums the gradient of this linear layer's bias.
  bool leaves_bias(int node) const;
  bool runs_forward(int node) const { return nth(forward_node, node) == node; }
  bool runs_backward(int node) const { return nth(backward_node, node) == node; }
};

/// No fusion: for CPUs.
Fusion no_fusion(const Graph& graph);

/// The fusions of GPU kernels.
/// - Within a segment, a layer norm adds the two terms of its input, and in backward the gradient of the
///   input's other reader. The bits are those of separate add, layer norm and fork.
/// - Within a segment, a norm or an activation also sums the columns of the gradient that it writes if that
/// is
///   the gradient of a linear layer's output, for its bias. The order follows from the graph, not from ends
///   of segments: linear layers sum in the same order.
/// - `loss`: a softmax cross entropy overwrites its logits with their gradient as it reads them, if they were
///   made in its segment and have no other reader. The bits are those of separate forward and backward.
/// - `gelu`: linear layers before and after a GELU compute it and its gradient, if ops/fusion.h can and they
///   are one fused group. Numbers are rounded less often than without fusion. Ends of segments must not
///   decide this, so only groups are fused: a group is in one segment of every partition.
struct GpuFusions {
  bool loss = false, gelu = false;
};
Fusion fuse_for_gpu(const Graph& graph, const Partition& partition, const GpuFusions& fusions);

}  // namespace lockstep::model
