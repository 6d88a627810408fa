#include "model/pieces.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "base/ensure.h"
#include "base/index.h"
#include "base/text.h"
#include "lockstep/error.h"

namespace lockstep::model {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

/// Of each group, its last node.
std::vector<int> group_ends(const Graph& graph) {
  std::vector<int> ends(static_cast<size_t>(graph.group_count));
  for (size_t n = 0; n < graph.nodes.size(); ++n) nth(ends, graph.nodes[n].group) = static_cast<int>(n);
  return ends;
}

int64_t bytes_crossing(const Graph& graph, int node) {
  int64_t bytes = 0;
  for (const int v : values_crossing(graph, node)) {
    const auto& value = graph.value(v);
    bytes += value.spec.shape.count() * size_of(value.spec.dtype) * (value.needs_gradient ? 2 : 1);
  }
  return bytes;
}

/// The best divisions of all first groups into 1, 2, ... pieces: best[k][g] is of groups [0, g) into k.
/// `extend(so_far, piece, first, last)`: what a division is worth with one more piece, of groups [first,
/// last).
template <class Extend>
std::vector<std::vector<double>> best_divisions(int groups, int pieces, const Extend& extend) {
  std::vector<std::vector<double>> best(static_cast<size_t>(pieces) + 1,
                                        std::vector<double>(static_cast<size_t>(groups) + 1, kNever));
  best[0][0] = 0;
  for (int k = 1; k <= pieces; ++k)
    for (int last = k; last <= groups; ++last)
      for (int first = k - 1; first < last; ++first)
        if (const double so_far = nth(nth(best, k - 1), first); so_far < kNever)
          nth(nth(best, k), last) = std::min(nth(nth(best, k), last), extend(so_far, k - 1, first, last));
  return best;
}

}  // namespace

std::vector<int> values_crossing(const Graph& graph, int node) {
  std::vector<int> crossing;
  for (const auto& value : graph.values) {
    if (value.consumer <= node) continue;
    const int made = graph.value(value.storage).producer;
    if (made >= 0 && made <= node && std::ranges::find(crossing, value.storage) == crossing.end())
      crossing.push_back(value.storage);
  }
  return crossing;
}

std::vector<int> group_begins(const Graph& graph) {
  std::vector<int> begins{0};
  for (const int end : group_ends(graph)) begins.push_back(end + 1);
  begins.pop_back();
  return begins;
}

std::vector<int> cut_before(const Graph& graph, const std::vector<std::string>& names) {
  std::vector<std::string> known;
  for (const auto& node : graph.nodes) known.push_back(node.name);
  const std::vector<int> begins = group_begins(graph);
  std::vector<int> last_nodes;
  int before = 0;  // node with which the last piece begins
  for (const std::string& name : names) {
    const auto found = std::ranges::find(known, name);
    if (found == known.end())
      throw ConfigError(
          fmt::format("parallel.pipeline.cuts: there is no layer '{}'{}; lockstep inspect lists them", name,
                      did_you_mean(name, known)));
    int node = static_cast<int>(found - known.begin());
    // Nobody names the forks before a layer.
    while (!std::ranges::binary_search(begins, node) && name_of(graph.node(node - 1).op) == "fork") --node;
    const auto begin = std::prev(std::ranges::upper_bound(begins, node));
    if (*begin != node)
      throw ConfigError(fmt::format(
          "parallel.pipeline.cuts: '{}' is computed together with '{}'; begin a piece with that{}", name,
          graph.node(*begin).name,
          std::next(begin) == begins.end()
              ? ""
              : fmt::format(", or with '{}'", graph.node(*std::next(begin)).name)));
    if (node <= before)
      throw ConfigError(
          fmt::format("parallel.pipeline.cuts: pieces must be in model order, but '{}' does not come after "
                      "'{}', which begins the piece before",
                      name, graph.node(before).name));
    last_nodes.push_back(node - 1);
    before = node;
  }
  last_nodes.push_back(static_cast<int>(graph.nodes.size()) - 1);
  return last_nodes;
}

std::vector<int> divide_into_pieces(const Graph& graph, const std::vector<double>& group_times, int pieces,
                                    const PieceFits& fits) {
  const int groups = graph.group_count;
  if (pieces > groups)
    throw ConfigError(
        fmt::format("the model has only {} groups of layers that are computed together, too few for {} "
                    "pieces of a pipeline; use at most {}",
                    groups, pieces, groups));
  const std::vector<int> ends = group_ends(graph);
  std::vector<double> until{0};  // times of all groups before
  ensure(static_cast<int>(group_times.size()) == groups, "every group has a time");
  for (const double time : group_times) until.push_back(until.back() + time);
  std::vector<double> crossing;  // by the cut's last group
  for (const int end : ends) crossing.push_back(static_cast<double>(bytes_crossing(graph, end)));
  const auto time = [&](int piece, int first, int last) {
    return fits && !fits(piece, first, last) ? kNever : nth(until, last) - nth(until, first);
  };

  const double slowest = best_divisions(groups, pieces,
                                        [&](double so_far, int piece, int first, int last) {
                                          return std::max(so_far, time(piece, first, last));
                                        })
                             .back()
                             .back();
  if (slowest == kNever) return {};
  // Sums of the same times in another order differ in their last bits.
  const double most = slowest * (1 + 1e-9);
  const auto bytes_of = [&](double so_far, int piece, int first, int last) {
    if (time(piece, first, last) > most) return kNever;
    return so_far + (last < groups ? nth(crossing, last - 1) : 0);
  };
  const auto best = best_divisions(groups, pieces, bytes_of);
  std::vector<int> last_nodes;
  for (int k = pieces, last = groups; k > 0; --k) {
    last_nodes.push_back(nth(ends, last - 1));
    int first = k - 1;
    while (nth(nth(best, k - 1), first) == kNever ||
           bytes_of(nth(nth(best, k - 1), first), k - 1, first, last) != nth(nth(best, k), last))
      ++first;
    last = first;
  }
  std::ranges::reverse(last_nodes);
  return last_nodes;
}

}  // namespace lockstep::model
