#include "mentions.h"
#include "program.h"

namespace lockstep::test {
namespace {

using testing::HasSubstr;

/// A job of a few steps that saves, and that looks for what chaos does.
std::vector<std::string> chaos_on(const SmallConfig& config, const std::vector<std::string>& more) {
  return std::vector<std::string>{
             "chaos", config.path(), "--set", "trainer.steps=30", "--set", "checkpoint.every_steps=5"} +
         more;
}

/// By value: a part of what is parsed here would not outlive the loop over it.
Json runs_of(const Ran& ran) {
  Json runs = Json::parse(ran.out).at("runs");
  EXPECT_FALSE(runs.empty());
  return runs;
}

TEST(Chaos, EveryKindIsNoticedAndEndsWithTheSameBits) {
  const SmallConfig config;
  const Ran ran = lockstep(chaos_on(
      config, {"--runs", "6", "--kinds", "kill,delay,nan,enospc,error,preempt", "--json", "--seed", "3"}));
  ASSERT_EQ(ran.code, 0) << ran.err << ran.out;
  const Json json = Json::parse(ran.out);
  EXPECT_EQ(json["passed"], true);
  ASSERT_EQ(json["runs"].size(), 6u);
  EXPECT_EQ(json["kinds"].size(), 6u);
  for (const auto& run : json["runs"]) {
    EXPECT_EQ(run["bits_equal"], true) << run;
    EXPECT_EQ(run["leftover_processes"], 0) << run;
    EXPECT_EQ(run["detected"], true) << run;
    EXPECT_EQ(run["restarts"], run["exit_code"] == 0 ? 0 : 1) << run;
  }
  EXPECT_EQ(json["runs"][0]["kind"], "kill");
  EXPECT_EQ(json["runs"][0]["happened"], true);
  EXPECT_GT(json["runs"][0]["detection_seconds"], 0);
  EXPECT_GT(json["runs"][0]["recovery_seconds"], 0);
  EXPECT_FALSE(json.contains("folder"));
  EXPECT_THAT(ran.err, HasSubstr("undisturbed: 30 steps on 2 processes"));
  EXPECT_THAT(ran.err, HasSubstr("watchdog.silent_seconds=3, "));
}

TEST(Chaos, StoppedAndStuckWorkersAndServersAreNoticed) {
  const SmallConfig config;
  for (const auto& layout : std::vector<std::vector<std::string>>{
           {"dp=2"},
           {"dp=2,sync=ps,servers=2"},
           {"dp=2,sync=ps,servers=2,mode=stale", "--set", "parallel.reduction=FAST"}}) {
    const Ran ran = lockstep(chaos_on(
        config,
        std::vector<std::string>{"--runs", "2", "--kinds", "stop,hang", "--json", "--set",
                                 "watchdog.heartbeat_seconds=0.1", "--set", "watchdog.silent_seconds=2",
                                 "--set", "watchdog.compute_seconds=3", "--set", "watchdog.input_seconds=3",
                                 "--set", "watchdog.communication_seconds=3", "--set",
                                 "watchdog.storage_seconds=30", "--layout"} +
            layout));
    ASSERT_EQ(ran.code, 0) << layout[0] << ran.err << ran.out;
    for (const auto& run : runs_of(ran)) EXPECT_EQ(run["exit_code"], 201) << layout[0] << run;
  }
}

TEST(Chaos, ServersAreDisturbedLikeWorkers) {
  const SmallConfig config;
  const Ran ran = lockstep(chaos_on(config, {"--runs", "9", "--kinds", "kill,error,delay", "--layout",
                                             "dp=2,sync=ps,servers=2", "--json"}));
  ASSERT_EQ(ran.code, 0) << ran.err << ran.out;
  int servers = 0;
  for (const auto& run : runs_of(ran)) {
    EXPECT_EQ(run["bits_equal"], true) << run;
    EXPECT_EQ(run["leftover_processes"], 0) << run;
    const std::string fault = run["fault"];
    servers += fault.find("@2,") != std::string::npos || fault.find("@3,") != std::string::npos;
  }
  EXPECT_GT(servers, 0) << ran.out;
}

TEST(Chaos, AFlippedBitIsFoundAndNeverKept) {
  const SmallConfig config;
  for (const std::string layout : {"dp=2", "dp=2,shard=optimizer", "dp=2,sync=ps"}) {
    const Ran ran =
        lockstep(chaos_on(config, {"--runs", "2", "--kinds", "flip", "--layout", layout, "--json"}));
    ASSERT_EQ(ran.code, 0) << ran.err << ran.out;
    for (const auto& run : runs_of(ran)) {
      EXPECT_EQ(run["exit_code"], 70) << run;
      EXPECT_EQ(run["bits_equal"], true) << run;
    }
  }
}

/// A folder in front of PATH while it lives.
class PathFront {
 public:
  explicit PathFront(const std::string& folder) : before_(std::getenv("PATH")) {
    ::setenv("PATH", (folder + ":" + before_).c_str(), 1);
  }
  ~PathFront() { ::setenv("PATH", before_.c_str(), 1); }

 private:
  std::string before_;
};

TEST(Chaos, WhatGoesWrongIsShownWithTheWayToDoItAgain) {
  const SmallConfig config;
  // A cluster that takes no job twice.
  const PathFront front(config / "bin");
  std::filesystem::create_directory(config / "bin");
  write_file(config / "bin/mpirun",
             std::string("#!/bin/sh\ncase \"$*\" in *--resume*) echo 'no hosts left' >&2; exit 7;; esac\n"
                         "PATH=${PATH#*:}; exec mpirun \"$@\"\n"));
  std::filesystem::permissions(config / "bin/mpirun", std::filesystem::perms::owner_all);
  const Ran ran =
      lockstep(chaos_on(config, {"--runs", "1", "--kinds", "error", "--out", config / "a folder"}));
  EXPECT_EQ(ran.code, 70) << ran.err;
  EXPECT_THAT(ran.out, Mentions("3 restarts ... exit code 7: no hosts left"));
  EXPECT_THAT(ran.out, HasSubstr("again: mpirun -n 2 "));
  EXPECT_THAT(ran.out, HasSubstr("--failpoint error@"));
  EXPECT_THAT(ran.out, HasSubstr("1 of 1 runs failed; their output is in " + (config / "a folder")));
  EXPECT_TRUE(std::filesystem::exists(config / "a folder/run-001/stderr-1.txt"));
  const size_t at = ran.out.find("again: ") + 7;
  const Ran again = run_command({"sh", "-c", ran.out.substr(at, ran.out.find('\n', at) - at)});
  EXPECT_EQ(again.code, 70) << again.err;
  EXPECT_THAT(again.err, HasSubstr("failpoint error@"));
}

TEST(Chaos, ACheckpointThatMayFailIsSurvivedAlsoWhereWorkersShareMemory) {
  const SmallConfig config;
  // Seeds that draw the first operation, which begins a checkpoint, and one in its background.
  for (const auto& [seed, fault] :
       {std::pair("196", "error@0,20,write:1"), std::pair("157", "error@0,20,write:2")}) {
    const Ran ran = lockstep(
        chaos_on(config, {"--runs", "1", "--kinds", "error", "--json", "--seed", seed, "--set",
                          "checkpoint.on_failure=CONTINUE", "--set", "parallel.algorithm=SHARED_MEMORY"}));
    ASSERT_EQ(ran.code, 0) << ran.err << ran.out;
    const Json run = Json::parse(ran.out)["runs"][0];
    EXPECT_EQ(run["fault"], fault);
    EXPECT_EQ(run["happened"], true) << run;
    EXPECT_EQ(run["exit_code"], 0) << run;
    EXPECT_EQ(run["bits_equal"], true) << run;
  }
}

TEST(Chaos, RefusesBeforeAnythingRuns) {
  const SmallConfig config;
  const auto refusal = [&](const std::vector<std::string>& more) {
    const Ran ran = lockstep(std::vector<std::string>{"chaos", config.path(), "--out", config / "c"} + more);
    EXPECT_EQ(ran.code, 2) << ran.err;
    EXPECT_FALSE(std::filesystem::exists(config / "c"));
    return ran.err;
  };
  EXPECT_THAT(refusal({"--kinds", "kil"}), HasSubstr("did you mean 'kill'?"));
  EXPECT_THAT(refusal({"--workers", "1"}), HasSubstr("--workers"));
  EXPECT_THAT(refusal({"--workers", "2", "--layout", "dp=3"}), Mentions("3 processes ... 2"));
  EXPECT_THAT(refusal({"--layout", "dp=1"}), HasSubstr("layout 'dp=1': is one process"));
  EXPECT_THAT(refusal({"--workers", "5"}), HasSubstr("virtual"));
  const Ran nested = mpirun(1, {"chaos", config.path()});
  EXPECT_THAT(nested.err, HasSubstr("chaos starts mpirun itself"));
}

TEST(Chaos, TheJobComputesWhereItIsToldTo) {
  const SmallConfig config;
  const Ran ran = lockstep(chaos_on(config, {"--runs", "1", "--kinds", "error", "--json", "--device", "cpu",
                                             "--allow-shared-gpu", "--layout", "dp=3"}));
  ASSERT_EQ(ran.code, 0) << ran.err << ran.out;
  const std::string replay = Json::parse(ran.out)["runs"][0]["replay"];
  EXPECT_THAT(replay, testing::StartsWith("mpirun -n 3 "));
  EXPECT_THAT(replay, HasSubstr(" --layout dp=3 --device cpu --allow-shared-gpu "));
  EXPECT_THAT(ran.err, testing::Not(HasSubstr("computing on")));
  const Ran cuda = lockstep(chaos_on(config, {"--device", "cuda", "--out", config / "c"}));
  EXPECT_EQ(cuda.code, 69);
  EXPECT_THAT(cuda.err, HasSubstr("--device cuda: "));
  EXPECT_FALSE(std::filesystem::exists(config / "c"));
}

TEST(Chaos, AJobThatFailsByItselfIsNotDisturbed) {
  const SmallConfig config;
  const Ran ran = lockstep(chaos_on(config, {"--set", "optimizer.learning_rate=1e30"}));
  EXPECT_EQ(ran.code, 70);
  EXPECT_THAT(ran.err, HasSubstr("exit code 70"));
}

TEST(Failpoint, MistakesAreOneErrorOfAllRanks) {
  const SmallConfig config;
  for (const auto& [failpoint, message] :
       {std::pair("kill@1", "after the '@', found 1"), std::pair("kill@2,3", "there is no rank 2"),
        std::pair("kill@1,3,add,norm", "found 4"), std::pair("kill@0,3,lod", "did you mean 'load'?")}) {
    const Ran ran = mpirun(2, {"train", config.path(), "--failpoint", failpoint});
    EXPECT_EQ(ran.code, 2) << failpoint;
    EXPECT_THAT(ran.err, HasSubstr(message));
    EXPECT_EQ(occurrences(ran.err, "lockstep: error: "), 1u) << ran.err;
  }
}

TEST(Failpoint, AKillEndsTheJobAndIsNotRepeatedWhenItGoesOn) {
  const SmallConfig config;
  const std::string log = config / "log";
  ::setenv("LOCKSTEP_FAILPOINT_LOG", log.c_str(), 1);
  // Steps are so short that one saved in the background might not be there yet.
  const std::vector<std::string> train = {"train",       config.path(),
                                          "--out",       config / "a",
                                          "--set",       "checkpoint.every_steps=5",
                                          "--set",       "checkpoint.background=false",
                                          "--resume",    "auto",
                                          "--failpoint", "kill@1,9,norm",
                                          "--json"};
  const Ran killed = mpirun(2, train);
  EXPECT_THAT(killed.code, testing::AnyOf(137, 200)) << killed.err;
  EXPECT_THAT(read_text_file(log), HasSubstr(" kill@1,9,norm step 9, before step instruction "));
  const Ran resumed = mpirun(2, train);
  ::unsetenv("LOCKSTEP_FAILPOINT_LOG");
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_THAT(resumed.err, HasSubstr("resumed after step 5"));
  EXPECT_EQ(occurrences(read_text_file(log), "\n"), 1u);
  EXPECT_EQ(Json::parse(resumed.out)["params_hash"],
            Json::parse(mpirun(2, {"train", config.path(), "--json"}).out)["params_hash"]);
}

TEST(Failpoint, ANaNIsLocatedAtItsTensor) {
  const SmallConfig config;
  const Ran ran = mpirun(2, {"train", config.path(), "--failpoint", "nan@1,3,backward"});
  EXPECT_EQ(ran.code, 70);
  EXPECT_THAT(ran.err, HasSubstr("step 3: loss "));
  EXPECT_THAT(ran.err, HasSubstr("parameters are as before this step"));
}

}  // namespace
}  // namespace lockstep::test
