#include "layout/batch_division.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "lockstep/error.h"

namespace lockstep::layout {
namespace {

/// The nearest multiples of `unit` around `value`, as advice.
std::string nearest_multiples(int64_t value, int64_t unit) {
  const int64_t below = value / unit * unit;
  return below > 0 ? fmt::format("{} or {}", below, below + unit) : fmt::format("{}", unit);
}

int largest_share(int leaves, int workers) { return (leaves + workers - 1) / workers; }

void find_folds(BatchDivision& division) {
  std::vector<TreeNode> ranges;
  for (int worker = 0; worker < division.workers; ++worker) ranges.push_back(division.leaves_of(worker));
  division.folds_by_halving = folds_by_halving(division.leaves, ranges);
  division.follows_tree = follows_tree(division.leaves, ranges);
}

}  // namespace

TreeNode BatchDivision::leaves_of(int worker) const {
  const int share = leaves / workers, extra = leaves % workers;
  const int begin = worker * share + std::min(worker, extra);
  return {begin, begin + share + (worker < extra ? 1 : 0)};
}

int64_t BatchDivision::first_sample(int worker, int micro_batch_index) const {
  const int leaf = leaves_of(worker).begin + micro_batch_index / micro_batches_per_leaf;
  return leaf * leaf_samples + (micro_batch_index % micro_batches_per_leaf) * micro_batch;
}

BatchDivision divide_batch(int64_t global_batch, int64_t micro_batch_limit, int virtual_replicas,
                           Reduction reduction, int workers, int pushes) {
  BatchDivision division;
  division.global_batch = global_batch;
  division.workers = workers;
  if (reduction == Reduction::reproducible) {
    if (workers > virtual_replicas)
      throw ConfigError(
          fmt::format("trainer.virtual_replicas is {}, but there are {} workers; in REPRODUCIBLE mode each "
                      "worker (with pp, each replica) needs its own leaf: use at most {} of them, or raise "
                      "trainer.virtual_replicas (which changes the numbers)",
                      virtual_replicas, workers, virtual_replicas));
    if (global_batch % virtual_replicas != 0)
      throw ConfigError(
          fmt::format("trainer.global_batch {} is not divisible by trainer.virtual_replicas {}; use {}",
                      global_batch, virtual_replicas, nearest_multiples(global_batch, virtual_replicas)));
    division.leaves = virtual_replicas;
  } else {
    division.leaves = pushes > 0 ? pushes : workers;
    if (global_batch % division.leaves != 0)
      throw ConfigError(fmt::format("trainer.global_batch {} is not divisible by {} {}; use {}", global_batch,
                                    division.leaves, division.leaves == workers ? "workers" : "pushes",
                                    nearest_multiples(global_batch, division.leaves)));
  }
  division.leaf_samples = global_batch / division.leaves;
  division.micro_batch = division.leaf_samples;
  if (micro_batch_limit > 0 && micro_batch_limit < division.leaf_samples) {
    division.micro_batch = micro_batch_limit;
    while (division.leaf_samples % division.micro_batch != 0) --division.micro_batch;
  }
  division.micro_batches_per_leaf = static_cast<int>(division.leaf_samples / division.micro_batch);
  find_folds(division);
  return division;
}

BatchDivision join_leaves(const BatchDivision& division, int64_t micro_batch_limit, int stages) {
  constexpr int kLeavesOfStage = 8;
  BatchDivision joined = division;
  if (division.micro_batches_per_leaf > 1) return joined;
  // Whole nodes for each worker; no worker gets more replicas than it has without.
  const auto fits = [&](int replicas) {
    const int nodes = division.leaves / replicas, most = largest_share(nodes, division.workers);
    return replicas * division.leaf_samples <= micro_batch_limit && nodes >= division.workers &&
           most * replicas == largest_share(division.leaves, division.workers) &&
           (stages == 1 ||
            (most * division.workers == nodes && most >= kLeavesOfStage * stages && most % stages == 0));
  };
  int replicas = 1;
  // A tree over V leaves is one over V / 2^k nodes of 2^k leaves, if 2^k divides V.
  while (division.leaves % (2 * replicas) == 0 && fits(2 * replicas)) replicas *= 2;
  if (division.workers == 1 && fits(division.leaves)) replicas = division.leaves;
  joined.replicas_per_leaf = replicas;
  joined.leaves /= replicas;
  joined.leaf_samples *= replicas;
  joined.micro_batch = joined.leaf_samples;
  find_folds(joined);
  return joined;
}

std::string describe(const BatchDivision& division, std::string_view worker) {
  const auto first = division.leaves_of(0), last = division.leaves_of(division.workers - 1);
  const std::string leaves = first.size() == last.size() ? fmt::format("{}", first.size())
                                                         : fmt::format("{} to {}", last.size(), first.size());
  const std::string replicas = division.replicas_per_leaf == 1
                                   ? ""
                                   : fmt::format(" of {} virtual replicas", division.replicas_per_leaf);
  return fmt::format("global batch {} = {} {}{} x {} lea{}{} x {} micro-batch{} x {} sample{}",
                     division.global_batch, division.workers, worker, division.workers == 1 ? "" : "s",
                     leaves, leaves == "1" ? "f" : "ves", replicas, division.micro_batches_per_leaf,
                     division.micro_batches_per_leaf == 1 ? "" : "es", division.micro_batch,
                     division.micro_batch == 1 ? "" : "s");
}

}  // namespace lockstep::layout
