#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "config_testing.h"
#include "mentions.h"

namespace lockstep::config {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

/// The layout of a small config with these overrides, as text.
std::string layout_with(const std::vector<std::string>& overrides) {
  return layout::to_string(parse(kSmallConfig, overrides).parallel.layout);
}

RunConfig with_option(const std::string& layout, const std::vector<std::string>& overrides = {},
                      const std::string& parallel = "") {
  return parse_run_config(kSmallConfig + parallel, "c.textproto", overrides, layout);
}

std::string option_refusal(const std::string& layout, const std::vector<std::string>& overrides = {}) {
  try {
    with_option(layout, overrides);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(LayoutFields, SayTheSameAsTheKeysOfALayout) {
  EXPECT_EQ(layout_with({}), "pp=1") << "dp is what the world size leaves";
  EXPECT_EQ(layout_with({"parallel.dp=2"}), "dp=2");
  EXPECT_EQ(layout_with({"parallel={dp: 2 pp: 4 schedule: INTERLEAVED chunks: 3 recompute: SELECTIVE}"}),
            "dp=2,pp=4,schedule=interleaved,chunks=3,recompute=selective");
  for (const auto& [value, word] : {std::pair("GPIPE", ",schedule=gpipe"), std::pair("ONE_F_ONE_B", ""),
                                    std::pair("ZERO_BUBBLE", ",schedule=zero_bubble")})
    EXPECT_EQ(layout_with({"parallel.pp=2", std::string("parallel.schedule=") + value}),
              std::string("pp=2") + word);
  EXPECT_EQ(layout_with({"parallel.recompute=FULL"}), "recompute=full");
  EXPECT_EQ(layout_with({"parallel.shard=OPTIMIZER"}), "shard=optimizer");
  EXPECT_EQ(layout_with({"parallel={sync: PS servers: 3 placement: COLOCATED assign: WHOLE aggregate: HOST "
                         "mode: STALE bound: 0}"}),
            "sync=ps,servers=3,placement=colocated,assign=whole,aggregate=host,mode=stale,bound=0");
  EXPECT_EQ(layout_with({"parallel={sync: PS mode: ASYNC}"}), "sync=ps,mode=async");
}

TEST(LayoutFields, EffectiveTextStatesThoseThatHaveAMeaningAndReadsBack) {
  for (const std::vector<std::string>& overrides : {std::vector<std::string>{},
                                                    {"parallel.dp=4"},
                                                    {"parallel.pp=2"},
                                                    {"parallel={sync: PS mode: STALE}"}}) {
    const auto run = parse(kSmallConfig, overrides);
    const auto again = parse(run.effective_text);
    EXPECT_EQ(again.parallel, run.parallel);
    EXPECT_EQ(again.config_hash, run.config_hash);
  }
  const std::string plain = parse(kSmallConfig).effective_text;
  for (const char* line : {"  pp: 1\n", "  recompute: NONE\n", "  shard: NONE\n", "  sync: ALL_REDUCE\n"})
    EXPECT_THAT(plain, HasSubstr(line));
  for (const char* field : {" dp:", "schedule:", "chunks:", "servers:", "mode:", "bound:"})
    EXPECT_THAT(plain, Not(HasSubstr(field)));
  const std::string stale = parse(kSmallConfig, {"parallel={dp: 2 sync: PS mode: STALE}"}).effective_text;
  for (const char* line : {"  dp: 2\n", "  sync: PS\n", "  servers: 1\n", "  mode: STALE\n", "  bound: 1\n"})
    EXPECT_THAT(stale, HasSubstr(line));
}

TEST(LayoutFields, WhatWouldBeIgnoredIsRefusedAtItsPlace) {
  EXPECT_THAT(
      refusal(kSmallConfig + "parallel { dp: 2\n  bound: 2 }\n"),
      Mentions("c.textproto:6:3: parallel.bound: ... mode=stale ... 'dp=2,sync=ps,mode=stale,bound=2'"));
  EXPECT_THAT(refusal(kSmallConfig, {"parallel.schedule=GPIPE"}),
              StartsWith("--set parallel.schedule=GPIPE: parallel.schedule: "));
  EXPECT_THAT(refusal(kSmallConfig, {"parallel={shard: OPTIMIZER sync: PS}"}), HasSubstr("parallel.shard: "));
  EXPECT_THAT(refusal(kSmallConfig, {"parallel={dp: 2 sync: PS placement: COLOCATED servers: 3}"}),
              HasSubstr("parallel.servers: "));
  EXPECT_THAT(refusal(kSmallConfig, {"parallel.sync=RING"}), HasSubstr("ALL_REDUCE, PS"));
}

TEST(LayoutFields, WhatCannotBeDividedIsRefusedAtItsPlace) {
  // More workers than virtual replicas.
  const std::vector<std::string> two = {"parallel.reduction=REPRODUCIBLE", "trainer.virtual_replicas=2"};
  EXPECT_THAT(refusal(kSmallConfig, {two[0], two[1], "parallel.dp=3"}), StartsWith("--set parallel.dp=3: "));
  EXPECT_THAT(refusal(kSmallConfig + "parallel {\n  dp: 3 }\n", two), StartsWith("c.textproto:6:3: "));
}

TEST(LayoutOption, IsTheSameAsSettingTheFields) {
  const auto set = parse(kSmallConfig, {"parallel.dp=2", "parallel.pp=2", "parallel.schedule=GPIPE"});
  const auto option = with_option("dp=2,pp=2,schedule=gpipe");
  EXPECT_EQ(option.parallel, set.parallel);
  EXPECT_EQ(option.effective_text, set.effective_text);
  EXPECT_EQ(option.config_hash, set.config_hash);
  EXPECT_EQ(option.math_hash, set.math_hash);
}

TEST(LayoutOption, ReplacesTheWholeLayoutOfTheFileAndNothingElse) {
  const auto run =
      with_option("dp=2", {}, "parallel { pp: 4 schedule: GPIPE sync: PS servers: 2 bucket_bytes: 77 }\n");
  EXPECT_EQ(run.parallel.layout, layout::Layout{.dp = 2});
  EXPECT_EQ(run.parallel.bucket_bytes, 77);
  EXPECT_EQ(with_option("pp=2", {}, "parallel { dp: 3 sync: ALL_REDUCE }\n").parallel.layout,
            layout::Layout{.pp = 2});
}

TEST(LayoutOption, ReplacesWhatOnlyTheFilesLayoutHasAUseForAndRefusesWhatIsSetBesideIt) {
  const std::string file =
      "parallel { sync: PS mode: ASYNC async_learning_rate: DIVIDED_BY_ROOT server_threads: 3 }\n";
  const std::string other = "parallel { sync: PS server_device: GPU }\n",
                    ring = "parallel { algorithm: RING }\n";
  for (const char* layout : {"dp=2", "dp=2,sync=ps,mode=async", "dp=2,sync=ps,placement=colocated"})
    EXPECT_FALSE(with_option(layout, {}, other).parallel.servers_on_gpus) << layout;
  EXPECT_TRUE(with_option("dp=2,sync=ps", {}, other).parallel.servers_on_gpus);
  EXPECT_NO_THROW(with_option("dp=2,sync=ps", {}, ring));
  EXPECT_EQ(with_option("dp=2", {}, ring).parallel,
            parse(kSmallConfig, {"parallel={dp: 2 algorithm: RING}"}).parallel);
  const std::string cut = "parallel { pp: 2 pipeline { cuts: \"fc2\" } }\n";
  EXPECT_TRUE(with_option("dp=2", {}, cut).parallel.cuts.empty());
  EXPECT_EQ(with_option("pp=2", {}, cut).parallel.cuts, std::vector<std::string>{"fc2"});
  const auto run = with_option("pp=1", {}, file);
  EXPECT_EQ(run.parallel, parse(kSmallConfig).parallel);
  EXPECT_EQ(run.math_hash, parse(kSmallConfig).math_hash);
  EXPECT_EQ(with_option("pp=1", {"model.lenet={image: [16, 16, 1] classes: 3 batch_norm: true}"},
                        "parallel { sync: PS mode: ASYNC async_statistics: EXPONENTIAL_BY_PUSH }\n")
                .parallel,
            parse(kSmallConfig).parallel);
  EXPECT_EQ(with_option("dp=2,sync=ps", {}, file).parallel.server_threads, 3);
  EXPECT_EQ(with_option("sync=ps,mode=async", {}, file).parallel.async_learning_rate,
            parallel::AsyncLearningRate::divided_by_root);
  EXPECT_THAT(option_refusal("pp=1", {"parallel.async_learning_rate=DIVIDED_BY_ROOT"}),
              Mentions("parallel.async_learning_rate: ... ASYNC"));
  EXPECT_THAT(option_refusal("sync=ps,placement=colocated", {"parallel.server_threads=2"}),
              HasSubstr("parallel.server_threads:"));
}

TEST(LayoutOption, AndSetMustNotContradictEachOther) {
  EXPECT_EQ(option_refusal("dp=2", {"parallel.dp=2", "parallel.pp=1", "parallel.reduction=REPRODUCIBLE"}),
            "accepted");
  EXPECT_EQ(
      option_refusal("dp=2", {"parallel.dp=4"}),
      "--set parallel.dp=4: parallel.dp: is 4, but --layout dp=2 replaces it; set it in only one of them");
  EXPECT_THAT(option_refusal("dp=2", {"parallel={shard: OPTIMIZER}"}),
              HasSubstr("parallel.shard: is optimizer, but --layout dp=2"));
  EXPECT_THAT(option_refusal("pp=2", {"parallel.dp=4"}), HasSubstr("but --layout pp=2 replaces it"));
}

TEST(LayoutOption, IsNamedWhereItIsWrong) {
  EXPECT_THAT(option_refusal(""), StartsWith("layout '': it is empty"));
  EXPECT_THAT(option_refusal("bound=2"), EndsWith("(did you mean 'sync=ps,mode=stale,bound=2'?)"));
  EXPECT_THAT(option_refusal("dp=3", {"parallel.reduction=REPRODUCIBLE", "trainer.virtual_replicas=2"}),
              StartsWith("--layout dp=3: "));
}

}  // namespace
}  // namespace lockstep::config
