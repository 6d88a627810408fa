#include "mentions.h"
#include "program.h"

// lockstep rates: loss against a rising learning rate.

namespace lockstep::test {
namespace {

using testing::HasSubstr;

std::vector<std::string> rates(const SmallConfig& config, const std::vector<std::string>& more) {
  return std::vector<std::string>{"rates", config.path(), "--steps", "60"} + more;
}

TEST(Rates, RisesByEqualFactorsUntilItDiverges) {
  const SmallConfig config;
  const Ran ran = lockstep(rates(config, {"--json", "--from", "1e-3", "--to", "1e6"}));
  ASSERT_EQ(ran.code, 0) << ran.err;
  const Json json = Json::parse(ran.out);
  EXPECT_EQ(json["diverged"], true);
  EXPECT_LT(json["steps_taken"], 60);
  ASSERT_EQ(json["points"].size(), json["steps_taken"]);
  const double factor = std::pow(1e9, 1.0 / 59);
  for (size_t i = 0; i < json["points"].size(); ++i)
    EXPECT_NEAR(json["points"][i]["rate"].get<double>() / (1e-3 * std::pow(factor, i)), 1, 1e-9);
  EXPECT_GT(json["suggested_rate"], 1e-3);
  EXPECT_LE(json["suggested_rate"], json["lowest_rate"]);
}

TEST(Rates, DependOnNeitherTheRunNorTheNumberOfWorkers) {
  const SmallConfig config;
  const auto more = rates(config, {"--json", "--to", "100"});
  const Ran one = lockstep(more), again = lockstep(more), two = mpirun(2, more);
  EXPECT_EQ(one.code, 0) << one.err;
  EXPECT_EQ(one.out, again.out);
  EXPECT_EQ(one.out, two.out) << two.err;
}

TEST(Rates, LeaveNothingBehindButTheDrawing) {
  const SmallConfig config;
  const std::string svg = config / "rates.svg";
  const Ran ran =
      lockstep(rates(config, {"--svg", svg, "--set", "checkpoint.every_steps=5", "--from", "1e-3"}));
  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.out, Mentions("loss ... rate ... --set optimizer.learning_rate="));
  EXPECT_THAT(read_text_file(svg),
              testing::AllOf(testing::StartsWith("<svg"), HasSubstr("smoothed"), HasSubstr("suggested")));
  size_t files = 0;
  for ([[maybe_unused]] const auto& entry :
       std::filesystem::directory_iterator(std::filesystem::path(svg).parent_path()))
    ++files;
  EXPECT_EQ(files, 2u) << "the config and the drawing";
  const Ran second = lockstep(rates(config, {"--svg", svg}));
  EXPECT_EQ(second.code, 2);
  EXPECT_THAT(second.err, HasSubstr("--svg"));
}

/// The rate that a config states where it follows the batch.
TEST(Rates, AreStatedForTheBatchFromWhichTheConfigScales) {
  const SmallConfig config;
  const auto run = [&](const std::vector<std::string>& more) {
    return Json::parse(
        lockstep(rates(config, std::vector<std::string>{"--json", "--from", "1e-3"} + more)).out);
  };
  const Json plain = run({}), scaled = run({"--set", "optimizer.scale_with_batch={from: 6 rule: LINEAR}"});
  EXPECT_EQ(plain["suggested_rate"], scaled["suggested_rate"]);
  EXPECT_NEAR(scaled["set_learning_rate"].get<double>() / plain["set_learning_rate"].get<double>(), 0.25,
              0.02);
}

TEST(Rates, RefuseWhatMakesNoSense) {
  const SmallConfig config;
  const auto refusal = [&](const std::vector<std::string>& more) {
    const Ran ran = lockstep(rates(config, more));
    EXPECT_EQ(ran.code, 2) << ran.out;
    return ran.err;
  };
  EXPECT_THAT(refusal({"--from", "1", "--to", "0.1"}), Mentions("--from 1 --to 0.1"));
  EXPECT_THAT(refusal({"--from", "0"}), HasSubstr("--from"));
  EXPECT_THAT(refusal({"--to", "nan"}), HasSubstr("--to"));
  EXPECT_THAT(refusal({"--set", "optimizer.learning_rate=1"}),
              Mentions("optimizer.learning_rate ... --from"));
  EXPECT_THAT(refusal({"--set", "trainer.steps=7"}), Mentions("trainer.steps ... --steps"));
  EXPECT_THAT(refusal({"--layout", "dp=1,sync=ps,mode=async", "--set", "parallel.reduction=FAST"}),
              Mentions("mode=sync"));
}

}  // namespace
}  // namespace lockstep::test
