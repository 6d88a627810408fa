#include "parallel/layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/error.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

std::string refusal(const std::string& text) {
  try {
    parse_layouts(text);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Layout, LeftOutKeysAreOneReplicaOnOneProcess) {
  const Layout layout = parse_layout("dp=3");
  EXPECT_EQ(layout.data_parallel, 3);
  EXPECT_EQ(layout.pipeline_stages, 1);
  EXPECT_EQ(layout.sync, LayoutSync::all_reduce);
  EXPECT_EQ(layout.servers, 0);
  EXPECT_EQ(layout.world_size(), 3);
  EXPECT_EQ(parse_layout("pp=2").world_size(), 2);
}

TEST(Layout, ReadsEveryKeyInAnyOrderWithBlanks) {
  const Layout layout =
      parse_layout(" bound=2, mode = stale,servers=3,sync=ps ,schedule=zero_bubble,pp=4,dp=2 ");
  EXPECT_EQ(layout, (Layout{.data_parallel = 2,
                            .pipeline_stages = 4,
                            .schedule = PipelineSchedule::zero_bubble,
                            .sync = LayoutSync::parameter_server,
                            .servers = 3,
                            .mode = ServerMode::stale,
                            .bound = 2}));
  EXPECT_EQ(layout.world_size(), 11);
}

TEST(Layout, TextReadsBackAsTheSameLayout) {
  const std::pair<std::string, std::string> cases[] = {
      {"pp=1", "dp=1"},
      {"sync=all_reduce,dp=4", "dp=4"},
      {"dp=2,pp=2,schedule=1f1b", "dp=2,pp=2"},
      {"schedule=interleaved,dp=2,pp=2", "dp=2,pp=2,schedule=interleaved"},
      {"dp=2,sync=ps", "dp=2,sync=ps,servers=1"},
      {"dp=2,sync=ps,mode=async", "dp=2,sync=ps,servers=1,mode=async"},
      {"dp=2,sync=ps,mode=stale", "dp=2,sync=ps,servers=1,mode=stale,bound=1"},
  };
  for (const auto& [text, shortest] : cases) {
    EXPECT_EQ(to_string(parse_layout(text)), shortest);
    EXPECT_EQ(parse_layout(shortest), parse_layout(text));
  }
}

TEST(Layout, SemicolonsSeparateLayouts) {
  const auto layouts = parse_layouts("dp=1; dp=2;dp=2,pp=2;");
  ASSERT_EQ(layouts.size(), 3u);
  EXPECT_EQ(layouts[0].world_size(), 1);
  EXPECT_EQ(layouts[1].world_size(), 2);
  EXPECT_EQ(layouts[2].world_size(), 4);
}

TEST(Layout, RefusalsNameTheKeyAndWhatItTakes) {
  EXPECT_THAT(refusal(""), HasSubstr("no layout is named"));
  EXPECT_THAT(refusal(" ; "), HasSubstr("no layout is named"));
  EXPECT_THAT(refusal("2"), HasSubstr("'2' is not key=value"));
  EXPECT_THAT(refusal("dp=2,,pp=2"), HasSubstr("'' is not key=value"));
  EXPECT_THAT(refusal("dp=0"), HasSubstr("layout 'dp=0': dp takes a whole number from 1 to 65536, not '0'"));
  EXPECT_THAT(refusal("dp=-1"), HasSubstr("dp takes a whole number"));
  EXPECT_THAT(refusal("dp=2x"), HasSubstr("not '2x'"));
  EXPECT_THAT(refusal("dp=99999999999"), HasSubstr("dp takes a whole number"));
  EXPECT_THAT(refusal("dp=1,dp=2"), HasSubstr("dp stands twice"));
  EXPECT_THAT(refusal("server=1"), HasSubstr("no key 'server' (did you mean 'servers'?)"));
  EXPECT_THAT(refusal("dp=1; pp=2,schedule=1f1c"),
              HasSubstr("schedule takes gpipe, 1f1b, interleaved, zero_bubble, not "
                        "'1f1c' (did you mean '1f1b'?)"));
  EXPECT_THAT(refusal("dp=2,sync=allreduce"), HasSubstr("did you mean 'all_reduce'?"));
  EXPECT_THAT(refusal("dp=65536,pp=2"), HasSubstr("131072 processes"));
}

TEST(Layout, KeysThatWouldBeIgnoredAreRefused) {
  EXPECT_THAT(refusal("dp=2,schedule=1f1b"), HasSubstr("schedule has a meaning only with pp above 1"));
  EXPECT_THAT(refusal("dp=2,servers=1"), HasSubstr("servers has a meaning only with sync=ps"));
  EXPECT_THAT(refusal("dp=2,mode=async"), HasSubstr("mode has a meaning only with sync=ps"));
  EXPECT_THAT(refusal("dp=2,sync=ps,bound=2"), HasSubstr("bound has a meaning only with mode=stale"));
}

TEST(Layout, WhatThisVersionCannotRunIsNamed) {
  require_available(parse_layout("dp=7"));
  const auto message = [](const char* text) {
    try {
      require_available(parse_layout(text));
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string("available");
  };
  EXPECT_THAT(message("pp=2"),
              HasSubstr("pipeline stages (pp above 1) are not available in this version; dp=N"));
  EXPECT_THAT(message("dp=2,sync=ps"), HasSubstr("parameter servers (sync=ps) are not available"));
  EXPECT_THAT(message("pp=2,sync=ps"), HasSubstr("pipeline stages (pp above 1) and parameter servers"));
}

}  // namespace
}  // namespace lockstep
