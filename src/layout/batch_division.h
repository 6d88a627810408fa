#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "layout/canonical_tree.h"

namespace lockstep::layout {

/// Samples of a global batch, by their places there: those of a micro-batch.
struct BatchPart {
  int64_t first_sample = 0, samples = 0;
  bool operator==(const BatchPart&) const = default;
};

/// How a global batch is divided: into leaves of equal size, and these into micro-batches. Under REPRODUCIBLE
/// a leaf is a virtual replica; FAST has a leaf per worker, or per push of a step. A leaf is one or several
/// micro-batches; or a micro-batch holds several leaves, of a node of the canonical tree, whose gradients
/// kernels fold (join_leaves). Then micro-batches may have different sizes.
struct BatchDivision {
  int64_t global_batch = 0;
  int leaves = 1;
  int leaves_at_once = 1;    ///< of the largest micro-batch
  int leaves_of_shares = 1;  ///< workers' shares are multiples of so many leaves
  int64_t leaf_samples = 0;
  int64_t micro_batch = 0;  ///< samples of the largest one
  int micro_batches_per_leaf = 1;
  int workers = 1;
  bool folds_by_halving =
      false;  ///< of the workers' leaves; see canonical_tree.h. Computed once, since it looks at all leaves
  bool follows_tree = false;  ///< likewise

  /// Leaves of a worker: consecutive, larger shares first.
  TreeNode leaves_of(int worker) const;
  /// The same, cut into what is computed at once: nodes of the tree, ascending.
  std::vector<TreeNode> nodes_of(int worker) const;
  int micro_batches_of(int worker) const;
  int most_micro_batches() const;  ///< of a worker
  /// How many micro-batches of the largest size a worker's samples would make.
  double full_micro_batches_of(int worker) const;
  /// What a micro-batch of so many leaves is of the largest one, by its samples.
  double part_of_largest(int of_leaves) const { return static_cast<double>(of_leaves) / leaves_at_once; }
  /// Samples of a micro-batch of so many leaves.
  int64_t samples_at_once(int of_leaves) const { return of_leaves * summed_samples(); }
  /// Samples over which kernels sum at once: a leaf's, of one micro-batch.
  int64_t summed_samples() const { return leaf_samples / micro_batches_per_leaf; }
  /// The samples of each micro-batch that computes these leaves or nodes, ascending.
  std::vector<BatchPart> parts_of(const std::vector<TreeNode>& nodes) const;
  std::vector<BatchPart> parts_of(int worker) const { return parts_of(nodes_of(worker)); }
  /// Of an evaluation, which computes one micro-batch of each leaf or node.
  BatchDivision of_evaluation() const;
  /// The numbers of leaves that micro-batches have, descending.
  std::vector<int> sizes() const;
};

/// `pushes`: the number of pushes in a step, if any worker may take any part of the batch; 0: no such pushes.
/// Throws ConfigError with the nearest values that work if the batch cannot be divided.
BatchDivision divide_batch(int64_t global_batch, int64_t micro_batch_limit, int virtual_replicas,
                           Reduction reduction, int workers, int pushes = 0);

/// The same division with larger micro-batches: each has the virtual replicas of one node of the canonical
/// tree, at most `micro_batch_limit` samples. No share grows beyond the largest one. If possible, shares
/// begin where large nodes do: 3 workers of 16 replicas have 6 (4 then 2), 6 (2 then 4) and 4. In a pipeline
/// all nodes have one size; each replica keeps at least 8 micro-batches for each stage, so that stages wait
/// for about a tenth of a step, and a multiple of the number of stages. No bit of a sum changes.
///
/// REQUIRES: `division` is one of REPRODUCIBLE.
BatchDivision join_leaves(const BatchDivision& division, int64_t micro_batch_limit, int stages = 1);

/// "global batch 128 = 2 workers x 2 leaves x 2 micro-batches x 16 samples", printed at start. `worker`: the
/// word for what has leaves.
std::string describe(const BatchDivision& division, std::string_view worker = "worker");

}  // namespace lockstep::layout
