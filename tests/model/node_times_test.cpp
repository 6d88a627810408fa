#include "model/node_times.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "base/hash.h"
#include "lockstep/error.h"
#include "mentions.h"
#include "model/presets.h"

namespace lockstep::model {
namespace {

using ::testing::HasSubstr;

Graph mlp(std::vector<int64_t> hidden = {8}) {
  return make_graph(make_mlp({.image = {4, 4, 1}, .hidden = std::move(hidden), .classes = 3}));
}

/// Each node takes one second more than the one before it.
Profile profile_of(const Graph& graph) {
  Profile profile{
      .source = "p", .model = to_hex(hash_of(graph)), .device = "cpu", .micro_batch = 4, .nodes = {}};
  for (const auto& node : graph.nodes)
    profile.nodes.push_back({node.name, {static_cast<double>(profile.nodes.size() + 1), 0, 0}});
  return profile;
}

std::string times_refusal(const Graph& graph, const Profile& profile) {
  try {
    measured_times(graph, 1, profile);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "taken";
}

TEST(NodeTimes, AreOperationsAndBytesOfAllSamples) {
  const Graph graph = mlp();
  const auto& linear = *std::ranges::find(graph.nodes, "fc1", &Node::name);
  const NodeTime time = estimated_times(graph, 10)[static_cast<size_t>(&linear - graph.nodes.data())];
  // 16 inputs, 8 outputs and a bias; at least inputs, outputs, weights and bias pass through memory.
  EXPECT_EQ(time.forward, 10 * 8 * (2 * 16 + 1) + kOperationsPerByte * 4 * (10 * (16 + 8) + 16 * 8 + 8));
  EXPECT_GT(time.backward_weight, 0);
}

TEST(NodeTimes, ThatWereMeasuredAreInProportionToTheMicroBatch) {
  const Graph graph = mlp();
  const auto times = measured_times(graph, 8, profile_of(graph));
  ASSERT_EQ(times.size(), graph.nodes.size());
  for (size_t n = 0; n < times.size(); ++n)
    EXPECT_EQ(times[n], (NodeTime{2 * static_cast<double>(n + 1), 0, 0}));
  const auto groups = group_times(graph, times);
  const auto count = static_cast<double>(times.size());
  EXPECT_EQ(std::accumulate(groups.begin(), groups.end(), 0.0), count * (count + 1));
}

TEST(NodeTimes, OfAnotherModelAreRefused) {
  const Graph graph = mlp();
  EXPECT_EQ(times_refusal(graph, profile_of(graph)), "taken");
  Profile profile = profile_of(graph);
  profile.nodes[1].name = "other";
  EXPECT_THAT(times_refusal(graph, profile), HasSubstr("layer 2"));
  // Also one whose layers have the same names.
  for (const Graph& other : {mlp({8, 8}), mlp({9})})
    EXPECT_THAT(times_refusal(other, profile_of(graph)), Mentions("another model ... lockstep profile"));
  profile = profile_of(graph);
  profile.nodes.pop_back();
  EXPECT_THAT(times_refusal(graph, profile), Mentions("layers ... this model"));
  profile = profile_of(graph);
  for (auto& node : profile.nodes) node.seconds = {};
  EXPECT_THAT(times_refusal(graph, profile), Mentions("no layer ... time"));
  profile = profile_of(graph);
  profile.storage = DType::bfloat16;
  EXPECT_THAT(times_refusal(graph, profile), Mentions("bfloat16 ... float32"));
}

}  // namespace
}  // namespace lockstep::model
