// Every config that lockstep ships, and the examples that are programs, have one rank's bits in every
// schedule, for a few steps: made small, on data that are drawn.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "layout/layout.h"
#include "lockstep/error.h"
#include "net/search.h"
#include "net/shipped_configs.h"
#include "net/training.h"
#include "train/worker/compile_options.h"

namespace lockstep::net {
namespace {

/// Why a model cannot have a layout.
enum class Refusal { none, too_few_layers, two_sorts_of_parameters, idle_servers, other };

/// By what the error names.
Refusal refusal_of(const std::string& message) {
  const auto names = [&](const char* words) { return message.find(words) != std::string::npos; };
  if (names("too few for")) return Refusal::too_few_layers;
  if (names("two sorts of parameters")) return Refusal::two_sorts_of_parameters;
  if (names("would own nothing")) return Refusal::idle_servers;
  return Refusal::other;
}

const char* name_of(Refusal refusal) {
  switch (refusal) {
    case Refusal::none:
      return "none";
    case Refusal::too_few_layers:
      return "too few layers";
    case Refusal::two_sorts_of_parameters:
      return "two sorts of parameters";
    case Refusal::idle_servers:
      return "idle servers";
    case Refusal::other:
      return "another reason";
  }
  return "";
}

/// Small models, and into how many pieces a pipeline can cut them. All else that is refused fails, and so
/// does what is not refused any more.
struct FewLayers {
  const char* config;
  int pieces;
};
constexpr FewLayers kFewLayers[] = {
    {"configs/mnist_mlp.textproto", 5},        {"configs/reviews_lstm.textproto", 7},
    {"configs/shakespeare_lstm.textproto", 6}, {"examples/lines/languages.textproto", 5},
    {"examples/own_model/spirals.cpp", 4},     {"examples/own_op/waves.textproto", 6},
    {"examples/tables/flowers.textproto", 4}};

Refusal expected_refusal(const std::string& config, const layout::Layout& layout) {
  for (const FewLayers& few : kFewLayers)
    if (config == few.config && layout.pieces() > few.pieces) return Refusal::too_few_layers;
  return Refusal::none;
}

/// Ways to update. An interleaved pipeline takes multiples of its stages, which 3 replicas have of 4 stages.
std::vector<std::string> updates(const std::string& schedule, int pp) {
  const int replicas = schedule == "interleaved" && pp == 4 ? 3 : 2;
  return {"dp=1",
          fmt::format("dp={},shard=optimizer", replicas),
          "dp=1,sync=ps,servers=2",
          fmt::format("dp={}", replicas),
          fmt::format("dp=1,sync=ps,placement=colocated,servers={}", pp),
          fmt::format("dp={},sync=ps,aggregate=host", replicas)};
}

/// Every schedule on 2 to 4 stages with each kind of recomputation. Which of the ways to update each gets
/// goes around, from day to day and from config to config, unless all are asked for.
std::vector<std::string> layouts(uint64_t turn) {
  const bool all = std::getenv("LOCKSTEP_SHIPPED_ALL") != nullptr;
  std::vector<std::string> texts{"dp=2",
                                 "dp=3,shard=optimizer",
                                 "dp=2,sync=ps",
                                 "dp=2,recompute=full",
                                 "dp=2,recompute=selective",
                                 "dp=3,aggregate=host"};
  for (const char* schedule : {"gpipe", "1f1b", "interleaved", "zero_bubble"})
    for (const char* recompute : {"none", "selective", "full"})
      for (const int pp : {2, 3, 4}) {
        const std::vector<std::string> ways = updates(schedule, pp);
        ++turn;
        for (size_t way = 0; way < ways.size(); ++way)
          if (all || way == (turn + turn / ways.size()) % ways.size())
            texts.push_back(
                fmt::format("pp={},schedule={},recompute={},{}", pp, schedule, recompute, ways[way]));
      }
  return texts;
}

class Shipped : public testing::TestWithParam<std::string> {
 protected:
  /// Every config has another turn, so that together they try all ways of each schedule every day.
  static uint64_t turn() {
    const std::vector<std::string> all = shipped_configs();
    return seed_of_today() + static_cast<uint64_t>(std::ranges::find(all, GetParam()) - all.begin());
  }

  static Refusal refusal(const config::RunConfig& config, int ranks) {
    try {
      train::compile_run(config, {.world_size = ranks}).check();
      return Refusal::none;
    } catch (const ConfigError& error) {
      const Refusal refusal = refusal_of(error.what());
      if (refusal == Refusal::other) ADD_FAILURE() << error.what();
      return refusal;
    }
  }
};

TEST_P(Shipped, HasTheSameBitsInEveryLayout) {
  fmt::print("turn {}; LOCKSTEP_NET_SEED={} tries the same layouts again\n", turn(), seed_of_today());
  for (const bool drops : {false, true}) {
    if (drops && !takes_dropout(GetParam())) continue;
    const Trained one = train_here(small_config(GetParam(), "dp=1", drops), {});
    int tried = 0;
    const std::vector<std::string> all = layouts(turn() + (drops ? 3 : 0));
    ASSERT_GE(all.size(), 42u);
    for (const std::string& layout : all) {
      const config::RunConfig config = small_config(GetParam(), layout, drops);
      const int ranks = config.parallel.layout.world_size();
      const Refusal found = refusal(config, ranks);
      EXPECT_STREQ(name_of(found), name_of(expected_refusal(GetParam(), config.parallel.layout))) << layout;
      if (found != Refusal::none) continue;
      ++tried;
      EXPECT_EQ(difference(one, train_here(config, {.ranks = ranks})), "")
          << layout << (drops ? ", with dropout" : "");
    }
    fmt::print("{} layouts{}\n", tried, drops ? ", with dropout" : "");
  }
}

INSTANTIATE_TEST_SUITE_P(All, Shipped, testing::ValuesIn(shipped_configs()), [](const auto& info) {
  std::string name = info.param.substr(0, info.param.rfind('.'));
  std::ranges::replace_if(
      name, [](char letter) { return !std::isalnum(static_cast<unsigned char>(letter)); }, '_');
  return name;
});

}  // namespace
}  // namespace lockstep::net
