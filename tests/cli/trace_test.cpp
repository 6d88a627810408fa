#include "train/loop/trace.h"

#include "lockstep/error.h"
#include "program.h"

namespace lockstep::test {
namespace {

using testing::HasSubstr;

/// Two steps and an evaluation. 3ff8... is 1.5, 4000... is 2.
train::Trace trace() {
  return {
      .steps =
          {{1, {{"loss", 0x3ff8000000000000}, {"gradient norm", 1}, {"fc.weight", 0xa1}, {"fc.bias", 0xa2}}},
           {2, {{"loss", 0x3ff0000000000000}, {"gradient norm", 2}, {"fc.weight", 0xb1}, {"fc.bias", 0xb2}}}},
      .evaluations = {{2, {{"evaluation loss", 7}, {"evaluation accuracy", 8}}}}};
}

TEST(TraceDifference, EqualTracesHaveNone) {
  EXPECT_EQ(train::first_difference(trace(), trace()), std::nullopt);
}

TEST(TraceDifference, IsTheFirstByStepAndThenInTheOrderOfCause) {
  train::Trace other = trace();
  other.steps[2][0].second = 0x4000000000000000;
  other.steps[1][3].second = 0xff;
  other.steps[1][2].second = 0xfe;
  const auto difference = train::first_difference(trace(), other);
  ASSERT_TRUE(difference);
  EXPECT_EQ(*difference, (train::TraceDifference{.step = 1,
                                                 .name = "fc.weight",
                                                 .first = "00000000000000a1",
                                                 .second = "00000000000000fe",
                                                 .more = 1}));
}

TEST(TraceDifference, LossesAreShownAsNumbersToo) {
  train::Trace other = trace();
  other.steps[1][0].second = 0x4000000000000000;
  const auto difference = train::first_difference(trace(), other);
  ASSERT_TRUE(difference);
  EXPECT_EQ(difference->name, "loss");
  EXPECT_EQ(difference->first, "1.5 (3ff8000000000000)");
  EXPECT_EQ(difference->second, "2 (4000000000000000)");
}

TEST(TraceDifference, ASignBitAloneCounts) {
  train::Trace zero = trace(), negative = trace();
  zero.steps[1][0].second = 0;
  negative.steps[1][0].second = 0x8000000000000000;
  ASSERT_TRUE(train::first_difference(zero, negative));
  EXPECT_EQ(train::first_difference(zero, negative)->second, "-0 (8000000000000000)");
}

TEST(TraceDifference, WhatIsMissingOnEitherSideCounts) {
  train::Trace shorter = trace();
  shorter.steps.erase(2);
  EXPECT_EQ(train::first_difference(trace(), shorter)->second, "absent");
  EXPECT_EQ(train::first_difference(shorter, trace())->first, "absent");
  EXPECT_EQ(train::first_difference(shorter, trace())->step, 2);
  train::Trace fewer = trace();
  fewer.steps[2].pop_back();
  EXPECT_EQ(train::first_difference(fewer, trace())->name, "fc.bias");
  train::Trace unevaluated = trace();
  unevaluated.evaluations.clear();
  EXPECT_EQ(train::first_difference(trace(), unevaluated)->name, "evaluation loss");
}

TEST(Trace, FilesReadBackAndBadLinesAreNamed) {
  const TemporaryDirectory folder;
  const std::string path = train::trace_path(folder.path(), 3);
  EXPECT_EQ(path, folder / "trace-3.jsonl");
  const std::string good = R"({"step":1,"bits":[["loss","3ff8000000000000"],["fc.weight","00000000000000a1"]]}
{"evaluation":1,"bits":[["evaluation loss","0000000000000007"]]}
)";
  write_file(path, good);
  const train::Trace read = train::read_trace(path);
  EXPECT_EQ(read.steps.at(1), (train::Trace::Entries{{"loss", 0x3ff8000000000000}, {"fc.weight", 0xa1}}));
  EXPECT_EQ(read.evaluations.at(1), (train::Trace::Entries{{"evaluation loss", 7}}));
  for (const char* bad : {"{", "{\"step\":2}", R"({"step":2,"bits":[["loss","xyz"]]})",
                          R"({"step":2,"bits":[["loss","1"]]})"}) {
    write_file(path, good + bad + "\n");
    EXPECT_THAT(message_of<DataError>([&] { train::read_trace(path); }), HasSubstr("trace-3.jsonl:3:"));
  }
}

TEST(Trace, TwoSeedsOfOneConfigDiffer) {
  const SmallConfig config;
  for (const std::string seed : {"1", "2"})
    ASSERT_EQ(lockstep({"train", config.path(), "--trace", config / seed, "--stop-after", "2", "--set",
                        "trainer.seed=" + seed})
                  .code,
              0);
  const train::Trace first = train::read_trace(train::trace_path(config / "1", 0)),
                     second = train::read_trace(train::trace_path(config / "2", 0));
  EXPECT_EQ(first.steps.size(), 2u);
  const auto difference = train::first_difference(first, second);
  ASSERT_TRUE(difference);
  EXPECT_EQ(difference->step, 1);
  EXPECT_EQ(difference->name, "loss");
  EXPECT_EQ(train::first_difference(first, first), std::nullopt);
}

}  // namespace
}  // namespace lockstep::test
