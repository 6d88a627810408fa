#include "mentions.h"
#include "program.h"

namespace lockstep::test {
namespace {

using testing::HasSubstr;

TEST(Verify, ProvesEqualBitsAcrossLayoutsAndAStopBetweenThem) {
  const SmallConfig config;
  const Ran ran =
      lockstep({"verify", config.path(), "--layouts", "dp=1; dp=2; dp=3", "--resume-at", "4", "--json"});
  ASSERT_EQ(ran.code, 0) << ran.err;
  const Json json = Json::parse(ran.out);
  EXPECT_EQ(json["identical"], true);
  ASSERT_EQ(json["runs"].size(), 6u);
  EXPECT_EQ(json["runs"][2]["layout"], "dp=3");
  EXPECT_EQ(json["runs"][3]["layout"], "dp=1, from step 5 dp=2");
  EXPECT_EQ(json["runs"][5]["layout"], "dp=3, from step 5 dp=1");
  for (const auto& run : json["runs"]) {
    EXPECT_EQ(run["steps"], 12) << run;
    EXPECT_EQ(run["params_hash"], json["runs"][0]["params_hash"]) << run;
  }
}

TEST(Verify, ProvesEqualBitsInTwoByteTypesAndOverOverflows) {
  const SmallConfig config;
  const auto hash_with = [&](const std::vector<std::string>& more) {
    const Ran ran = lockstep(std::vector<std::string>{"verify", config.path(), "--layouts", "dp=1; dp=2",
                                                      "--steps", "6", "--resume-at", "2", "--json", "--set",
                                                      "precision.compute=FLOAT16"} +
                             more);
    EXPECT_EQ(ran.code, 0) << ran.err;
    const Json json = Json::parse(ran.out);
    EXPECT_EQ(json["identical"], true) << ran.out;
    return json["runs"][0]["params_hash"].get<std::string>();
  };
  const std::string half = hash_with({});
  EXPECT_NE(hash_with({"--set", "precision.compute=BFLOAT16"}), half);
  // Steps that overflow are skipped, so that fewer batches were learnt from.
  EXPECT_NE(
      hash_with({"--set", "precision.loss_scaling={initial_scale: 1099511627776 maximum: 1099511627776}"}),
      half);
}

TEST(Verify, ShowsTheFirstDifferenceOfRunsThatDiffer) {
  const SmallConfig config;
  // FAST leaves the order of sums to the layout.
  const Ran ran = lockstep({"verify", config.path(), "--layouts", "dp=1; dp=3", "--steps", "5", "--set",
                            "parallel.reduction=FAST", "--out", config / "v"});
  EXPECT_EQ(ran.code, 70);
  EXPECT_THAT(ran.out, HasSubstr("dp=3 differs: step 1, "));
  EXPECT_THAT(ran.out, HasSubstr("traces are in " + (config / "v")));
  EXPECT_TRUE(std::filesystem::exists(config / "v/02-dp=3/trace-2.jsonl"));
}

TEST(Verify, ReproducibleIsSetWhateverTheFileSays) {
  const SmallConfig config;
  std::string text = read_text_file(config.path());
  text.replace(text.find("REPRODUCIBLE"), 12, "FAST");
  write_file(config / "fast.textproto", text);
  const Ran ran = lockstep({"verify", config / "fast.textproto", "--layouts", "dp=1; dp=3", "--steps", "5"});
  EXPECT_EQ(ran.code, 0) << ran.out << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("identical in 2 runs"));
}

TEST(Verify, TriesEveryScheduleAndModeThatFitsWhereItIsToldNone) {
  const SmallConfig config;
  const Ran ran = lockstep({"verify", config.path(), "--steps", "2", "--processes", "3", "--json"});
  ASSERT_EQ(ran.code, 0) << ran.err;
  const Json json = Json::parse(ran.out);
  EXPECT_EQ(json["identical"], true);
  EXPECT_EQ(json["runs"][0]["layout"], "dp=1");
  std::string tried;
  for (const auto& run : json["runs"]) tried += run["layout"].get<std::string>() + "\n";
  for (const char* word : {"dp=3", "pp=2\n", "gpipe", "zero_bubble", "recompute=full", "recompute=selective",
                           "shard=optimizer", "sync=ps", "colocated", "mode=stale,bound=0"})
    EXPECT_THAT(tried, HasSubstr(word));
  const Ran both = lockstep({"verify", config.path(), "--layouts", "dp=1; dp=2", "--processes", "3"});
  EXPECT_EQ(both.code, 2);
}

TEST(Verify, RefusesBeforeAnythingRuns) {
  const SmallConfig config;
  const auto refusal = [&](const std::string& layouts, std::vector<std::string> more = {}) {
    const Ran ran = lockstep(
        std::vector<std::string>{"verify", config.path(), "--out", config / "v", "--layouts", layouts} +
        more);
    EXPECT_EQ(ran.code, 2);
    EXPECT_FALSE(std::filesystem::exists(config / "v"));
    return ran.err;
  };
  EXPECT_THAT(refusal("dp=1; dp=2,sync=ps,mode=async"), HasSubstr("ASYNC"));
  EXPECT_THAT(refusal("dp=1; pp=1"), HasSubstr("did you mean 'dp=1'?"));
  EXPECT_THAT(refusal("dp=1; dp=2", {"--set", "parallel.dp=2"}), HasSubstr("but --layout dp=1 replaces it"));
  EXPECT_THAT(refusal("dp=1; dp=5"), HasSubstr("layout 'dp=5'"));  // four virtual replicas
  EXPECT_THAT(refusal("dp=1"), HasSubstr("at least two layouts"));
  EXPECT_THAT(refusal("dp=1; dp=2", {"--resume-at", "12"}), HasSubstr("12 steps"));
  EXPECT_THAT(refusal("dp=1; dp=2", {"--steps", "5", "--resume-at", "5"}), HasSubstr("last of 5 steps"));
}

TEST(Verify, ShowsWhatAChildSays) {
  const SmallConfig config;
  const Ran ran = lockstep({"verify", config.path(), "--layouts", "dp=1; dp=2", "--out", config / "v",
                            "--set", "optimizer.learning_rate=1e30"});
  EXPECT_EQ(ran.code, 70);
  EXPECT_THAT(ran.err, Mentions("'dp=1' ... code 70"));
  EXPECT_THAT(ran.err, HasSubstr("not both finite"));
  const Ran again = lockstep({"verify", config.path(), "--layouts", "dp=1; dp=2", "--out", config / "v"});
  EXPECT_EQ(again.code, 2);
  EXPECT_THAT(again.err, HasSubstr("is not an empty folder"));
}

TEST(Verify, IsNotAJobForMpirun) {
  const SmallConfig config;
  const Ran ran = mpirun(1, {"verify", config.path(), "--layouts", "dp=1; dp=2"});
  EXPECT_EQ(ran.code, 2);
  EXPECT_THAT(ran.err, HasSubstr("verify starts mpirun itself"));
}

}  // namespace
}  // namespace lockstep::test
