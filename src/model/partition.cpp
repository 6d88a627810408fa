#include "model/partition.h"

#include <algorithm>
#include <set>

#include "base/index.h"
#include "lockstep/error.h"

namespace lockstep::model {
namespace {

int64_t aligned(int64_t bytes) {
  return (bytes + kBucketAlignment - 1) / kBucketAlignment * kBucketAlignment;
}

struct GroupExtent {
  int first_node = 0, last_node = 0;
  int64_t gradient_bytes = 0;
};

std::vector<GroupExtent> group_extents(const Graph& graph) {
  std::vector<GroupExtent> groups(static_cast<size_t>(graph.group_count));
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const auto& node = graph.nodes[n];
    auto& group = nth(groups, node.group);
    if (n == 0 || graph.nodes[n - 1].group != node.group) group.first_node = static_cast<int>(n);
    group.last_node = static_cast<int>(n);
    for (const int p : node.parameters)
      if (!graph.parameter(p).frozen)
        group.gradient_bytes += aligned(graph.parameter(p).spec.shape.count() * 4);
  }
  return groups;
}

/// How many values with gradients are made at or before `node` and read after it.
int gradients_crossing(const Graph& graph, int node) {
  int crossing = 0;
  for (const auto& value : graph.values)
    if (value.needs_gradient && value.producer <= node && value.consumer > node) ++crossing;
  return crossing;
}

/// Cuts lie after the returned groups, ascending; the last group of each piece is always among them.
std::vector<int> choose_cuts(const Graph& graph, const std::vector<GroupExtent>& groups, int64_t bucket_bytes,
                             std::span<const int> piece_ends) {
  const int count = static_cast<int>(groups.size());
  std::vector<int> cuts{count - 1};
  // Backwards, as gradients become complete.
  int64_t bytes = 0;
  for (int g = count - 1; g > 0; --g) {
    bytes += nth(groups, g).gradient_bytes;
    const int before = nth(groups, g - 1).last_node;
    const bool narrow = gradients_crossing(graph, before) <= 1;
    if (bytes >= 2 * bucket_bytes || (bytes >= bucket_bytes && narrow) ||
        std::ranges::find(piece_ends, before) != piece_ends.end()) {
      cuts.push_back(g - 1);
      bytes = 0;
    }
  }
  std::reverse(cuts.begin(), cuts.end());

  // The first segment: as much of it as fits a quarter of a bucket stays first, the rest becomes a segment of
  // its own.
  int64_t total = 0;
  for (int g = 0; g <= cuts.front(); ++g) total += nth(groups, g).gradient_bytes;
  if (total > bucket_bytes / 4) {
    int best = -1;
    int64_t front = 0;
    for (int g = 0; g < cuts.front(); ++g) {
      front += nth(groups, g).gradient_bytes;
      if (front > bucket_bytes / 4) break;
      if (front > 0 && gradients_crossing(graph, nth(groups, g).last_node) <= 1) best = g;
    }
    if (best >= 0) cuts.insert(cuts.begin(), best);
  }
  return cuts;
}

/// The number of the use of the parameter in `slot` of a node.
int use_of(const Graph& graph, int node, size_t slot) {
  const auto& uses = graph.parameter(graph.node(node).parameters[slot]).uses;
  int use = 0;
  while (nth(uses, use).node != node || nth(uses, use).slot != static_cast<int>(slot)) ++use;
  return use;
}

void place_frozen(const Graph& graph, const Segment& segment, Bucket& bucket) {
  for (int n = segment.first_node; n <= segment.last_node; ++n)
    for (size_t slot = 0; slot < graph.node(n).parameters.size(); ++slot) {
      const int p = graph.node(n).parameters[slot], use = use_of(graph, n, slot);
      if (!graph.parameter(p).frozen) continue;
      const int64_t elements = graph.parameter(p).spec.shape.count();
      bucket.frozen.push_back({p, use, use == 0 ? bucket.held_bytes : kNoPlace, elements});
      if (use == 0) bucket.held_bytes += aligned(elements * 4);
    }
}

Bucket make_bucket(const Graph& graph, const Segment& segment) {
  Bucket bucket;
  const auto place = [&](bool owners, bool apart) {
    for (int n = segment.first_node; n <= segment.last_node; ++n) {
      const auto& node = graph.node(n);
      if ((node.signature.backward == ops::BackwardForm::split) != apart) continue;
      for (size_t slot = 0; slot < node.parameters.size(); ++slot) {
        const auto& parameter = graph.parameter(node.parameters[slot]);
        const int use = use_of(graph, n, slot);
        if ((use == 0) != owners || parameter.frozen) continue;
        const int64_t elements = parameter.spec.shape.count();
        bucket.entries.push_back({node.parameters[slot], use, bucket.size_bytes, elements});
        bucket.size_bytes += aligned(elements * 4);
      }
    }
  };
  place(true, false);
  bucket.split_begin = bucket.size_bytes;
  place(true, true);
  bucket.owned_bytes = bucket.size_bytes;
  place(false, true);
  bucket.split_end = bucket.size_bytes;
  place(false, false);
  bucket.held_bytes = bucket.owned_bytes;
  place_frozen(graph, segment, bucket);
  return bucket;
}

}  // namespace

Partition partition_after(const Graph& graph, std::span<const int> last_nodes,
                          std::span<const int> piece_ends) {
  require(!last_nodes.empty() && last_nodes.back() + 1 == static_cast<int>(graph.nodes.size()),
          "the last segment ends with the graph");
  for (const int end : piece_ends)
    require(std::ranges::find(last_nodes, end) != last_nodes.end(), "pieces end where segments do");
  Partition partition;
  int first_node = 0;
  for (const int last_node : last_nodes) {
    require(last_node >= first_node, "segments end one after the other");
    Segment segment;
    segment.first_node = first_node;
    segment.last_node = last_node;
    for (size_t v = 0; v < graph.values.size(); ++v) {
      const auto& value = graph.values[v];
      const bool made_inside = value.producer >= segment.first_node && value.producer <= segment.last_node;
      const bool read_inside = value.consumer >= segment.first_node && value.consumer <= segment.last_node;
      if (read_inside && !made_inside) {
        segment.inputs.push_back(static_cast<int>(v));
        segment.needs_input_gradient = segment.needs_input_gradient || value.needs_gradient;
      }
      if (made_inside && !read_inside) segment.outputs.push_back(static_cast<int>(v));
    }
    partition.buckets.push_back(make_bucket(graph, segment));
    partition.segments.push_back(std::move(segment));
    partition.pieces.push_back(
        static_cast<int>(std::ranges::count_if(piece_ends, [&](int end) { return end < first_node; })));
    first_node = last_node + 1;
  }
  return partition;
}

Partition make_partition(const Graph& graph, int64_t bucket_bytes, std::span<const int> piece_ends) {
  require(bucket_bytes > 0, "parallel.bucket_bytes must be positive");
  const auto groups = group_extents(graph);
  std::vector<int> last_nodes;
  for (const int cut : choose_cuts(graph, groups, bucket_bytes, piece_ends))
    last_nodes.push_back(nth(groups, cut).last_node);
  return partition_after(graph, last_nodes, piece_ends);
}

}  // namespace lockstep::model
