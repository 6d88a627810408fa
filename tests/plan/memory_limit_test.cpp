#include "plan/memory_limit.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "base/hash.h"
#include "base/text.h"
#include "lockstep/error.h"
#include "plan/balance.h"
#include "plan/device_plan.h"
#include "plan/plan_testing.h"
#include "plan/step_estimate.h"

namespace lockstep::plan {
namespace {

using testing::AllOf;
using testing::HasSubstr;

int64_t bytes_of(const compile::CompileOptions& options) {
  return fullest_rank(compile::CompiledRun(options, facts_of(options))).plan.total_bytes;
}

std::vector<std::string> layouts_of(const WaysOut& ways) {
  std::vector<std::string> layouts;
  for (const WayOut& way : ways.fitting)
    layouts.push_back(layout::to_string(way.layout) +
                      (way.micro_batch > 0 ? " " + std::to_string(way.micro_batch) : ""));
  return layouts;
}

TEST(FullestRank, IsThatOfTheLargestPlan) {
  const compile::CompileOptions options = gpt_options("dp=2,pp=2,sync=ps,servers=2");
  const compile::CompiledRun run(options, facts_of(options));
  int64_t most = 0;
  for (int rank = 0; rank < 6; ++rank)
    most = std::max(most, program::combine_plans(run.compile(rank).plans()).total_bytes);
  EXPECT_EQ(fullest_rank(run).plan.total_bytes, most);
}

/// Each, compiled as it is stated, takes what is said.
TEST(WaysOut, AreCompiled) {
  for (const char* layout : {"dp=1", "dp=2", "dp=1,pp=2,schedule=gpipe", "dp=2,sync=ps"}) {
    const compile::CompileOptions options = gpt_options(layout, 8);
    const int64_t bytes = bytes_of(options);
    for (const double part : {0.9, 0.4}) {
      const auto limit = static_cast<int64_t>(part * static_cast<double>(bytes));
      const WaysOut ways = ways_out(options, facts_of(options), limit);
      EXPECT_EQ(ways.fitting.empty(), ways.closest.has_value());
      for (const WayOut& way : ways.fitting) {
        compile::CompileOptions pasted = options;
        pasted.parallel.layout = layout::parse_layout(layout::to_string(way.layout));
        if (way.micro_batch > 0) pasted.micro_batch = way.micro_batch;
        EXPECT_LE(way.bytes, limit);
        EXPECT_EQ(bytes_of(balanced(pasted, facts_of(pasted), limit)), way.bytes)
            << layout::to_string(way.layout) << " " << way.micro_batch;
      }
      EXPECT_TRUE(std::ranges::is_sorted(ways.fitting, {}, &WayOut::time));
    }
  }
}

TEST(WaysOut, AreOneChangeEachWhereThatSuffices) {
  const compile::CompileOptions options = gpt_options("dp=2", 8);
  const int64_t limit = bytes_of(options) - 1;
  EXPECT_THAT(layouts_of(ways_out(options, facts_of(options), limit)),
              testing::UnorderedElementsAre("dp=2,recompute=selective", "dp=2,shard=optimizer", "dp=2 4",
                                            "dp=2,pp=2 2"));
}

TEST(WaysOut, AreSeveralChangesWhereNoneSuffices) {
  const compile::CompileOptions options = gpt_options("dp=2", 8);
  // Below what the fewest stages with all else at its smallest take.
  compile::CompileOptions all = gpt_options("dp=2,pp=3,shard=optimizer,recompute=full", 1);
  const WaysOut ways = ways_out(options, facts_of(options), bytes_of(all));
  ASSERT_FALSE(ways.fitting.empty());
  EXPECT_LE(ways.fitting.front().layout.pp, 8);
  EXPECT_LE(ways.fitting.front().bytes, bytes_of(all));
}

TEST(WaysOut, AreNoneForALimitOfNothing) {
  const compile::CompileOptions options = gpt_options("dp=1");
  const WaysOut ways = ways_out(options, facts_of(options), 1);
  EXPECT_TRUE(ways.fitting.empty());
  ASSERT_TRUE(ways.closest);
  EXPECT_LT(ways.closest->bytes, bytes_of(options));
}

TEST(MemoryLimit, RefusesWithTheTableAndTheWaysOut) {
  const compile::CompileOptions options = gpt_options("dp=1", 8);
  const compile::CompileFacts facts = facts_of(options);
  const compile::CompiledRun run(options, facts);
  const int64_t bytes = bytes_of(options);
  EXPECT_NO_THROW(require_fits(run, options, facts, 0));
  EXPECT_NO_THROW(require_fits(run, options, facts, bytes));
  EXPECT_EQ(excess(run, options, facts, bytes), "");
  try {
    require_fits(run, options, facts, bytes * 3 / 4);
    FAIL() << "it does not fit";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("layout 'dp=1': rank 0 takes "), HasSubstr("device.memory_limit"),
                      HasSubstr("\n  activations "), HasSubstr("\nthese fit; "),
                      HasSubstr("   --layout dp=1 --set trainer.micro_batch=")));
  }
  EXPECT_THAT(excess(run, options, facts, bytes * 3 / 4), Not(HasSubstr("a step  ")));
  compile::CompileOptions measured = options;
  measured.parallel.profile = model::Profile{.source = "p",
                                             .model = to_hex(model::hash_of(run.graph())),
                                             .device = "cpu",
                                             .micro_batch = 1,
                                             .nodes = {}};
  for (const auto& node : run.graph().nodes)
    measured.parallel.profile->nodes.push_back({node.name, {1e-3, 0, 0}});
  EXPECT_THAT(excess(compile::CompiledRun(measured, facts), measured, facts, bytes * 3 / 4),
              HasSubstr(" " + human_seconds(0.016 * static_cast<double>(run.graph().nodes.size())) + " "));
  EXPECT_THAT(excess(run, options, facts, 1), AllOf(HasSubstr("nothing fits"), HasSubstr("model smaller")));
}

}  // namespace
}  // namespace lockstep::plan
