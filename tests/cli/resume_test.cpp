#include "mentions.h"
#include "program.h"

namespace lockstep::test {
namespace {

using testing::HasSubstr;
namespace fs = std::filesystem;

TEST(Train, NeverReplacesARunThatIsThere) {
  const SmallConfig config;
  const std::string run = config / "a";
  ASSERT_EQ(lockstep({"train", config.path(), "--out", run}).code, 0);
  const auto before = read_text_file(run + "/metrics.jsonl");
  for (const std::vector<std::string>& more : {std::vector<std::string>{}, {"--resume", "never"}}) {
    const Ran again = lockstep(std::vector<std::string>{"train", config.path(), "--out", run} + more);
    EXPECT_EQ(again.code, 2);
    EXPECT_THAT(again.err, HasSubstr("holds a run already"));
    EXPECT_THAT(again.err, HasSubstr("--resume auto"));
  }
  EXPECT_EQ(read_text_file(run + "/metrics.jsonl"), before);
  EXPECT_EQ(lockstep({"train", config.path(), "--out", run, "--resume", "auto"}).code, 0);
  EXPECT_EQ(read_text_file(run + "/metrics.jsonl"), before);
}

TEST(Train, StoppedAndResumedOnOtherRanksEndsWithTheSameBits) {
  const SmallConfig config;
  const std::string run = config / "a";
  const Json whole = only_json(lockstep({"train", config.path(), "--out", config / "whole", "--json"}));
  const Json stopped =
      only_json(mpirun(2, {"train", config.path(), "--out", run, "--stop-after", "7", "--json"}));
  EXPECT_EQ(stopped["steps"], 7);
  EXPECT_NE(stopped["params_hash"], whole["params_hash"]);
  const Json resumed =
      only_json(lockstep({"train", config.path(), "--out", run, "--resume", "auto", "--json"}));
  EXPECT_EQ(resumed["params_hash"], whole["params_hash"]);
  EXPECT_EQ(resumed["state_hash"], whole["state_hash"]);
  const auto once = metrics_of(config / "whole"), twice = metrics_of(run);
  ASSERT_EQ(twice.size(), once.size());
  for (size_t i = 0; i < once.size(); ++i) {
    EXPECT_EQ(twice[i]["step"], once[i]["step"]);
    EXPECT_EQ(twice[i].value("loss", 0.0), once[i].value("loss", 0.0)) << "line " << i + 1;
  }
  const Ran behind =
      lockstep({"train", config.path(), "--out", run, "--resume", "auto", "--stop-after", "3"});
  EXPECT_EQ(behind.code, 2);
  EXPECT_THAT(behind.err, HasSubstr("12 steps"));
}

/// The first evaluation is the best, and ten more bring nothing.
TEST(Train, PatienceCountsOnInAnotherFolder) {
  const SmallConfig config;
  const auto train = [&](const std::string& run, const std::vector<std::string>& more) {
    std::vector<std::string> command = {"train", config.path(), "--out", config / run, "--json"};
    for (const char* set : {"trainer.steps=200", "trainer.early_stopping=10", "trainer.eval_every_steps=5",
                            "checkpoint.keep_best=true", "optimizer.learning_rate=1e-30"})
      command.insert(command.end(), {"--set", set});
    return only_json(lockstep(command + more));
  };
  const Json whole = train("whole", {});
  EXPECT_EQ(whole["steps"], 55);
  EXPECT_EQ(train("old", {"--stop-after", "37"})["steps"], 37);
  const Json resumed = train("new", {"--resume", config / "old"});
  EXPECT_EQ(resumed["steps"], 55);
  EXPECT_EQ(resumed["best_step"], 5);
  EXPECT_EQ(resumed["params_hash"], whole["params_hash"]);
}

TEST(Train, AChangedConfigIsNotResumedUnasked) {
  const SmallConfig config;
  const std::vector<std::string> train = {"train", config.path(), "--out", config / "a", "--stop-after", "3"};
  ASSERT_EQ(lockstep(train).code, 0);
  const std::vector<std::string> resume = {"train",    config.path(), "--out", config / "a",
                                           "--resume", "auto",        "--set", "optimizer.learning_rate=0.1"};
  const Ran refused = lockstep(resume);
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, HasSubstr("optimizer.learning_rate"));
  EXPECT_EQ(lockstep(resume + std::vector<std::string>{"--allow-config-change"}).code, 0);
}

TEST(Train, ARateThatFollowsTheBatchGoesOnWithAnotherBatch) {
  const SmallConfig config;
  const auto train = [&](const std::string& run, const std::vector<std::string>& more) {
    return lockstep(std::vector<std::string>{"train", config.path(), "--out", config / run, "--set",
                                             "metrics.log_every_steps=1", "--set", "trainer.epochs=2"} +
                    more);
  };
  const std::vector<std::string> stop = {"--stop-after", "3"}, resume = {"--resume", "auto"};
  const std::vector<std::string> scaled = {
      "--set", "optimizer.scale_with_batch={from: 12 rule: LINEAR warmup_epochs: 1}"};
  ASSERT_EQ(train("a", scaled + stop).code, 0);
  const std::vector<std::string> larger =
      resume + scaled + std::vector<std::string>{"--set", "trainer.global_batch=48"};
  const Ran refused = train("a", larger);
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, HasSubstr("trainer.global_batch"));
  EXPECT_THAT(refused.err, HasSubstr("optimizer.learning_rate"));
  ASSERT_EQ(train("a", larger + std::vector<std::string>{"--allow-config-change"}).code, 0);
  const auto lines = metrics_of(config / "a");
  ASSERT_GT(lines.size(), 4u);
  EXPECT_DOUBLE_EQ(lines[2]["learning_rate"], 0.05 + (0.1 - 0.05) * 48 / 240);
  // 72 of the 240 samples of the warm-up are taken, and the peak is that of the larger batch.
  EXPECT_DOUBLE_EQ(lines[3]["learning_rate"], 0.05 + (0.2 - 0.05) * 72 / 240);

  // However the rate is stated, it is the same training.
  ASSERT_EQ(
      train("b",
            std::vector<std::string>{"--set", "optimizer.scale_with_batch={from: 12 rule: LINEAR}"} + stop)
          .code,
      0);
  const Ran plain = train("b", resume + std::vector<std::string>{"--set", "optimizer.learning_rate=0.1"});
  EXPECT_EQ(plain.code, 0) << plain.err;
}

/// Sends `signal` to `command` once its first metrics are there.
Ran interrupted(const std::string& signal, const std::string& command, const std::string& run) {
  return run_command({"sh", "-c",
                      command +
                          " & pid=$!\n"
                          "while kill -0 $pid 2>/dev/null && ! [ -s " +
                          run +
                          "/metrics.jsonl ]; do sleep 0.01; done\n"
                          "kill -" +
                          signal +
                          " $pid\n"
                          "wait $pid"});
}

TEST(Train, SignalsStopBehindAStepAndSaveIt) {
  const SmallConfig config;
  for (const auto& [signal, code] : {std::pair("TERM", 143), std::pair("USR1", 143)}) {
    const std::string run = config / signal;
    const Ran ran = interrupted(signal,
                                std::string(LOCKSTEP_PROGRAM) + " train " + config.path() +
                                    " --set trainer.steps=100000000 --out " + run,
                                run);
    EXPECT_EQ(ran.code, code) << ran.err;
    EXPECT_THAT(ran.err, HasSubstr("stopped by request after step"));
    EXPECT_FALSE(fs::is_empty(run + "/checkpoints"));
  }
}

TEST(Train, StopRequestReachesAllRanksThroughMpirun) {
  const SmallConfig config;
  const std::string run = config / "a";
  const Ran ran = interrupted("USR1",
                              "mpirun -n 2 " + std::string(LOCKSTEP_PROGRAM) + " train " + config.path() +
                                  " --set trainer.steps=100000000 --out " + run,
                              run);
  EXPECT_EQ(ran.code, 143) << ran.err;
  EXPECT_EQ(occurrences(ran.err, "stopped by request after step"), 1u) << ran.err;
  EXPECT_FALSE(fs::is_empty(run + "/checkpoints"));
}

/// What two ranks say to `run`, a checkpoint each in a working directory of its own, as on hosts without a
/// shared folder: that of rank r was left by a training with overrides[r] that stopped behind `steps`.
Ran resume_on_two_hosts(const SmallConfig& config, const std::string& steps,
                        const std::vector<std::vector<std::string>>& overrides) {
  std::vector<std::string> command{"mpirun"};
  for (size_t rank = 0; rank < overrides.size(); ++rank) {
    const std::string host = config / ("host" + std::to_string(rank));
    fs::create_directory(host);
    std::vector<std::string> training{"train", config.path(), "--out", host + "/run", "--stop-after", steps};
    for (const auto& each : overrides[rank]) training = training + std::vector<std::string>{"--set", each};
    EXPECT_EQ(lockstep(training).code, 0);
    if (rank > 0) command.push_back(":");
    command = command +
              std::vector<std::string>{"-n",    "1",           "--wdir",   host,  LOCKSTEP_PROGRAM,
                                       "train", config.path(), "--resume", "run", "--allow-config-change"};
  }
  return run_command(command);
}

TEST(Train, RanksThatSeeDifferentCheckpointsUnderOneNameAreNamed) {
  const SmallConfig seeds;
  const Ran states = resume_on_two_hosts(seeds, "4", {{"trainer.seed=1"}, {"trainer.seed=2"}});
  EXPECT_EQ(states.code, 65) << states.err;
  EXPECT_THAT(states.err, Mentions("run/checkpoints/step-00000004 ... rank 1"));

  // A first step that overflows leaves parameters as they were, whatever the scale.
  const SmallConfig scales;
  const auto half = [](const char* scale) {
    return std::vector<std::string>{"precision.compute=FLOAT16",
                                    std::string("precision.loss_scaling.initial_scale=") + scale};
  };
  const Ran progress = resume_on_two_hosts(scales, "1", {half("16777216"), half("8388608")});
  EXPECT_EQ(progress.code, 65) << progress.err;
  EXPECT_THAT(progress.err,
              Mentions("run/checkpoints/step-00000001 ... rank 1 ... 1 ... 1 ... 4194304 ... 0 steps"));
}

TEST(Train, TwoRunsNeverWriteIntoOneFolder) {
  const SmallConfig config;
  const std::string train = std::string(LOCKSTEP_PROGRAM) + " train " + config.path() +
                            " --quiet --resume auto --out " + (config / "run") + " --set trainer.steps=";
  // The second starts when the first has begun to write; the first goes on until it is told to stop.
  const Ran ran = run_command({"sh", "-c",
                               train + "100000000 & while [ ! -s " + (config / "run/metrics.jsonl") +
                                   " ]; do :; done; " + train + "5; code=$?; kill $!; wait; exit $code"});
  EXPECT_EQ(ran.code, 2);
  EXPECT_THAT(ran.err, HasSubstr("another run is writing there"));
}

TEST(Train, MetricsWithoutACheckpointAreSetAside) {
  const SmallConfig config;
  const std::vector<std::string> train = {"train",        config.path(), "--out",
                                          config / "run", "--resume",    "auto"};
  ASSERT_EQ(lockstep(train).code, 0);
  fs::remove_all(config / "run/checkpoints");
  const Ran again = lockstep(train);
  EXPECT_EQ(again.code, 0);
  EXPECT_THAT(again.err, HasSubstr("warning: "));
  EXPECT_EQ(read_text_file(config / "run/metrics.jsonl.1").empty(), false);
}

TEST(Train, KeepsTheBestCheckpointBesideTheNewest) {
  const SmallConfig config;
  // Learns, and then forgets again.
  const std::vector<std::string> train = {"train",
                                          config.path(),
                                          "--json",
                                          "--set",
                                          "checkpoint.keep_best=true",
                                          "--set",
                                          "checkpoint.keep=1",
                                          "--set",
                                          "trainer.eval_every_steps=2",
                                          "--set",
                                          "trainer.steps=12",
                                          "--set",
                                          "optimizer.learning_rate=3",
                                          "--set",
                                          "optimizer.schedule={warmup_steps: 12}"};
  const Json json = only_json(lockstep(train + std::vector<std::string>{"--out", config / "a"}));
  const auto best = json["best_step"].get<int64_t>();
  EXPECT_LT(best, 12);
  EXPECT_LT(json["best_eval_loss"], json["eval_loss"]);
  std::vector<std::string> left;
  for (const auto& entry : fs::directory_iterator(config / "a/checkpoints"))
    left.push_back(entry.path().filename());
  EXPECT_THAT(left, testing::UnorderedElementsAre("step-0000000" + std::to_string(best), "step-00000012"));
  const Json evaluated =
      only_json(lockstep({"eval", "--checkpoint", config / "a/best", "--json", "--quiet"}));
  EXPECT_EQ(evaluated["step"], best);
  EXPECT_EQ(evaluated["eval_loss"], json["best_eval_loss"]);
  EXPECT_EQ(only_json(lockstep({"eval", "--checkpoint", config / "a/best/", "--json", "--quiet"})),
            evaluated);
  const std::string within =
      "cd " + (config / "a") + " && " LOCKSTEP_PROGRAM " eval --checkpoint best --json --quiet";
  EXPECT_EQ(only_json(run_command({"sh", "-c", within})), evaluated);
  // Two ranks, stopped and resumed: the same.
  const std::vector<std::string> out = {"--out", config / "b"};
  EXPECT_EQ(mpirun(2, train + out + std::vector<std::string>{"--stop-after", "7"}).code, 0);
  const Json resumed = only_json(mpirun(2, train + out + std::vector<std::string>{"--resume", "auto"}));
  for (const char* field : {"best_step", "best_eval_loss", "params_hash"})
    EXPECT_EQ(resumed[field], json[field]) << field;
  EXPECT_EQ(only_json(lockstep({"eval", "--checkpoint", config / "b/best", "--json", "--quiet"})), evaluated);
  // What came after it may be of another model.
  ASSERT_EQ(lockstep(train + std::vector<std::string>{"--out", config / "a", "--resume", "auto",
                                                      "--allow-config-change", "--set", "trainer.steps=13",
                                                      "--set", "model.mlp.dropout=0.3"})
                .code,
            0);
  EXPECT_EQ(
      only_json(lockstep({"eval", config.path(), "--checkpoint", config / "a/best", "--json", "--quiet"})),
      evaluated);
  EXPECT_EQ(lockstep({"eval", config.path(), "--checkpoint", config / "a"}).code, 2);
  const Ran none = lockstep({"eval", "--checkpoint", config / "c/best", config.path()});
  EXPECT_EQ(none.code, 65);
  EXPECT_THAT(none.err, HasSubstr("c is no run"));
}

TEST(Train, SchedulesGroupsAndAveragesGoOnOnOtherRanks) {
  const SmallConfig config;
  const std::vector<std::string> train = {
      "train", config.path(),
      "--set", "optimizer.schedule={one_cycle {}}",
      "--set", "optimizer.groups={parameters: \"*.bias\" learning_rate_factor: 0.5}",
      "--set", "optimizer.ema={decay: 0.5 evaluate: true}",
      "--set", "model.frozen=[\"fc1\"]",
      "--json"};
  const Json whole = only_json(lockstep(train + std::vector<std::string>{"--out", config / "whole"}));
  const std::vector<std::string> out = {"--out", config / "a"};
  EXPECT_EQ(mpirun(2, train + out +
                          std::vector<std::string>{"--layout", "dp=2,shard=optimizer", "--stop-after", "7"})
                .code,
            0);
  const Json resumed = only_json(lockstep(train + out + std::vector<std::string>{"--resume", "auto"}));
  for (const char* field : {"params_hash", "state_hash", "eval_loss"})
    EXPECT_EQ(resumed[field], whole[field]) << field;
  const auto once = metrics_of(config / "whole"), twice = metrics_of(config / "a");
  ASSERT_EQ(twice.size(), once.size());
  for (size_t i = 0; i < once.size(); ++i)
    EXPECT_EQ(twice[i].value("learning_rate", 0.0), once[i].value("learning_rate", 0.0));
  // The average of a checkpoint is what the training has evaluated last.
  const auto eval = [&](const std::vector<std::string>& more) {
    return lockstep(std::vector<std::string>{"eval", "--checkpoint", config / "a", "--json", "--quiet"} +
                    more);
  };
  EXPECT_EQ(only_json(eval({"--average"}))["eval_loss"], whole["eval_loss"]);
  EXPECT_EQ(only_json(eval({}))["eval_loss"], whole["eval_loss"]);
  EXPECT_NE(only_json(eval({"--no-average"}))["eval_loss"], whole["eval_loss"]);
  const auto accuracy = [&](const char* option) {
    return only_json(lockstep({"predict", "--checkpoint", config / "a", "--json", option}))["accuracy"];
  };
  EXPECT_EQ(accuracy("--average"), whole["eval_accuracy"]);
  EXPECT_EQ(accuracy("--no-average"), only_json(eval({"--no-average"}))["eval_accuracy"]);
}

TEST(Train, TheBestIsDeterminedAfreshIfOtherWeightsAreEvaluated) {
  const SmallConfig config;
  const std::vector<std::string> train = {"train",
                                          config.path(),
                                          "--json",
                                          "--set",
                                          "checkpoint.keep_best=true",
                                          "--set",
                                          "trainer.eval_every_steps=2",
                                          "--out",
                                          config / "a"};
  ASSERT_EQ(lockstep(train + std::vector<std::string>{"--set", "optimizer.ema={decay: 0.5 evaluate: true}",
                                                      "--stop-after", "6"})
                .code,
            0);
  EXPECT_EQ(
      only_json(lockstep({"eval", "--checkpoint", config / "a/best", "--json"}))["eval_loss"],
      only_json(lockstep({"eval", "--checkpoint", config / "a/best", "--average", "--json"}))["eval_loss"]);
  // A loss of averages that no loss of parameters reaches stands for nothing any more.
  const Ran resumed = lockstep(train + std::vector<std::string>{"--set", "optimizer.ema={decay: 0.5}",
                                                                "--set", "optimizer.learning_rate=3",
                                                                "--resume", "auto", "--allow-config-change"});
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_THAT(resumed.err, Mentions("optimizer.ema.evaluate"));
  EXPECT_EQ(only_json(lockstep({"eval", "--checkpoint", config / "a/best", "--json"}))["eval_loss"],
            only_json(resumed)["best_eval_loss"]);
}

TEST(Train, FrozenLayersLearnAndAveragesBeginWhereAChangeIsAllowed) {
  const SmallConfig config;
  ASSERT_EQ(lockstep({"train", config.path(), "--out", config / "a", "--stop-after", "5", "--set",
                      "model.frozen=[\"fc1\"]"})
                .code,
            0);
  const Ran none = lockstep({"eval", "--checkpoint", config / "a", "--average"});
  EXPECT_EQ(none.code, 2);
  EXPECT_THAT(none.err, Mentions("optimizer.ema ... --no-average"));
  const std::vector<std::string> resume = {
      "train", config.path(), "--resume", "auto", "--set", "optimizer.ema={decay: 0.5}", "--json"};
  const auto copied = [&](const std::string& name) {
    fs::copy(config / "a", config / name, fs::copy_options::recursive | fs::copy_options::copy_symlinks);
    return std::vector<std::string>{"--out", config / name};
  };
  const Ran refused = lockstep(resume + copied("b"));
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, Mentions("model.frozen: [fc1] in the checkpoint"));
  const std::vector<std::string> allowed = {"--allow-config-change"};
  const Json one = only_json(lockstep(resume + copied("c") + allowed)),
             two = only_json(mpirun(2, resume + copied("d") + allowed +
                                           std::vector<std::string>{"--layout", "dp=2,shard=optimizer"}));
  EXPECT_EQ(one["state_hash"], two["state_hash"]);
}

TEST(Train, ALinkThatLeadsNowhereIsFoundBeforeTheFirstStep) {
  const SmallConfig config;
  fs::create_directories(config / "a/checkpoints");
  fs::create_symlink("nowhere", config / "a/checkpoints/step-00000010");
  const Ran ran = lockstep({"train", config.path(), "--out", config / "a", "--resume", "auto"});
  EXPECT_EQ(ran.code, 2);
  EXPECT_THAT(ran.err, HasSubstr("step-00000010"));
  fs::rename(config / "a/checkpoints/step-00000010", config / "a/checkpoints/mine");
  EXPECT_EQ(lockstep({"train", config.path(), "--out", config / "a", "--resume", "auto"}).code, 0);
}

}  // namespace
}  // namespace lockstep::test
