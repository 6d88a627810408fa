#include "layout/batch_division.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <set>
#include <vector>

#include "base/index.h"
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
  const int units = leaves / leaves_of_shares, share = units / workers, extra = units % workers;
  const int begin = worker * share + std::min(worker, extra);
  const int end = begin + share + (worker < extra ? 1 : 0);
  return {begin * leaves_of_shares, end * leaves_of_shares};
}

std::vector<TreeNode> BatchDivision::nodes_of(int worker) const {
  const TreeNode share = leaves_of(worker);
  return nodes_within(leaves, share.begin, share.end, leaves_at_once);
}

int BatchDivision::micro_batches_of(int worker) const {
  return leaves_at_once == 1 ? leaves_of(worker).size() * micro_batches_per_leaf
                             : static_cast<int>(nodes_of(worker).size());
}

int BatchDivision::most_micro_batches() const {
  if (leaves_at_once == 1) return micro_batches_of(0);
  int most = 0;
  for (int worker = 0; worker < workers; ++worker) most = std::max(most, micro_batches_of(worker));
  return most;
}

double BatchDivision::full_micro_batches_of(int worker) const {
  return static_cast<double>(leaves_of(worker).size() * leaf_samples) / static_cast<double>(micro_batch);
}

std::vector<BatchPart> BatchDivision::parts_of(const std::vector<TreeNode>& nodes) const {
  std::vector<BatchPart> parts;
  for (const TreeNode& node : nodes)
    for (int part = 0; part < micro_batches_per_leaf; ++part)
      parts.push_back({node.begin * leaf_samples + part * summed_samples(), samples_at_once(node.size())});
  return parts;
}

BatchDivision BatchDivision::of_evaluation() const {
  BatchDivision division = *this;
  division.leaf_samples = summed_samples();
  division.global_batch = leaves * division.leaf_samples;
  division.micro_batches_per_leaf = 1;
  return division;
}

std::vector<int> BatchDivision::sizes() const {
  std::set<int, std::greater<>> found;
  if (leaves_at_once == 1) return {1};
  for (int worker = 0; worker < workers; ++worker)
    for (const TreeNode& node : nodes_of(worker)) found.insert(node.size());
  return {found.begin(), found.end()};
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

namespace {

/// The most leaves of which all shares can be multiples while the largest one stays as large as it is.
int leaves_of_shares(const BatchDivision& division) {
  const auto keeps_largest = [&](int unit) {
    const int units = division.leaves / unit;
    return units >= division.workers &&
           largest_share(units, division.workers) * unit == largest_share(division.leaves, division.workers);
  };
  int unit = 1;
  // A tree over V leaves is one over V / 2^k nodes of 2^k leaves, if 2^k divides V.
  while (division.leaves % (2 * unit) == 0 && keeps_largest(2 * unit)) unit *= 2;
  return unit;
}

/// Nodes of one size, of which each replica of a pipeline has as many.
int leaves_in_pipeline(const BatchDivision& division, int most_at_once, int stages) {
  constexpr int kMicroBatchesOfStage = 8;
  const auto fits = [&](int at_once) {
    const int nodes = division.leaves / at_once, each = nodes / division.workers;
    return at_once <= most_at_once && each * division.workers == nodes &&
           each >= kMicroBatchesOfStage * stages && each % stages == 0;
  };
  int at_once = 1;
  while (division.leaves % (2 * at_once) == 0 && fits(2 * at_once)) at_once *= 2;
  return at_once;
}

}  // namespace

BatchDivision join_leaves(const BatchDivision& division, int64_t micro_batch_limit, int stages) {
  BatchDivision joined = division;
  if (division.micro_batches_per_leaf > 1) return joined;
  const auto most =
      static_cast<int>(std::clamp<int64_t>(micro_batch_limit / division.leaf_samples, 1, division.leaves));
  if (stages > 1) {
    joined.leaves_at_once = joined.leaves_of_shares = leaves_in_pipeline(division, most, stages);
  } else {
    joined.leaves_of_shares = leaves_of_shares(division);
    joined.leaves_at_once = most;
    joined.leaves_at_once = joined.sizes().front();
  }
  joined.micro_batch = joined.leaves_at_once * joined.leaf_samples;
  find_folds(joined);
  return joined;
}

std::string describe(const BatchDivision& division, std::string_view worker) {
  int least = division.leaves, most = 0;
  for (const int one : {0, division.workers - 1}) {
    least = std::min(least, division.leaves_of(one).size());
    most = std::max(most, division.leaves_of(one).size());
  }
  const std::string leaves = least == most ? fmt::format("{}", most) : fmt::format("{} to {}", least, most);
  const int64_t samples = division.summed_samples();
  const std::string parts = division.leaves_at_once > 1
                                ? ""
                                : fmt::format(" x {} micro-batch{}", division.micro_batches_per_leaf,
                                              division.micro_batches_per_leaf == 1 ? "" : "es");
  const std::string at_once =
      division.leaves_at_once > 1 ? fmt::format(", up to {} leaves at once", division.leaves_at_once) : "";
  return fmt::format("global batch {} = {} {}{} x {} lea{}{} x {} sample{}{}", division.global_batch,
                     division.workers, worker, division.workers == 1 ? "" : "s", leaves,
                     leaves == "1" ? "f" : "ves", parts, samples, samples == 1 ? "" : "s", at_once);
}

}  // namespace lockstep::layout
