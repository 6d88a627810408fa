#include "model/pieces.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>

#include "lockstep/error.h"
#include "mentions.h"
#include "model/node_times.h"
#include "model/partition.h"
#include "model/presets.h"

namespace lockstep::model {
namespace {

Graph gpt_in_pieces(int layers) {
  return make_graph(make_gpt(
      {.vocabulary = 65, .context = 16, .layers = layers, .heads = 2, .width = 32, .tied_head = true}));
}

std::vector<double> times_of(const Graph& graph) { return group_times(graph, estimated_times(graph, 1)); }

int group_after(const Graph& graph, int node) {
  return node + 1 < static_cast<int>(graph.nodes.size()) ? graph.node(node + 1).group : graph.group_count;
}

struct Worth {
  double slowest = 0;
  int64_t bytes = 0;
};

Worth worth_of(const Graph& graph, const std::vector<int>& last_nodes) {
  const std::vector<double> times = times_of(graph);
  Worth worth;
  int first = 0;
  for (const int node : last_nodes) {
    const int last = group_after(graph, node);
    double time = 0;
    for (int g = first; g < last; ++g) time += times[static_cast<size_t>(g)];
    worth.slowest = std::max(worth.slowest, time);
    first = last;
    if (last == graph.group_count) continue;
    for (const int v : values_crossing(graph, node)) {
      const auto& spec = graph.value(v).spec;
      worth.bytes += spec.shape.count() * size_of(spec.dtype) * (graph.value(v).needs_gradient ? 2 : 1);
    }
  }
  return worth;
}

/// Every way to cut after groups.
void for_divisions(const Graph& graph, int pieces,
                   const std::function<void(const std::vector<int>&)>& visit) {
  std::vector<int> ends;
  for (int n = 0; n + 1 < static_cast<int>(graph.nodes.size()); ++n)
    if (graph.node(n).group != graph.node(n + 1).group) ends.push_back(n);
  std::vector<int> cuts;
  const std::function<void(size_t)> choose = [&](size_t next) {
    if (static_cast<int>(cuts.size()) + 1 == pieces) {
      std::vector<int> all = cuts;
      all.push_back(static_cast<int>(graph.nodes.size()) - 1);
      return visit(all);
    }
    for (size_t i = next; i < ends.size(); ++i) {
      cuts.push_back(ends[i]);
      choose(i + 1);
      cuts.pop_back();
    }
  };
  choose(0);
}

TEST(Pieces, AreAsFastAsAnyDivisionAndThenPassOnTheFewestBytes) {
  for (const int pieces : {2, 3, 4}) {
    const Graph graph = gpt_in_pieces(pieces == 4 ? 1 : 2);
    const std::vector<int> found = divide_into_pieces(graph, times_of(graph), pieces);
    ASSERT_EQ(static_cast<int>(found.size()), pieces);
    const Worth best = worth_of(graph, found);
    double fastest = std::numeric_limits<double>::infinity();
    for_divisions(graph, pieces,
                  [&](const auto& cuts) { fastest = std::min(fastest, worth_of(graph, cuts).slowest); });
    EXPECT_NEAR(best.slowest, fastest, 1e-9 * fastest);
    for_divisions(graph, pieces, [&](const auto& cuts) {
      const Worth other = worth_of(graph, cuts);
      if (other.slowest <= fastest * (1 + 1e-9)) {
        EXPECT_GE(other.bytes, best.bytes);
      }
    });
  }
}

TEST(Pieces, OfAWholeModelAreOne) {
  const Graph graph = gpt_in_pieces(1);
  EXPECT_EQ(divide_into_pieces(graph, times_of(graph), 1),
            std::vector<int>{static_cast<int>(graph.nodes.size()) - 1});
}

TEST(Pieces, EndBetweenGroupsAndSegmentsEndWithThem) {
  const Graph graph = gpt_in_pieces(3);
  for (const int pieces : {1, 2, 5, 8}) {
    const std::vector<int> ends = divide_into_pieces(graph, times_of(graph), pieces);
    for (size_t i = 0; i + 1 < ends.size(); ++i)
      EXPECT_NE(graph.node(ends[i]).group, graph.node(ends[i] + 1).group);
    for (const int64_t bucket_bytes : {int64_t{1}, int64_t{20000}, int64_t{1} << 40}) {
      const Partition partition = make_partition(graph, bucket_bytes, ends);
      EXPECT_EQ(partition.piece_count(), pieces);
      for (int s = 0; s < static_cast<int>(partition.segments.size()); ++s) {
        const int piece = partition.piece_of(s);
        EXPECT_LE(partition.segment(s).last_node, ends[static_cast<size_t>(piece)]);
        if (piece > 0) {
          EXPECT_GT(partition.segment(s).first_node, ends[static_cast<size_t>(piece) - 1]);
        }
      }
    }
  }
}

TEST(Pieces, OfAModelWithFewerGroupsAreRefused) {
  const Graph graph = make_graph(make_mlp({.image = {4, 4, 1}, .hidden = {8}, .classes = 3}));
  EXPECT_NO_THROW(divide_into_pieces(graph, times_of(graph), graph.group_count));
  try {
    divide_into_pieces(graph, times_of(graph), graph.group_count + 1);
    FAIL() << "nothing was thrown";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("at most " + std::to_string(graph.group_count)));
  }
}

TEST(Pieces, ValuesThatCrossACutAreCountedOnce) {
  const Graph graph = gpt_in_pieces(2);
  for (int n = 0; n + 1 < static_cast<int>(graph.nodes.size()); ++n) {
    auto crossing = values_crossing(graph, n);
    std::ranges::sort(crossing);
    EXPECT_TRUE(std::ranges::adjacent_find(crossing) == crossing.end());
    for (const int v : crossing) {
      EXPECT_EQ(graph.value(v).storage, v);
      EXPECT_LE(graph.value(v).producer, n);
    }
  }
}

TEST(Pieces, BeginWithNamedLayers) {
  const Graph graph = gpt_in_pieces(2);
  const auto node_named = [&](const std::string& name) {
    for (size_t n = 0; n < graph.nodes.size(); ++n)
      if (graph.nodes[n].name == name) return static_cast<int>(n);
    return -1;
  };
  // Forks before a layer go with it, though nobody names them.
  const int fork = node_named("h.0.mlp.residual.fork");
  ASSERT_EQ(fork + 1, node_named("h.1.ln_1"));
  EXPECT_EQ(cut_before(graph, {"h.1.ln_1"}),
            (std::vector<int>{fork - 1, static_cast<int>(graph.nodes.size()) - 1}));
  EXPECT_EQ(cut_before(graph, {"h.0.mlp.residual.fork", "h.1.attn.c_attn"}),
            (std::vector<int>{fork - 1, node_named("h.1.attn.c_attn") - 1,
                              static_cast<int>(graph.nodes.size()) - 1}));
  EXPECT_EQ(cut_before(graph, {}), (std::vector<int>{static_cast<int>(graph.nodes.size()) - 1}));
}

TEST(Pieces, ThatCannotBeginThereNameWhereTheyCan) {
  const Graph graph = gpt_in_pieces(2);
  const auto refusal = [&](const std::vector<std::string>& names) {
    try {
      cut_before(graph, names);
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  using testing::HasSubstr;
  EXPECT_THAT(refusal({"h.1.ln_3"}), Mentions("'h.1.ln_3' ... 'h.1.ln_"));
  EXPECT_THAT(refusal({"h.0.mlp.gelu"}), Mentions("'h.0.mlp.gelu' ... 'h.0.mlp.c_fc' ... or with '"));
  EXPECT_THAT(refusal({"h.1.ln_1", "h.0.ln_2"}), HasSubstr("'h.0.ln_2'"));
  EXPECT_THAT(refusal({"h.1.ln_1", "h.1.ln_1"}), HasSubstr("'h.1.ln_1'"));
  EXPECT_THAT(refusal({"wte"}), HasSubstr("'wte'"));
}

TEST(Pieces, AreTheFastestOfThoseThatFit) {
  const Graph graph = gpt_in_pieces(2);
  const auto at_most = [](int most) {
    return [most](int, int first, int last) { return last - first <= most; };
  };
  const int groups = graph.group_count;
  for (const int pieces : {2, 3})
    for (int most = 1; most <= groups; ++most) {
      const std::vector<int> found = divide_into_pieces(graph, times_of(graph), pieces, at_most(most));
      double fastest = std::numeric_limits<double>::infinity();
      for_divisions(graph, pieces, [&](const std::vector<int>& last_nodes) {
        int first = 0;
        bool fits = true;
        for (const int node : last_nodes) {
          fits = fits && group_after(graph, node) - first <= most;
          first = group_after(graph, node);
        }
        if (fits) fastest = std::min(fastest, worth_of(graph, last_nodes).slowest);
      });
      EXPECT_EQ(found.empty(), fastest == std::numeric_limits<double>::infinity());
      if (!found.empty()) {
        EXPECT_DOUBLE_EQ(worth_of(graph, found).slowest, fastest);
      }
    }
}

}  // namespace
}  // namespace lockstep::model
