#include "model/partition.h"

#include <gtest/gtest.h>

#include <set>

#include "lockstep/error.h"
#include "model/presets.h"

namespace lockstep::model {
namespace {

Graph gpt_in_segments(bool tied) {
  return make_graph(
      make_gpt({.vocabulary = 65, .context = 16, .layers = 3, .heads = 2, .width = 32, .tied_head = tied}));
}

TEST(Partition, SegmentsCoverTheGraphAndRespectGroups) {
  const Graph graph = gpt_in_segments(true);
  for (const int64_t bucket_bytes : {int64_t{1}, int64_t{4096}, int64_t{40000}, int64_t{1} << 40}) {
    const Partition partition = make_partition(graph, bucket_bytes);
    int next = 0;
    for (const auto& segment : partition.segments) {
      EXPECT_EQ(segment.first_node, next);
      EXPECT_LE(segment.first_node, segment.last_node);
      if (next > 0) {
        EXPECT_NE(graph.nodes[static_cast<size_t>(next)].group,
                  graph.nodes[static_cast<size_t>(next - 1)].group);
      }
      next = segment.last_node + 1;
    }
    EXPECT_EQ(next, static_cast<int>(graph.nodes.size()));
  }
}

TEST(Partition, OneHugeBucketIsOneSegment) {
  EXPECT_EQ(make_partition(gpt_in_segments(true), int64_t{1} << 40).segments.size(), 1u);
}

TEST(Partition, BucketsHoldEveryUseOnceAlignedWithoutOverlap) {
  const Graph graph = gpt_in_segments(true);
  const Partition partition = make_partition(graph, 20000);
  ASSERT_GT(partition.segments.size(), 3u);
  std::set<std::pair<int, int>> seen;
  for (const auto& bucket : partition.buckets) {
    int64_t end = 0;
    for (const auto& entry : bucket.entries) {
      EXPECT_TRUE(seen.insert({entry.parameter, entry.use}).second);
      EXPECT_EQ(entry.offset_bytes % kBucketAlignment, 0);
      EXPECT_GE(entry.offset_bytes, end);
      end = entry.offset_bytes + entry.count * 4;
      EXPECT_EQ(entry.use == 0, entry.offset_bytes < bucket.owned_bytes) << "owners come first";
    }
    EXPECT_LE(end, bucket.size_bytes);
    EXPECT_LE(bucket.owned_bytes, bucket.size_bytes);
  }
  size_t uses = 0;
  for (const auto& parameter : graph.parameters) uses += parameter.uses.size();
  EXPECT_EQ(seen.size(), uses);
}

TEST(Partition, TheFirstBucketIsSmall) {
  const Graph graph = gpt_in_segments(false);
  const int64_t bucket_bytes = 50000;  // about a block
  const Partition partition = make_partition(graph, bucket_bytes);
  ASSERT_GT(partition.buckets.size(), 2u);
  EXPECT_LE(partition.buckets.front().size_bytes, bucket_bytes / 4);
  EXPECT_GT(partition.buckets.front().size_bytes, 0);
}

TEST(Partition, InputsAndOutputsAreWhatCrossesBorders) {
  const Graph graph = gpt_in_segments(true);
  const Partition partition = make_partition(graph, 20000);
  std::set<int> made(graph.inputs.begin(), graph.inputs.end());
  for (const auto& segment : partition.segments) {
    for (const int input : segment.inputs)
      EXPECT_TRUE(made.contains(input)) << graph.values[static_cast<size_t>(input)].name;
    made.insert(segment.outputs.begin(), segment.outputs.end());
  }
}

TEST(Partition, RefusesABucketOfNothing) {
  EXPECT_THROW(make_partition(gpt_in_segments(true), 0), ConfigError);
}

}  // namespace
}  // namespace lockstep::model
