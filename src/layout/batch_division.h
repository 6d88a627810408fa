#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "layout/canonical_tree.h"

namespace lockstep::layout {

/// How a global batch is divided: into leaves, each into micro-batches of one size. Under REPRODUCIBLE a leaf
/// is a virtual replica, or several of them that are computed at once (join_leaves); FAST has a leaf per
/// worker, or per push of a step.
struct BatchDivision {
  int64_t global_batch = 0;
  int leaves = 1;
  int replicas_per_leaf = 1;  ///< virtual replicas of a leaf, whose gradients kernels fold
  int64_t leaf_samples = 0;
  int64_t micro_batch = 0;  ///< samples
  int micro_batches_per_leaf = 1;
  int workers = 1;
  bool folds_by_halving =
      false;  ///< of the workers' leaves; see canonical_tree.h. Computed once, since it looks at all leaves
  bool follows_tree = false;  ///< likewise

  /// Leaves of a worker: consecutive, larger shares first.
  TreeNode leaves_of(int worker) const;
  int micro_batches_of(int worker) const { return leaves_of(worker).size() * micro_batches_per_leaf; }
  /// Samples of a micro-batch over which kernels sum at once: within a virtual replica.
  int64_t summed_samples() const { return micro_batch / replicas_per_leaf; }
  /// Place in the global batch of the first sample of a worker's micro-batch, which is numbered over all its
  /// leaves.
  int64_t first_sample(int worker, int micro_batch) const;
};

/// `pushes`: the number of pushes in a step, if any worker may take any part of the batch; 0: no such pushes.
/// Throws ConfigError with the nearest values that work if the batch cannot be divided.
BatchDivision divide_batch(int64_t global_batch, int64_t micro_batch_limit, int virtual_replicas,
                           Reduction reduction, int workers, int pushes = 0);

/// The same division, with as many virtual replicas in a leaf as a worker can compute at once: those of one
/// node of the canonical tree, in one micro-batch of at most `micro_batch_limit` samples. Every worker gets
/// whole nodes, and the largest share is as large as before: 3 workers of 16 replicas have 3, 3 and 2 nodes
/// of two. In a pipeline of several stages each replica keeps at least 8 leaves for each stage, so that these
/// wait for about a tenth of a step, and a multiple of the number of stages. Every sum has the bits that it
/// has without. REQUIRES: `division` is one of REPRODUCIBLE.
BatchDivision join_leaves(const BatchDivision& division, int64_t micro_batch_limit, int stages = 1);

/// "global batch 128 = 2 workers x 2 leaves x 2 micro-batches x 16 samples", printed at start. `worker`: the
/// word for what has leaves.
std::string describe(const BatchDivision& division, std::string_view worker = "worker");

}  // namespace lockstep::layout
