#include <map>
#include <set>
#include <utility>

#include "mentions.h"
#include "program.h"

namespace lockstep::test {
namespace {

using testing::ElementsAre;

Json read_json(const std::string& path) { return Json::parse(read_text_file(path)); }

/// Names of slices of a kind and rank.
std::multiset<std::string> slices(const Json& trace, const std::string& kind, int rank) {
  std::multiset<std::string> names;
  for (const Json& event : trace["traceEvents"])
    if (event["ph"] == "X" && event["cat"] == kind && event["pid"] == 1000 + rank)
      names.insert(event["name"].get<std::string>());
  return names;
}

size_t arrows(const Json& trace, const char* end) {
  size_t count = 0;
  for (const Json& event : trace["traceEvents"]) count += event["ph"] == end;
  return count;
}

TEST(Timeline, HasTheStepsOfAllRanksThatWereAskedFor) {
  const SmallConfig config;
  const std::string file = config / "steps.json";
  const Ran ran =
      mpirun(2, {"train", config.path(), "--quiet", "--timeline", file, "--timeline-steps", "4:6"});
  ASSERT_EQ(ran.code, 0) << ran.err;
  const Json trace = read_json(file);
  EXPECT_EQ(trace["otherData"]["first_step"], 4);
  EXPECT_EQ(trace["otherData"]["last_step"], 6);
  EXPECT_TRUE(trace["otherData"]["notes"].empty());
  ASSERT_EQ(trace["otherData"]["ranks"].size(), 2U);
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(trace["otherData"]["ranks"][static_cast<size_t>(rank)]["dropped_slices"], 0);
    // An evaluation follows the fifth step.
    EXPECT_THAT(slices(trace, "phase", rank), ElementsAre("evaluation", "step 4", "step 5", "step 6"));
    EXPECT_EQ(slices(trace, "copy", rank).size() % 3, 0U);
    EXPECT_GE(slices(trace, "kernel", rank).count("loss"), 6U) << "forward and backward of three steps";
    EXPECT_FALSE(slices(trace, "communication", rank).empty());
  }
}

TEST(Timeline, OfAPipelineHasAnArrowForEachMessage) {
  const SmallConfig config;
  const std::string file = config / "steps.json";
  const Ran ran = mpirun(2, {"train", config.path(), "--quiet", "--layout", "pp=2", "--set",
                             "parallel.reduction=FAST", "--timeline", file, "--timeline-steps", "4:6"});
  ASSERT_EQ(ran.code, 0) << ran.err;
  const Json trace = read_json(file);
  EXPECT_GE(arrows(trace, "s"), 6U) << "an activation and its gradient in each step";
  EXPECT_EQ(arrows(trace, "s"), arrows(trace, "f"));
}

/// Slices of a rank whose names begin so.
size_t named(const Json& trace, const std::string& beginning, int rank) {
  size_t count = 0;
  for (const Json& event : trace["traceEvents"])
    count += event["ph"] == "X" && event["pid"] == 1000 + rank &&
             event["name"].get<std::string>().starts_with(beginning);
  return count;
}

/// The steps 4 to 6 of a layout with sessions.
Json recorded_sessions(const SmallConfig& config, int processes, const std::string& layout) {
  const std::string file = config / "steps.json";
  const Ran ran = mpirun(
      processes, {"train", config.path(), "--quiet", "--layout", layout, "--set", "parallel.reduction=FAST",
                  "--set", "parallel.bucket_bytes=64", "--timeline", file, "--timeline-steps", "4:6"});
  EXPECT_EQ(ran.code, 0) << ran.err;
  return ran.code == 0 ? read_json(file) : Json{};
}

TEST(Timeline, OfWorkersWithABoundHasWhatTheirServerDoes) {
  const SmallConfig config;
  const Json trace = recorded_sessions(config, 3, "dp=2,sync=ps,servers=1,mode=stale,bound=2");
  ASSERT_FALSE(trace.is_null());
  EXPECT_EQ(trace["otherData"]["first_step"], 4);
  EXPECT_EQ(trace["otherData"]["last_step"], 6);
  EXPECT_TRUE(trace["otherData"]["notes"].empty()) << trace["otherData"]["notes"];
  const size_t ranges = named(trace, "update", 2) / 3;
  EXPECT_GT(ranges, 1U);
  for (int worker = 0; worker < 2; ++worker) {
    // Two sessions, from one evaluation to the next.
    EXPECT_THAT(slices(trace, "phase", worker), ElementsAre("evaluation", "step 4", "step 5", "step 6"));
    EXPECT_EQ(named(trace, "pull", worker), 3 * ranges);
    EXPECT_EQ(named(trace, "push", worker), 3 * ranges);
    EXPECT_EQ(named(trace, "waits for a step to be granted", worker), 3U);
  }
  EXPECT_EQ(named(trace, "push of bucket", 2), 2 * 3 * ranges);
  EXPECT_EQ(named(trace, "answer with bucket", 2), 2 * 3 * ranges);
  EXPECT_EQ(arrows(trace, "s"), 2 * 2 * 3 * ranges) << "a push and a pull of each range, worker and step";
  EXPECT_EQ(arrows(trace, "f"), arrows(trace, "s"));
}

TEST(Timeline, OfWorkersThatDoNotWaitHasEachPushWithItsServers) {
  const SmallConfig config;
  const Json trace = recorded_sessions(config, 2, "dp=2,sync=ps,placement=colocated,servers=2,mode=async");
  ASSERT_FALSE(trace.is_null());
  size_t pushes = 0, landings = 0, updates = 0;
  std::set<std::pair<int, int>> made;  // steps, and pushes of them
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(trace["otherData"]["ranks"][static_cast<size_t>(rank)]["dropped_slices"], 0);
    landings += named(trace, "push of bucket", rank);
    pushes += named(trace, "push bucket", rank);
    updates += named(trace, "update bucket", rank);
  }
  for (const Json& event : trace["traceEvents"])
    if (event["ph"] == "X" && event["args"].contains("push"))
      made.insert({event["args"]["step"].get<int>(), event["args"]["push"].get<int>()});
  EXPECT_EQ(made, (std::set<std::pair<int, int>>{{4, 1}, {4, 2}, {5, 1}, {5, 2}, {6, 1}, {6, 2}}));
  EXPECT_GT(pushes, 0U);
  EXPECT_EQ(pushes, landings);
  EXPECT_EQ(updates, landings);
  EXPECT_EQ(arrows(trace, "s"), 2 * landings);
  EXPECT_EQ(arrows(trace, "f"), 2 * landings);
}

TEST(Timeline, HasStepsWithHistograms) {
  const SmallConfig config;
  const std::string file = config / "steps.json";
  ASSERT_EQ(lockstep({"train", config.path(), "--quiet", "--out", config / "run", "--set",
                      "metrics.histogram_every_steps=4", "--timeline", file, "--timeline-steps", "3:5"})
                .code,
            0);
  const Json trace = read_json(file);
  std::multiset<std::string> steps;
  for (const Json& event : trace["traceEvents"])
    if (event["ph"] == "X" && event["name"].get<std::string>().starts_with("update"))
      steps.insert(event["args"]["step"].dump());
  EXPECT_EQ(steps.count("4"), steps.count("3")) << trace["traceEvents"];
  EXPECT_GT(steps.count("4"), 0U);
}

TEST(Timeline, ChangesNoBits) {
  const SmallConfig config;
  const Json plain = only_json(lockstep({"train", config.path(), "--json"}));
  const Json recorded =
      only_json(lockstep({"train", config.path(), "--json", "--timeline", config / "steps.json"}));
  EXPECT_EQ(plain["params_hash"], recorded["params_hash"]);
  // Without --timeline-steps, five steps after the warm-up.
  EXPECT_EQ(read_json(config / "steps.json")["otherData"]["first_step"], 6);
  EXPECT_EQ(read_json(config / "steps.json")["otherData"]["last_step"], 10);
}

TEST(Timeline, OfAShortRunIsItsLastSteps) {
  const SmallConfig config;
  ASSERT_EQ(
      lockstep({"train", config.path(), "--quiet", "--stop-after", "3", "--timeline", config / "a.json"})
          .code,
      0);
  EXPECT_EQ(read_json(config / "a.json")["otherData"]["first_step"], 1);
  EXPECT_EQ(read_json(config / "a.json")["otherData"]["last_step"], 3);
}

TEST(Timeline, OfAResumedRunCountsStepsFromTheBeginning) {
  const SmallConfig config;
  const std::vector<std::string> train{"train", config.path(), "--quiet", "--out", config / "run"};
  ASSERT_EQ(lockstep(train + std::vector<std::string>{"--stop-after", "5"}).code, 0);
  const auto resume = train + std::vector<std::string>{"--resume", "auto", "--timeline", config / "a.json"};
  const Ran before = lockstep(resume + std::vector<std::string>{"--timeline-steps", "4:7"});
  EXPECT_EQ(before.code, 2) << before.err;
  EXPECT_THAT(before.err, Mentions("--timeline-steps 4:7 ... 6 to 12"));
  ASSERT_EQ(lockstep(resume + std::vector<std::string>{"--timeline-steps", "7:8"}).code, 0);
  EXPECT_EQ(read_json(config / "a.json")["otherData"]["first_step"], 7);
}

TEST(Timeline, OfALostRankHasWhatTheFirstRankRecorded) {
  const SmallConfig config;
  const Ran ran = mpirun(2, {"train", config.path(), "--quiet", "--timeline", config / "a.json",
                             "--timeline-steps", "3:10", "--failpoint", "kill@1,6"});
  EXPECT_NE(ran.code, 0);
  const Json trace = read_json(config / "a.json");
  ASSERT_EQ(trace["otherData"]["ranks"].size(), 1U);
  EXPECT_EQ(trace["otherData"]["notes"].size(), 1U);
  EXPECT_EQ(trace["otherData"]["last_step"], 5);
  EXPECT_GE(slices(trace, "kernel", 0).count("loss"), 6U);
}

TEST(Timeline, OfARunThatFailsHasWhatTheFirstRankRecorded) {
  for (const int ranks : {1, 2}) {
    const SmallConfig config;
    const Ran ran = mpirun(ranks, {"train", config.path(), "--quiet", "--timeline", config / "a.json",
                                   "--timeline-steps", "3:10", "--failpoint", "nan@0,6"});
    EXPECT_NE(ran.code, 0);
    const Json trace = read_json(config / "a.json");
    EXPECT_EQ(trace["otherData"]["ranks"].size(), 1U) << ranks;
    EXPECT_EQ(trace["otherData"]["notes"].size(), 1U);
  }
}

TEST(Timeline, RefusesMoreStepsThanMemoryTakes) {
  const SmallConfig config;
  const Ran ran = lockstep({"train", config.path(), "--quiet", "--timeline", config / "a.json",
                            "--timeline-steps", "1:10000000", "--set", "trainer.steps=10000000"});
  EXPECT_EQ(ran.code, 2);
  EXPECT_THAT(ran.err, Mentions("--timeline-steps"));
}

TEST(Timeline, RefusesWhatItCannotRecord) {
  const SmallConfig config;
  const std::string file = config / "a.json";
  const auto train = [&](const std::vector<std::string>& more) {
    return lockstep(std::vector<std::string>{"train", config.path(), "--quiet", "--timeline", file} + more);
  };
  for (const char* range : {"5", "5:", ":5", "0:3", "7:5", "a:b", "1:2:3", "1: 2"}) {
    const Ran ran = train({"--timeline-steps", range});
    EXPECT_EQ(ran.code, 2) << range;
    EXPECT_THAT(ran.err, Mentions("--timeline-steps")) << range;
  }
  const Ran outside = train({"--timeline-steps", "10:13"});
  EXPECT_EQ(outside.code, 2);
  EXPECT_THAT(outside.err, Mentions("10:13 ... 1 to 12"));
  EXPECT_EQ(train({"--timeline-steps", "5:7", "--stop-after", "6"}).code, 2);
  write_file(file, "mine");
  const Ran there = train({});
  EXPECT_EQ(there.code, 2);
  EXPECT_THAT(there.err, Mentions("--timeline ... " + file));
  EXPECT_EQ(read_text_file(file), "mine");
  EXPECT_EQ(lockstep({"train", config.path(), "--timeline-steps", "1:2"}).code, 2) << "without --timeline";
  const Ran sessions =
      lockstep({"inspect", config.path(), "--timeline", config / "b.json", "--layout",
                "dp=2,sync=ps,placement=colocated,servers=2,mode=async", "--set", "parallel.reduction=FAST"});
  EXPECT_EQ(sessions.code, 2) << sessions.err;
  EXPECT_THAT(sessions.err, Mentions("--timeline ... mode=async"));
}

TEST(Timeline, OfInspectHasTheFormOfAMeasuredOne) {
  const SmallConfig config;
  const std::string file = config / "predicted.json";
  ASSERT_EQ(lockstep({"inspect", config.path(), "--layout", "dp=2", "--timeline", file}).code, 0);
  const Json trace = read_json(file);
  EXPECT_EQ(trace["otherData"]["source"], "estimated");
  EXPECT_EQ(trace["otherData"]["ranks"].size(), 2U);
  const Json shown = only_json(lockstep({"timeline", file, "--json"}));
  ASSERT_EQ(shown["ranks"].size(), 2U);
  for (const Json& rank : shown["ranks"])
    EXPECT_NEAR(rank["compute_us"].get<double>() + rank["communication_us"].get<double>() +
                    rank["idle_us"].get<double>(),
                rank["total_us"].get<double>(), 1e-3);
}

TEST(TimelineCommand, WritesAFileForEachRankAndReplacesNone) {
  const SmallConfig config;
  const std::string file = config / "predicted.json", folder = config / "ranks";
  ASSERT_EQ(lockstep({"inspect", config.path(), "--layout", "dp=2", "--timeline", file}).code, 0);
  ASSERT_EQ(lockstep({"timeline", file, "--per-rank", folder}).code, 0);
  EXPECT_EQ(read_json(folder + "/rank-1.json")["distributedInfo"]["rank"], 1);
  EXPECT_EQ(lockstep({"timeline", file, "--per-rank", folder}).code, 2);
}

TEST(TimelineCommand, RefusesOtherFiles) {
  const SmallConfig config;
  write_file(config / "other.json", "{}");
  EXPECT_EQ(lockstep({"timeline", config / "other.json"}).code, 65);
  EXPECT_EQ(lockstep({"timeline", config / "none.json"}).code, 74);
}

}  // namespace
}  // namespace lockstep::test
