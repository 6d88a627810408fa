#include "layout/ownership.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "layout/norm_chunks.h"
#include "program/step_scalars.h"

namespace lockstep::layout {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr int64_t kChunk = layout::kNormChunk, kChunkBytes = 4 * layout::kNormChunk;

model::Parameter parameter(int64_t count, ops::ParameterRole role = ops::ParameterRole::weight) {
  model::Parameter parameter;
  parameter.spec.shape = Shape{count};
  parameter.spec.role = role;
  return parameter;
}

/// A model whose segments have these parameters, each at the next multiple of 64 bytes.
struct Model {
  model::Graph graph;
  model::Partition partition;

  explicit Model(const std::vector<std::vector<model::Parameter>>& segments) {
    for (const auto& parameters : segments) {
      model::Bucket bucket;
      for (const auto& parameter : parameters) {
        const auto number = static_cast<int>(graph.parameters.size());
        graph.parameters.push_back(parameter);
        bucket.entries.push_back({number, 0, bucket.owned_bytes, parameter.spec.shape.count()});
        bucket.owned_bytes += (4 * parameter.spec.shape.count() + model::kBucketAlignment - 1) /
                              model::kBucketAlignment * model::kBucketAlignment;
      }
      bucket.held_bytes = bucket.size_bytes = bucket.owned_bytes;
      partition.segments.emplace_back();
      partition.pieces.push_back(0);
      partition.buckets.push_back(std::move(bucket));
    }
  }
  /// Segment `segment` uses a parameter that another one owns.
  void tie(int parameter, size_t segment) {
    model::Bucket& bucket = partition.buckets[segment];
    const int64_t count = graph.parameters[static_cast<size_t>(parameter)].spec.shape.count();
    bucket.entries.push_back({parameter, 1, bucket.size_bytes, count});
    bucket.size_bytes += 4 * count;
  }
  Ownership place(const OwnershipOptions& options) const { return {graph, partition, options}; }
};

std::vector<ByteSpan> shards(const Ownership& ownership, int segment) {
  std::vector<ByteSpan> spans;
  for (int position = 0; position < ownership.owners().count; ++position)
    spans.push_back(ownership.updated(segment, position, position + 1));
  return spans;
}

TEST(Ownership, WithoutShardsEveryoneUpdatesEverything) {
  const Model model({{parameter(5), parameter(3)}, {parameter(7)}});
  const Ownership ownership = model.place({.workers = 2});
  for (const int worker : {0, 1}) {
    EXPECT_EQ(ownership.updated_by(0, worker), (ByteSpan{0, 128}));
    EXPECT_EQ(ownership.owned(1, worker), elements_of({0, 12}));
  }
}

/// Three segments on two stages; the last one uses parameters 1 and 3 of the first again.
Model staged() {
  Model model({{parameter(5), parameter(3), parameter(2), parameter(20)}, {parameter(7)}, {parameter(6)}});
  model.tie(1, 2);
  model.tie(3, 2);
  model.partition.pieces = {0, 0, 1};
  return model;
}

TEST(Ownership, StagesHoldTheirSegmentsAndWhatTheyUseOfOthers) {
  const Model model = staged();
  const Ownership ownership = model.place({.workers = 4, .stages = 2});
  EXPECT_TRUE(ownership.ties_stages());
  for (const int replica : {0, 1}) {
    const int first = ownership.rank_of(0, replica), second = ownership.rank_of(1, replica);
    EXPECT_EQ(first, replica);
    EXPECT_EQ(second, 2 + replica);
    EXPECT_EQ(ownership.held(0, first), (ByteSpan{0, 320}));
    EXPECT_EQ(ownership.held(1, first), (ByteSpan{0, 64}));
    EXPECT_EQ(ownership.held(2, first), ByteSpan{});
    // From the first to the last that it uses, with what lies between.
    EXPECT_EQ(ownership.held(0, second), (ByteSpan{64, 64 + 128 + 80}));
    EXPECT_EQ(ownership.held(1, second), ByteSpan{});
    EXPECT_EQ(ownership.held(2, second), (ByteSpan{0, 64}));
    // The stage of the first use updates, and sends copies.
    EXPECT_EQ(ownership.updated_by(0, first), (ByteSpan{0, 320}));
    EXPECT_EQ(ownership.updated_by(0, second), ByteSpan{});
    EXPECT_EQ(ownership.updated_by(2, second), (ByteSpan{0, 64}));
    EXPECT_EQ(ownership.owned(1, first), elements_of({0, 12}));
    EXPECT_EQ(ownership.owned(1, second), tensor::Part());
    EXPECT_THAT(ownership.held_gradients(0, second), IsEmpty());
    EXPECT_THAT(ownership.held_gradients(2, second), ElementsAre(ByteSpan{0, 64 + 12 + 80}));
  }
}

TEST(Ownership, WorkersOfAStageShardWhatItComputes) {
  const Model model = staged();
  const Ownership ownership = model.place({.workers = 4, .stages = 2, .owners = {0, 2}});
  EXPECT_TRUE(ownership.all_workers_own());
  EXPECT_FALSE(ownership.has_servers());
  EXPECT_EQ(ownership.owners_of(0), (RankRange{0, 2}));
  EXPECT_EQ(ownership.owners_of(2), (RankRange{2, 2}));
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_TRUE(ownership.owns(rank));
    EXPECT_EQ(ownership.position_of(rank), rank % 2);
  }
  // Borders of parameters: 64, 128 and 192 of 320 bytes.
  EXPECT_EQ(ownership.updated_by(0, 0), (ByteSpan{0, 192}));
  EXPECT_EQ(ownership.updated_by(0, 1), (ByteSpan{192, 320}));
  EXPECT_EQ(ownership.updated_by(0, 2), ByteSpan{});
  EXPECT_EQ(ownership.updated_by(2, 0), ByteSpan{});
  EXPECT_EQ(ownership.updated_by(2, 2).size() + ownership.updated_by(2, 3).size(), 64);
  // Of what the second stage has of the first one's parameters, gradients go to the shards there.
  EXPECT_EQ(ownership.owned(1, 0), elements_of({0, 12}));
  EXPECT_EQ(ownership.owned(3, 1), elements_of({0, 80}));
  EXPECT_THAT(ownership.gradients(2, 0, 1), testing::Contains(ByteSpan{64, 64 + 12}));
  EXPECT_THAT(ownership.gradients(2, 1, 2), testing::Contains(ByteSpan{76, 76 + 80}));
  EXPECT_EQ(ownership.held(0, 2), (ByteSpan{64, 272}));
}

TEST(Ownership, OneWorkerOfEachStageMayServeIt) {
  const Model model = staged();
  const Ownership ownership = model.place({.workers = 6, .stages = 2, .owners = {0, 1}});
  for (int rank = 0; rank < 6; ++rank) EXPECT_EQ(ownership.owns(rank), rank % 3 == 0) << rank;
  EXPECT_EQ(ownership.updated_by(0, 0), (ByteSpan{0, 320}));
  EXPECT_EQ(ownership.updated_by(2, 3), (ByteSpan{0, 64}));
  EXPECT_EQ(ownership.updated_by(2, 4), ByteSpan{});
}

TEST(Ownership, ServersOwnWhatAllStagesCompute) {
  const Model model = staged();
  const Ownership ownership = model.place({.workers = 4, .stages = 2, .owners = {4, 2}});
  EXPECT_TRUE(ownership.has_servers());
  EXPECT_EQ(ownership.ranks(), 6);
  for (int segment = 0; segment < 3; ++segment) {
    EXPECT_EQ(ownership.owners_of(segment), (RankRange{4, 2}));
    for (int worker = 0; worker < 4; ++worker) EXPECT_EQ(ownership.updated_by(segment, worker), ByteSpan{});
    EXPECT_EQ(ownership.updated_by(segment, 4).size() + ownership.updated_by(segment, 5).size(),
              model.partition.bucket(segment).owned_bytes);
  }
  EXPECT_EQ(ownership.position_of(5), 1);
}

TEST(Ownership, PiecesGoAroundTheStages) {
  Model model({{parameter(1)}, {parameter(1)}, {parameter(1)}, {parameter(1)}});
  model.partition.pieces = {0, 1, 2, 3};
  const Ownership ownership = model.place({.workers = 2, .stages = 2});
  EXPECT_FALSE(ownership.ties_stages());
  for (int segment = 0; segment < 4; ++segment)
    for (int rank = 0; rank < 2; ++rank) EXPECT_EQ(ownership.computes(segment, rank), segment % 2 == rank);
}

TEST(CheckpointShares, OfStagesAreSavedByTheirOwnRanks) {
  const Model model = staged();
  const auto shares = model.place({.workers = 4, .stages = 2}).shares();
  for (int rank = 0; rank < 4; ++rank)
    for (const SavedPart& part : shares[static_cast<size_t>(rank)])
      EXPECT_EQ(rank / 2, part.parameter == 5 ? 1 : 0) << part.parameter;
  std::vector<int> saved(6, 0);
  for (const auto& share : shares)
    for (const SavedPart& part : share) ++saved[static_cast<size_t>(part.parameter)];
  EXPECT_THAT(saved, testing::Each(1));
}

TEST(Ownership, ShardsEndOnBordersOfChunks) {
  // Chunks of 65536, 65536 and 10 elements, then one of 100.
  const Model model({{parameter(2 * kChunk + 10), parameter(100)}});
  const Ownership ownership = model.place({.workers = 2, .owners = {0, 2}});
  EXPECT_THAT(shards(ownership, 0),
              ElementsAre(ByteSpan{0, kChunkBytes}, ByteSpan{kChunkBytes, 2 * kChunkBytes + 64 + 448}));
  EXPECT_EQ(ownership.owned(0, 0), elements_of({0, kChunkBytes}));
  EXPECT_EQ(ownership.owned(0, 1), elements_of({kChunkBytes, 2 * kChunkBytes + 40}));
  EXPECT_EQ(ownership.owned(1, 0), tensor::Part());
  EXPECT_EQ(ownership.owned(1, 1), elements_of({0, 400}));
}

TEST(Ownership, WorkersHoldAllAndServersWhatTheyUpdate) {
  const Model model({{parameter(2 * kChunk + 10), parameter(100)}});
  const Ownership ownership = model.place({.workers = 2, .owners = {2, 2}});
  for (const int worker : {0, 1}) {
    EXPECT_EQ(ownership.held_part(0, worker), tensor::Part::range(0, 2 * kChunk + 10));
    EXPECT_EQ(ownership.owned(0, worker), tensor::Part());
  }
  EXPECT_EQ(ownership.held_part(0, 2), tensor::Part::range(0, kChunk));
  EXPECT_EQ(ownership.held_part(0, 3), tensor::Part::range(kChunk, kChunk + 10));
  EXPECT_EQ(ownership.held_part(1, 2), tensor::Part());
  for (const int server : {2, 3})
    for (const int p : {0, 1}) EXPECT_EQ(ownership.held_part(p, server), ownership.owned(p, server));
}

TEST(Ownership, WhoHasGotLessGetsMoreOfTheNextSegment) {
  const Model model({{parameter(10)},
                     {parameter(10)},
                     {parameter(10)},
                     {parameter(4 * kChunk)},
                     {parameter(kChunk)},
                     {parameter(2 * kChunk)}});
  const Ownership ownership = model.place({.workers = 3, .owners = {0, 3}});
  std::vector<std::vector<int64_t>> sizes;
  for (int segment = 0; segment < 6; ++segment) {
    sizes.emplace_back();
    for (const ByteSpan& span : shards(ownership, segment)) sizes.back().push_back(span.size());
  }
  // The middle one first: its share of one chunk ends nearest to the chunk's end.
  EXPECT_THAT(sizes, ElementsAre(ElementsAre(0, 64, 0), ElementsAre(64, 0, 0), ElementsAre(0, 0, 64),
                                 ElementsAre(kChunkBytes, 2 * kChunkBytes, kChunkBytes),
                                 ElementsAre(kChunkBytes, 0, 0), ElementsAre(0, kChunkBytes, kChunkBytes)));
}

TEST(Ownership, ShardsCoverEverySegmentOnceAndAreEven) {
  std::vector<std::vector<model::Parameter>> segments;
  int64_t total = 0;
  for (int s = 0; s < 23; ++s) {
    segments.emplace_back();
    for (int p = 0; p <= s % 4; ++p) {
      segments.back().push_back(parameter(1 + (s * 31 + p * 7) % 5 * kChunk + s));
      total += 4 * segments.back().back().spec.shape.count();
    }
  }
  const Model model(segments);
  for (const int workers : {1, 2, 3, 4, 5, 7, 8, 16, 100}) {
    for (const bool reversed : {false, true}) {
      if (reversed && (workers & (workers - 1)) != 0) continue;
      const Ownership ownership =
          model.place({.workers = workers, .owners = {0, workers}, .reversed = reversed});
      for (int s = 0; s < static_cast<int>(segments.size()); ++s) {
        int64_t at = 0;
        for (const ByteSpan& span : shards(ownership, s)) {
          EXPECT_EQ(span.begin, at) << workers;
          at = span.end;
        }
        EXPECT_EQ(at, model.partition.buckets[static_cast<size_t>(s)].owned_bytes);
      }
      std::vector<int64_t> owned(static_cast<size_t>(workers));
      for (int p = 0; p < static_cast<int>(model.graph.parameters.size()); ++p) {
        int64_t together = 0;
        for (int worker = 0; worker < workers; ++worker) {
          const ByteSpan span = bytes_of(ownership.owned(p, worker));
          together += span.size();
          owned[static_cast<size_t>(worker)] += span.size();
          EXPECT_EQ(span.begin % kChunkBytes, 0);
        }
        EXPECT_EQ(together, 4 * model.graph.parameters[static_cast<size_t>(p)].spec.shape.count());
      }
      for (const int64_t bytes : owned)
        EXPECT_NEAR(static_cast<double>(bytes), static_cast<double>(total) / workers, 1.5 * kChunkBytes)
            << workers << " workers";
    }
  }
}

TEST(Ownership, PositionsAreReversedForHalving) {
  const Model model({{parameter(8 * kChunk)}});
  const Ownership ownership = model.place({.workers = 8, .owners = {0, 8}, .reversed = true});
  std::vector<int> positions;
  for (int worker = 0; worker < 8; ++worker) positions.push_back(ownership.position_of(worker));
  EXPECT_THAT(positions, ElementsAre(0, 4, 2, 6, 1, 5, 3, 7));
  EXPECT_EQ(ownership.updated_by(0, 1), (ByteSpan{4 * kChunkBytes, 5 * kChunkBytes}));
}

TEST(Ownership, GradientsOfTiedParametersGoWhereTheyAreUpdated) {
  Model model({{parameter(2 * kChunk)}, {parameter(kChunk)}});
  model.tie(0, 1);
  const Ownership ownership = model.place({.workers = 2, .owners = {0, 2}});
  EXPECT_THAT(ownership.gradients(0, 1, 2), ElementsAre(ByteSpan{kChunkBytes, 2 * kChunkBytes}));
  // Segment 1: its own chunk at first, which worker 0 updates, then those of the tied use.
  EXPECT_THAT(ownership.gradients(1, 0, 1),
              ElementsAre(ByteSpan{0, kChunkBytes}, ByteSpan{kChunkBytes, 2 * kChunkBytes}));
  EXPECT_THAT(ownership.gradients(1, 1, 2), ElementsAre(ByteSpan{2 * kChunkBytes, 3 * kChunkBytes}));
  EXPECT_THAT(ownership.gradients(1, 0, 2),
              ElementsAre(ByteSpan{0, kChunkBytes}, ByteSpan{kChunkBytes, 3 * kChunkBytes}));
}

TEST(Ownership, TiedGradientsOfOneStageMeetWithTheFirstAndThoseOfTwoByThemselves) {
  // Two stages of two segments each. Segment 1 uses a parameter of segment 0 again; segment 3 one of segment
  // 2, and one of the other stage.
  Model model({{parameter(kChunk)}, {parameter(kChunk)}, {parameter(kChunk)}, {parameter(kChunk)}});
  model.partition.pieces = {0, 0, 1, 1};
  model.tie(0, 1);
  model.tie(2, 3);
  model.tie(1, 3);
  const Ownership each = model.place({.workers = 4, .stages = 2});
  for (int segment = 0; segment < 4; ++segment) {
    EXPECT_FALSE(each.is_tied_first(segment));
    EXPECT_EQ(each.summed_bytes(segment), model.partition.bucket(segment).size_bytes);
  }
  const Ownership first = model.place({.workers = 4, .stages = 2, .owners = {0, 2}, .ties_first = true});
  EXPECT_TRUE(first.is_tied_first(1));
  EXPECT_FALSE(first.is_tied_first(3));
  EXPECT_EQ(first.summed_bytes(1), kChunkBytes);
  EXPECT_EQ(first.summed_bytes(3), 3 * kChunkBytes);
  EXPECT_THAT(first.gradients(1, 0, 2), ElementsAre(ByteSpan{0, kChunkBytes}));
  EXPECT_EQ(first.gradients(3, 0, 2).size(), 3u);
  EXPECT_THAT(first.held_gradients(1, 0), ElementsAre(ByteSpan{0, 2 * kChunkBytes})) << "workers make them";
}

std::vector<std::vector<SavedPart>> shares_of(const std::vector<model::Parameter>& parameters, int slots,
                                              int workers, bool sharded = false) {
  const Model model({parameters});
  return model.place({.workers = workers, .state_slots = slots, .owners = {0, sharded ? workers : 0}})
      .shares();
}
SavedPart part(int parameter, int slot, const ByteSpan& bytes) {
  return {parameter, slot, elements_of(bytes)};
}
SavedPart whole(int parameter, int slot, int64_t size_bytes) {
  return part(parameter, slot, {0, size_bytes});
}

TEST(CheckpointShares, OneWorkerSavesEverythingParametersFirst) {
  EXPECT_THAT(shares_of({parameter(3), parameter(2, ops::ParameterRole::statistic), parameter(1)}, 2, 1),
              ElementsAre(ElementsAre(whole(0, -1, 12), whole(1, -1, 8), whole(2, -1, 4), whole(0, 0, 12),
                                      whole(0, 1, 12), whole(2, 0, 4), whole(2, 1, 4))));
}

TEST(CheckpointShares, LargestFirstToWhoeverHasLeast) {
  // Bytes with one slot of state: 40, 8, 80, 24, 48. 80 to worker 0, 48 to worker 1, 40 to worker 1 (88), 24
  // to worker 0 (104), 8 to worker 1 (96).
  const auto shares =
      shares_of({parameter(5), parameter(1), parameter(10), parameter(3), parameter(6)}, 1, 2);
  EXPECT_THAT(shares,
              ElementsAre(ElementsAre(whole(2, -1, 40), whole(3, -1, 12), whole(2, 0, 40), whole(3, 0, 12)),
                          ElementsAre(whole(0, -1, 20), whole(1, -1, 4), whole(4, -1, 24), whole(0, 0, 20),
                                      whole(1, 0, 4), whole(4, 0, 24))));
  EXPECT_EQ(size_bytes_of(shares[0]), 104);
  EXPECT_EQ(size_bytes_of(shares[1]), 96);
}

TEST(CheckpointShares, AmongEqualsOrderDecides) {
  EXPECT_THAT(shares_of({parameter(2), parameter(2), parameter(2)}, 0, 2),
              ElementsAre(ElementsAre(whole(0, -1, 8), whole(2, -1, 8)), ElementsAre(whole(1, -1, 8))));
}

TEST(CheckpointShares, StatisticsWeighWithoutState) {
  // With two slots: 24 for the weight, 16 for the statistic, 12 for the small weight.
  EXPECT_THAT(shares_of({parameter(4, ops::ParameterRole::statistic), parameter(2), parameter(1)}, 2, 2),
              ElementsAre(ElementsAre(whole(1, -1, 8), whole(1, 0, 8), whole(1, 1, 8)),
                          ElementsAre(whole(0, -1, 16), whole(2, -1, 4), whole(2, 0, 4), whole(2, 1, 4))));
}

TEST(CheckpointShares, WorkersWithoutTensorsSaveNothing) {
  EXPECT_THAT(shares_of({parameter(1)}, 0, 3),
              ElementsAre(ElementsAre(whole(0, -1, 4)), IsEmpty(), IsEmpty()));
}

TEST(CheckpointShares, ShardedStateIsSavedByWhoeverHoldsIt) {
  EXPECT_THAT(shares_of({parameter(kChunk + 5), parameter(3)}, 1, 2, true),
              ElementsAre(ElementsAre(whole(0, -1, kChunkBytes + 20), part(0, 0, {0, kChunkBytes})),
                          ElementsAre(whole(1, -1, 12), part(0, 0, {kChunkBytes, kChunkBytes + 20}),
                                      whole(1, 0, 12))));
  EXPECT_THAT(shares_of({parameter(kChunk + 5)}, 0, 2, true),
              ElementsAre(ElementsAre(whole(0, -1, kChunkBytes + 20)), IsEmpty()));
}

}  // namespace
}  // namespace lockstep::layout
