#include "plan/other_layouts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "plan/plan_testing.h"

namespace lockstep::plan {
namespace {

std::vector<std::string> others_of(const std::string& layout, parallel::AllReduceAlgorithm algorithm =
                                                                  parallel::AllReduceAlgorithm::automatic) {
  compile::CompileOptions options = gpt_options(layout);
  options.parallel.algorithm = algorithm;
  const compile::CompileFacts facts = facts_of(options);
  std::vector<std::string> names;
  for (const auto& other : other_layouts(compile::CompiledRun(options, facts), options, facts))
    names.push_back(layout::to_string(other));
  return names;
}

TEST(OtherLayouts, CommunicateOtherwise) {
  EXPECT_THAT(others_of("dp=2"), testing::ElementsAre("pp=2", "sync=ps,servers=2,placement=colocated"));
  EXPECT_THAT(others_of("dp=2,sync=ps"), testing::ElementsAre("pp=1", "sync=ps,servers=2", "pp=2"));
  EXPECT_THAT(others_of("dp=1,pp=2"), testing::Contains("pp=1"));
  EXPECT_THAT(others_of("dp=2", parallel::AllReduceAlgorithm::ring), testing::ElementsAre("pp=2"));
}

TEST(OtherLayouts, AreToldOfBeforeEachIsCompiled) {
  const compile::CompileOptions options = gpt_options("dp=2");
  const compile::CompileFacts facts = facts_of(options);
  const compile::CompiledRun run(options, facts);
  int words = 0;
  EXPECT_EQ(other_layouts(run, options, facts, [&words] { ++words; }).size(), 2u);
  EXPECT_EQ(words, 2);
}

TEST(OtherLayouts, CanBeCompiled) {
  for (const char* layout : {"dp=1", "dp=2,pp=2", "dp=4", "dp=2,pp=4", "dp=4,sync=ps,mode=stale"}) {
    const layout::Layout own = layout::parse_layout(layout);
    for (const std::string& name : others_of(layout)) {
      layout::Layout other = layout::parse_layout(name);
      other.dp = own.workers() / other.pp;
      compile::CompileOptions options = gpt_options(layout);
      options.parallel.layout = other;
      EXPECT_EQ(compile::CompiledRun(options, facts_of(options)).layout(), other) << layout << ": " << name;
    }
  }
}

}  // namespace
}  // namespace lockstep::plan
