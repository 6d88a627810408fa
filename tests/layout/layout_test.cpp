#include "layout/layout.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <tuple>
#include <utility>

#include "base/text.h"
#include "lockstep/error.h"
#include "mentions.h"

namespace lockstep::layout {
namespace {

using testing::HasSubstr;

/// The message of the ConfigError that `action` ends with, or "accepted".
template <class Action>
std::string layout_refusal(const Action& action) {
  try {
    action();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

std::string refusal(const std::string& text) {
  return layout_refusal([&] { parse_layouts(text); });
}

const LayoutKey& key_named(std::string_view name) {
  for (const auto& key : layout_keys())
    if (key.name == name) return key;
  throw InternalError("no such key");
}

TEST(Layout, LeftOutKeysTakeTheirDefaults) {
  const Layout layout = parse_layout("dp=3");
  EXPECT_EQ(layout.dp, 3);
  EXPECT_EQ(layout, Layout{.dp = 3});
  EXPECT_EQ(layout.world_size(), 3);
  EXPECT_EQ(parse_layout("pp=2"), Layout{.pp = 2});
  EXPECT_EQ(parse_layout("pp=2,schedule=interleaved").chunks, 2);
  EXPECT_EQ(parse_layout("sync=ps").servers, 1);
  EXPECT_EQ(parse_layout("sync=ps,mode=stale").bound, 1);
}

TEST(Layout, ReadsEveryKeyInAnyOrderWithBlanks) {
  EXPECT_EQ(parse_layout(" bound=0, mode = stale,servers=4,sync=ps ,schedule=interleaved,pp=4,dp=2,chunks=5,"
                         "recompute=selective,placement=colocated,assign=whole,aggregate=host"),
            (Layout{.dp = 2,
                    .pp = 4,
                    .schedule = PipelineSchedule::interleaved,
                    .chunks = 5,
                    .recompute = Recompute::selective,
                    .sync = SyncMethod::parameter_server,
                    .servers = 4,
                    .placement = ServerPlacement::colocated,
                    .assign = ServerAssignment::whole,
                    .aggregate = Aggregation::host,
                    .mode = ServerMode::stale,
                    .bound = 0}));
  EXPECT_EQ(parse_layout("shard=optimizer").shard, ShardedState::optimizer);
  EXPECT_EQ(parse_layout("pp=2,schedule=gpipe").schedule, PipelineSchedule::gpipe);
  EXPECT_EQ(parse_layout("pp=2,schedule=1f1b").schedule, PipelineSchedule::one_f_one_b);
  EXPECT_EQ(parse_layout("pp=2,schedule=zero_bubble").schedule, PipelineSchedule::zero_bubble);
  EXPECT_EQ(parse_layout("recompute=full").recompute, Recompute::full);
  EXPECT_EQ(parse_layout("sync=ps,mode=async").mode, ServerMode::asynchronous);
}

TEST(Layout, DedicatedServersAreProcessesOfTheirOwn) {
  EXPECT_EQ(parse_layout("dp=2,pp=4,sync=ps,servers=3").world_size(), 11);
  EXPECT_EQ(parse_layout("dp=2,pp=4,sync=ps,servers=3").workers(), 8);
  EXPECT_EQ(parse_layout("dp=2,pp=4,sync=ps,servers=4,placement=colocated").world_size(), 8);
  EXPECT_EQ(parse_layout("dp=2,pp=4").world_size(), 8);
}

TEST(Layout, TextIsTheShortestThatReadsBackAsTheSameLayout) {
  const std::pair<std::string, std::string> cases[] = {
      {"pp=1", "pp=1"},
      {"sync=all_reduce", "pp=1"},
      {"sync=all_reduce,dp=4", "dp=4"},
      {"dp=2,pp=2,schedule=1f1b", "dp=2,pp=2"},
      {"schedule=interleaved,dp=2,pp=2", "dp=2,pp=2,schedule=interleaved"},
      {"chunks=4,schedule=interleaved,pp=2", "pp=2,schedule=interleaved,chunks=4"},
      {"shard=optimizer,recompute=full,dp=2", "dp=2,recompute=full,shard=optimizer"},
      {"dp=2,sync=ps,servers=1,placement=dedicated,assign=sharded,aggregate=none,mode=sync", "dp=2,sync=ps"},
      {"dp=2,sync=ps,mode=async", "dp=2,sync=ps,mode=async"},
      {"dp=2,sync=ps,mode=stale,bound=1", "dp=2,sync=ps,mode=stale"},
      {"dp=2,sync=ps,mode=stale,bound=0", "dp=2,sync=ps,mode=stale,bound=0"},
  };
  for (const auto& [text, shortest] : cases) {
    EXPECT_EQ(to_string(parse_layout(text)), shortest);
    EXPECT_EQ(parse_layout(shortest), parse_layout(text));
  }
}

/// Every value of every key, beside what it needs.
TEST(Layout, EveryValueOfEveryKeySurvivesItsText) {
  for (const auto& key : layout_keys()) {
    const int count = key.words.empty() ? 4 : static_cast<int>(key.words.size());
    for (int value = key.lowest; value < key.lowest + count; ++value) {
      Layout layout{.dp = key.name == "pushes" ? 1 : 8};
      for (const LayoutKey* one = &key; !one->needs.empty();) {
        const int needed = one->needed_value;
        one = &key_named(one->needs);
        one->set(layout, needed);
      }
      if (key.name == "assign") layout.servers = 2;  // one has everything
      key.set(layout, value);
      ASSERT_TRUE(has_meaning(key, layout)) << key.name;
      EXPECT_EQ(key.get(layout), value);
      EXPECT_EQ(parse_layout(to_string(layout)), layout) << to_string(layout);
      const std::string stated = fmt::format("{}={}", key.name, value_text(key, value));
      EXPECT_EQ(to_string(layout).find(stated) != std::string::npos, value != key.otherwise()) << stated;
    }
  }
}

TEST(Layout, KeysAreNamedOnceAndNeedKeysThereAre) {
  std::set<std::string_view> names;
  for (const auto& key : layout_keys()) {
    EXPECT_TRUE(names.insert(key.name).second) << key.name;
    EXPECT_FALSE(key.meaning.empty()) << key.name;
    if (!key.needs.empty()) key_named(key.needs);
    EXPECT_THAT(layout_help(),
                HasSubstr(fmt::format("  {:<10} {} [{}]\n", key.name, takes_text(key), otherwise_text(key))));
  }
  EXPECT_EQ(names.size(), 14u);
  EXPECT_EQ(otherwise_text(key_named("dp")), "(processes - dedicated servers) / pp");
  EXPECT_EQ(otherwise_text(key_named("pushes")), "one per worker");
  EXPECT_EQ(otherwise_text(key_named("bound")), "1");
  EXPECT_EQ(takes_text(key_named("bound")), "a whole number from 0 to 65536");
  EXPECT_EQ(needs_text(key_named("schedule")), "pp above 1");
  EXPECT_EQ(needs_text(key_named("bound")), "mode=stale");
}

TEST(Layout, PushesOfAStepAreThoseOfItsWorkersOrMore) {
  EXPECT_EQ(resolve(parse_layout("sync=ps,mode=async"), 4).pushes_per_step(), 3);
  EXPECT_EQ(resolve(parse_layout("sync=ps,mode=async,pushes=5"), 4).pushes_per_step(), 5);
  EXPECT_EQ(resolve(parse_layout("sync=ps,mode=async,pushes=3"), 4),
            resolve(parse_layout("sync=ps,mode=async"), 4));
  EXPECT_THAT(refusal("dp=3,sync=ps,mode=async,pushes=2"),
              Mentions("2 pushes ... 3 workers ... 'dp=3,sync=ps,mode=async'"));
  EXPECT_THAT(layout_refusal([] { resolve(parse_layout("sync=ps,mode=async,pushes=2"), 4); }),
              Mentions("2 pushes ... 3 workers ... pushes=3"));
  const Layout lost = without_workers(resolve(parse_layout("sync=ps,mode=async"), 4), 2);
  EXPECT_EQ(to_string(lost), "dp=1,sync=ps,mode=async,pushes=3");
  EXPECT_EQ(to_string(without_workers(parse_layout("dp=3,sync=ps,mode=async,pushes=5"), 1)),
            "dp=2,sync=ps,mode=async,pushes=5");
}

TEST(Layout, SemicolonsSeparateLayouts) {
  const auto layouts = parse_layouts("dp=1; dp=2;dp=2,pp=2;");
  ASSERT_EQ(layouts.size(), 3u);
  EXPECT_EQ(layouts[0].world_size(), 1);
  EXPECT_EQ(layouts[1].world_size(), 2);
  EXPECT_EQ(layouts[2].world_size(), 4);
}

TEST(Layout, RefusalsNameTheKeyAndWhatItTakes) {
  EXPECT_THAT(refusal(""), HasSubstr("no layout"));
  EXPECT_THAT(refusal(" ; "), HasSubstr("no layout"));
  EXPECT_THAT(layout_refusal([] { parse_layout(" "); }), Mentions("layout '': ... empty"));
  EXPECT_THAT(refusal("2"), Mentions("'2' ... key=value"));
  EXPECT_THAT(refusal("dp=2,,pp=2"), Mentions("'' ... key=value"));
  EXPECT_THAT(refusal("dp=0"), Mentions("'dp=0' ... 1 ... 65536 ... '0'"));
  EXPECT_THAT(refusal("dp=-1"), HasSubstr("dp takes a whole number"));
  EXPECT_THAT(refusal("dp=2x"), HasSubstr("not '2x'"));
  EXPECT_THAT(refusal("dp="), HasSubstr("not ''"));
  EXPECT_THAT(refusal("dp=99999999999"), HasSubstr("dp takes a whole number"));
  EXPECT_THAT(refusal("pp=2,schedule=interleaved,chunks=1"), Mentions("chunks ... from 2"));
  EXPECT_THAT(refusal("sync=ps,mode=stale,bound=-1"), Mentions("bound ... from 0"));
  EXPECT_THAT(refusal("dp=1,dp=2"), Mentions("dp ... twice"));
  EXPECT_THAT(refusal("server=1"), Mentions("'server' ... did you mean 'servers'?"));
  EXPECT_THAT(refusal("dp=1; pp=2,schedule=1f1c"),
              Mentions("1f1b ... zero_bubble ... '1f1c' ... did you mean '1f1b'?"));
  EXPECT_THAT(refusal("dp=2,sync=allreduce"), HasSubstr("'all_reduce'"));
  EXPECT_THAT(refusal("dp=65536,pp=2"), HasSubstr("131072 processes"));
  EXPECT_THAT(refusal("sync=ps,servers=65536"), HasSubstr("65537 processes"));
  EXPECT_EQ(refusal("dp=32768,pp=2"), "accepted");
}

TEST(Layout, WhatWouldBeIgnoredIsRefusedWithTheNearestThatHasAMeaning) {
  const std::tuple<const char*, const char*, const char*> cases[] = {
      {"dp=2,schedule=1f1b", "schedule ... with pp above 1", "dp=2,pp=2"},
      {"dp=2,pp=1,schedule=gpipe", "schedule ... with pp above 1", "dp=2"},
      {"chunks=3", "chunks ... with schedule=interleaved", "pp=2,schedule=interleaved,chunks=3"},
      {"pp=4,chunks=3", "chunks ... with schedule=interleaved", "pp=4,schedule=interleaved,chunks=3"},
      {"pp=4,schedule=gpipe,chunks=3", "chunks ... with ", "pp=4,schedule=gpipe"},
      {"shard=optimizer,sync=ps", "shard ... with sync=all_reduce", "sync=ps"},
      {"dp=2,servers=3", "servers ... with sync=ps", "dp=2,sync=ps,servers=3"},
      {"dp=2,placement=colocated", "placement ... with ", "dp=2,sync=ps,placement=colocated"},
      {"dp=2,assign=whole", "assign ... with ", "dp=2,sync=ps,servers=2,assign=whole"},
      {"dp=2,mode=async", "mode ... with sync=ps", "dp=2,sync=ps,mode=async"},
      {"dp=2,sync=all_reduce,mode=async", "mode ... with sync=ps", "dp=2"},
      {"bound=2", "bound ... with mode=stale", "sync=ps,mode=stale,bound=2"},
      {"dp=2,sync=ps,bound=2", "bound ... with mode=stale", "dp=2,sync=ps,mode=stale,bound=2"},
      {"dp=2,sync=ps,mode=async,bound=2", "bound ... with ", "dp=2,sync=ps,mode=async"},
      {"dp=2,sync=all_reduce,mode=stale,bound=2", "mode ... with sync=ps", "dp=2"},
      {"sync=all_reduce,bound=2", "bound ... with mode=stale", "pp=1"},
  };
  for (const auto& [text, reason, nearest] : cases) {
    EXPECT_THAT(refusal(text), Mentions(reason)) << text;
    EXPECT_THAT(refusal(text), HasSubstr(fmt::format("(did you mean '{}'?)", nearest))) << text;
    EXPECT_EQ(refusal(nearest), "accepted") << nearest;
  }
}

TEST(Layout, WhatTheOnlyServerHasIsNotAssigned) {
  EXPECT_THAT(refusal("dp=2,sync=ps,assign=whole,mode=async"), HasSubstr("'dp=2,sync=ps,mode=async'"));
  EXPECT_EQ(refusal("dp=2,sync=ps,assign=sharded"), "accepted");
  EXPECT_EQ(refusal("dp=2,sync=ps,servers=2,assign=whole"), "accepted");
}

TEST(Layout, ColocatedServersAreNoMoreThanWorkers) {
  EXPECT_EQ(refusal("dp=2,pp=2,sync=ps,servers=4,placement=colocated"), "accepted");
  EXPECT_EQ(refusal("sync=ps,servers=4,placement=colocated"), "accepted") << "dp is not known yet";
  EXPECT_THAT(refusal("dp=3,sync=ps,servers=4,placement=colocated"),
              HasSubstr("'dp=3,sync=ps,servers=3,placement=colocated'"));
}

std::string resolved(const std::string& text, int world_size) {
  return to_string(resolve(parse_layout(text), world_size));
}

TEST(Resolve, GivesReplicasWhatTheWorldSizeLeaves) {
  EXPECT_EQ(to_string(resolve({}, 3)), "dp=3");
  EXPECT_EQ(to_string(resolve({}, 1)), "dp=1");
  EXPECT_EQ(resolved("dp=4", 4), "dp=4");
  EXPECT_EQ(resolved("pp=2", 6), "dp=3,pp=2");
  EXPECT_EQ(resolved("pp=2,sync=ps,servers=2", 6), "dp=2,pp=2,sync=ps,servers=2");
  EXPECT_EQ(resolved("sync=ps,servers=6,placement=colocated", 6),
            "dp=6,sync=ps,servers=6,placement=colocated");
  EXPECT_EQ(resolved("dp=2,pp=2,sync=ps,servers=2", 6), "dp=2,pp=2,sync=ps,servers=2");
}

TEST(Resolve, RefusesAWorldThatDoesNotFitWithTheArithmetic) {
  const auto message = [](const std::string& text, int world_size) {
    return layout_refusal([&] { resolve(parse_layout(text), world_size); });
  };
  EXPECT_EQ(message("dp=4", 2), "layout 'dp=4': takes 4 processes, but there are 2; start 4, or use 'dp=2'");
  EXPECT_EQ(message("dp=4", 1), "layout 'dp=4': takes 4 processes, but there is 1; start 4, or use 'dp=1'");
  EXPECT_EQ(message("dp=1", 3), "layout 'dp=1': takes 1 process, but there are 3; start 1, or use 'dp=3'");
  EXPECT_EQ(message("dp=2,pp=2", 6),
            "layout 'dp=2,pp=2': takes 2 x 2 workers = 4 processes, but there are 6; "
            "start 4, or use 'dp=3,pp=2'");
  EXPECT_EQ(
      message("dp=2,pp=2,sync=ps", 4),
      "layout 'dp=2,pp=2,sync=ps': takes 2 x 2 workers + 1 server = 5 processes, but there are 4; start 5, "
      "or use 'dp=4'");
  EXPECT_EQ(message("pp=2", 3),
            "layout 'pp=2': 3 processes cannot be divided into replicas of 2 stages; start 2 "
            "or 4, or use 'dp=3'");
  EXPECT_EQ(message("pp=4", 1),
            "layout 'pp=4': 1 process cannot be divided into replicas of 4 stages; start 4, "
            "or use 'dp=1'");
  EXPECT_THAT(
      message("pp=2,sync=ps,servers=2", 5),
      Mentions("'pp=2,sync=ps,servers=2' ... 5 ... 2 servers ... 3 ... 2 stages ... 4 or 6 ... 'dp=5'"));
  EXPECT_THAT(message("sync=ps", 1), Mentions("'sync=ps' ... 1 ... 1 server ... 0 ... 2 ... 'dp=1'"));
  EXPECT_EQ(
      message("sync=ps,servers=3,placement=colocated", 2),
      "layout 'sync=ps,servers=3,placement=colocated': 2 processes cannot be 3 servers; start 3, or use "
      "'dp=2'");
}

TEST(Layout, WorkersOfAllStagesServe) {
  EXPECT_THAT(layout_refusal([] { parse_layout("dp=2,pp=2,sync=ps,servers=3,placement=colocated"); }),
              Mentions("3 servers ... 2 stages ... 'dp=2,pp=2,sync=ps,servers=4,placement=colocated'"));
  EXPECT_THAT(layout_refusal([] { parse_layout("pp=2,sync=ps,placement=colocated"); }),
              Mentions("1 server ... 2 stages ... 'pp=2,sync=ps,servers=2,placement=colocated'"));
}

TEST(Layout, WhatThisVersionCannotRunIsNamedWithTheNearestThatItCan) {
  const auto message = [](const char* text) {
    return layout_refusal([&] { require_available(parse_layout(text)); });
  };
  EXPECT_EQ(message("dp=7"), "accepted");
  EXPECT_EQ(message("pp=1"), "accepted");
  EXPECT_EQ(message("dp=2,pp=2,schedule=gpipe,recompute=full"), "accepted");
  EXPECT_EQ(message("dp=2,sync=ps,servers=2,placement=colocated,assign=whole"), "accepted");
  EXPECT_EQ(message("dp=2,recompute=selective"), "accepted");
  EXPECT_THAT(message("dp=2,pp=2,sync=ps,mode=async"),
              Mentions("'dp=2,pp=2,sync=ps,mode=async': ... pp above 1 ... 'dp=2,pp=2,sync=ps'"));
  EXPECT_THAT(message("dp=2,pp=2,recompute=selective,sync=ps,mode=async"),
              Mentions("(recompute) ... pp above 1 ... 'dp=2,pp=2,sync=ps'"));
  EXPECT_EQ(message("dp=2,pp=2,shard=optimizer"), "accepted");
  EXPECT_EQ(message("dp=2,pp=2,sync=ps,mode=stale,bound=0"), "accepted");
}

/// The table of the keys in docs/cli.md is this one.
TEST(Layout, DocsListEveryKey) {
  std::string table;
  for (const auto& key : layout_keys()) {
    const std::string takes = key.words.empty() ? fmt::format("{} to {}", key.lowest, kMostProcesses)
                                                : fmt::format("`{}`", fmt::join(key.words, "`, `"));
    table += fmt::format("| `{}` | {} | {} | {}{} |\n", key.name, takes,
                         key.words.empty() ? otherwise_text(key) : fmt::format("`{}`", otherwise_text(key)),
                         key.needs.empty() ? "" : fmt::format("with `{}`: ", needs_text(key)), key.meaning);
  }
  EXPECT_NE(read_text_file(LOCKSTEP_DOCS "/cli.md").find(table), std::string::npos)
      << "docs/cli.md must contain:\n"
      << table;
}

}  // namespace
}  // namespace lockstep::layout
