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
  /// Whether one kernel makes the value and what is made of it, and does not write the value.
  bool is_unwritten(const Graph& graph, int value) const;
  /// Of what is fused on CPUs: the other term of the sum that a batch norm's kernel adds, or -1; the value
  /// that it writes, which is the last that it makes; the values whose gradients a kernel reads, in place of
  /// its own outputs'.
  int other_term(const Graph& graph, int node) const;
  int last_made(const Graph& graph, int node) const;
  std::vector<int> gradients_read(const Graph& graph, int node) const;
  bool runs_forward(int node) const { return nth(forward_node, node) == node; }
  bool runs_backward(int node) const { return nth(backward_node, node) == node; }
};

/// Each node by its own kernel.
Fusion no_fusion(const Graph& graph);

/// The fusions of CPU kernels, to the bits of separate kernels, if values are stored in float32. Within a
/// segment,
/// - a batch norm also adds what a sum right behind it adds to its output, and computes a ReLU right behind
/// it
///   or the sum; in backward the gradient of that ReLU, unless there is a sum, whose other term needs it;
/// - any other ReLU adds the gradients of its output's two readers if a fork is right behind it.
Fusion fuse_for_cpu(const Graph& graph, const Partition& partition);

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
