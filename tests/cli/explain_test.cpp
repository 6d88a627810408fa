#include <algorithm>
#include <cstdlib>

#include "mentions.h"
#include "program.h"

namespace lockstep::test {
namespace {

void expect_explained(const Json& explanation, size_t ranks) {
  ASSERT_EQ(explanation["ranks"].size(), ranks);
  for (const Json& rank : explanation["ranks"]) {
    double sum = 0;
    for (const auto& [name, share] : rank["shares"].items()) {
      EXPECT_GE(share.get<double>(), 0) << name;
      sum += share.get<double>();
    }
    EXPECT_NEAR(sum, 1, 0.01);
    EXPECT_NEAR(sum, rank["explained"].get<double>(), 1e-9);
  }
}

TEST(Explain, IsInTheReportOfEveryRunAndAddsUp) {
  const SmallConfig config;
  for (const auto& layout : {"dp=2", "pp=2"}) {
    const Json report = only_json(mpirun(
        2, {"train", config.path(), "--json", "--layout", layout, "--set", "parallel.reduction=FAST"}));
    expect_explained(report["explanation"], 2);
    const Json& mean = report["explanation"]["mean"];
    EXPECT_GT(mean["parts_ms"]["compute"], 0);
    EXPECT_GT(mean["parts_ms"]["evaluation"], 0);
    EXPECT_GT(mean["computing_ms"]["linear"], 0);
    EXPECT_GT(mean["computing_ms"]["update"], 0);
    EXPECT_EQ(mean["parts_ms"]["bubble"] > 0, layout == std::string("pp=2"));
  }
}

TEST(Explain, ShowsARunByItsFolder) {
  const SmallConfig config;
  ASSERT_EQ(lockstep({"train", config.path(), "--quiet", "--out", config / "run"}).code, 0);
  const Json explanation = only_json(lockstep({"explain", config / "run", "--json"}));
  EXPECT_EQ(explanation["goes_on"], false);
  EXPECT_EQ(explanation["step"], 12);
  expect_explained(explanation, 1);
  EXPECT_EQ(lockstep({"explain", config / "run"}).code, 0);
}

// A step with histograms is measured as others are.
TEST(Explain, TellsCountingForHistogramsApart) {
  const SmallConfig config;
  const auto computing = [&](const char* every) {
    const Json report = only_json(lockstep({"train", config.path(), "--json", "--out", config / every,
                                            "--set", std::string("metrics.histogram_every_steps=") + every}));
    expect_explained(report["explanation"], 1);
    return report["explanation"]["mean"]["computing_ms"];
  };
  EXPECT_FALSE(computing("0").contains("histograms"));
  const Json observed = computing("1");  // every step is
  EXPECT_GT(observed.value("histograms", 0.0), 0);
  EXPECT_GT(observed.value("linear", 0.0), 0);
  EXPECT_GT(observed.value("update", 0.0), 0);
}

TEST(Explain, ShowsARunThatWasLost) {
  const SmallConfig config;
  EXPECT_NE(
      lockstep({"train", config.path(), "--quiet", "--out", config / "run", "--failpoint", "error@0,6"}).code,
      0);
  const Json explanation = only_json(lockstep({"explain", config / "run", "--json"}));
  EXPECT_EQ(explanation["goes_on"], true);
  expect_explained(explanation, 1);
}

TEST(Explain, RefusesWhatIsNoRun) {
  const SmallConfig config;
  EXPECT_EQ(lockstep({"explain", config / "none"}).code, 2);
  write_file(config / "other.json", "{}");
  EXPECT_EQ(lockstep({"explain", config / "other.json"}).code, 65);
}

TEST(Explain, KnowsTheSpeedOfLightOnceItIsMeasured) {
  const SmallConfig config;
  ASSERT_EQ(setenv("XDG_CACHE_HOME", (config / "cache").c_str(), 1), 0);
  const auto share = [&] {
    return only_json(lockstep({"train", config.path(), "--json"}))["explanation"]["mean"].value(
        "speed_of_light", 0.0);
  };
  EXPECT_EQ(share(), 0);
  EXPECT_EQ(lockstep({"bench", "--seconds", "0.001"}).code, 0);
  EXPECT_EQ(share(), 0) << "that was too short to be kept";
  EXPECT_EQ(lockstep({"bench", "--seconds", "0.1"}).code, 0);
  EXPECT_GT(share(), 0);
}

// A worker that takes much longer makes the other one wait, on a busy machine, too.
TEST(Explain, NamesTheSlowestRank) {
  const SmallConfig config;
  const Json report = only_json(mpirun(2, {"train", config.path(), "--json", "--straggler", "1:200"}));
  EXPECT_EQ(report["explanation"]["slowest_rank"], 1);
  EXPECT_GT(report["explanation"]["ranks"][0]["parts_ms"]["slower_ranks"],
            report["explanation"]["ranks"][1]["parts_ms"]["slower_ranks"]);
  const Json& advice = report["explanation"]["advice"];
  const auto slow = std::ranges::find_if(advice, [](const Json& one) { return one["rule"] == "slow_rank"; });
  ASSERT_NE(slow, advice.end());
  EXPECT_THAT((*slow)["saw"].get<std::string>(), Mentions("rank 0 ... rank 1"));
  EXPECT_GT((*slow)["cost"], 0.05);
}

TEST(Explain, ARunByItselfWaitsForNobody) {
  const SmallConfig config;
  const Json report = only_json(lockstep({"train", config.path(), "--json"}));
  for (const Json& one : report["explanation"]["advice"])
    for (const char* rule : {"slow_rank", "communication", "uneven_stages", "precision", "hot_gpu"})
      EXPECT_NE(one["rule"], rule);
}

}  // namespace
}  // namespace lockstep::test
