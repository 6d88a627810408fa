#include "parallel/checkpoint_shares.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

Parameter parameter(int64_t count, ParameterRole role = ParameterRole::weight) {
  Parameter parameter;
  parameter.spec.shape = Shape{count};
  parameter.spec.role = role;
  return parameter;
}

Graph graph_of(std::vector<Parameter> parameters) {
  Graph graph;
  graph.parameters = std::move(parameters);
  return graph;
}

TEST(CheckpointShares, OneRankSavesEverythingParametersFirst) {
  const auto graph = graph_of({parameter(3), parameter(2, ParameterRole::statistic), parameter(1)});
  EXPECT_THAT(divide_checkpoint(graph, 2, 1),
              ElementsAre(std::vector<SavedTensor>{
                  {0, -1, 12}, {1, -1, 8}, {2, -1, 4}, {0, 0, 12}, {0, 1, 12}, {2, 0, 4}, {2, 1, 4}}));
}

TEST(CheckpointShares, LargestFirstToWhoeverHasLeast) {
  // Bytes with one slot of state: 40, 8, 80, 24, 48.
  const auto graph = graph_of({parameter(5), parameter(1), parameter(10), parameter(3), parameter(6)});
  // 80 to rank 0, 48 to rank 1, 40 to rank 1 (88), 24 to rank 0 (104), 8 to rank 1 (96).
  const auto shares = divide_checkpoint(graph, 1, 2);
  EXPECT_THAT(shares,
              ElementsAre(std::vector<SavedTensor>{{2, -1, 40}, {3, -1, 12}, {2, 0, 40}, {3, 0, 12}},
                          std::vector<SavedTensor>{
                              {0, -1, 20}, {1, -1, 4}, {4, -1, 24}, {0, 0, 20}, {1, 0, 4}, {4, 0, 24}}));
  EXPECT_EQ(size_bytes_of(shares[0]), 104);
  EXPECT_EQ(size_bytes_of(shares[1]), 96);
}

TEST(CheckpointShares, AmongEqualsOrderDecides) {
  const auto graph = graph_of({parameter(2), parameter(2), parameter(2)});
  EXPECT_THAT(divide_checkpoint(graph, 0, 2), ElementsAre(std::vector<SavedTensor>{{0, -1, 8}, {2, -1, 8}},
                                                          std::vector<SavedTensor>{{1, -1, 8}}));
}

TEST(CheckpointShares, StatisticsWeighWithoutState) {
  // With two slots: 24 for the weight, 16 for the statistic, 12 for the small weight.
  const auto graph = graph_of({parameter(4, ParameterRole::statistic), parameter(2), parameter(1)});
  EXPECT_THAT(divide_checkpoint(graph, 2, 2),
              ElementsAre(std::vector<SavedTensor>{{1, -1, 8}, {1, 0, 8}, {1, 1, 8}},
                          std::vector<SavedTensor>{{0, -1, 16}, {2, -1, 4}, {2, 0, 4}, {2, 1, 4}}));
}

TEST(CheckpointShares, RanksWithoutTensorsSaveNothing) {
  const auto shares = divide_checkpoint(graph_of({parameter(1)}), 0, 3);
  EXPECT_THAT(shares, ElementsAre(std::vector<SavedTensor>{{0, -1, 4}}, IsEmpty(), IsEmpty()));
  EXPECT_EQ(size_bytes_of(shares[1]), 0);
}

}  // namespace
}  // namespace lockstep
