#include <cmath>

#include "program.h"

namespace lockstep::test {
namespace {

using testing::HasSubstr;
namespace fs = std::filesystem;

std::vector<Json> metrics_of(const std::string& run) {
  std::vector<Json> lines;
  for (const auto& line : split(read_text_file(run + "/metrics.jsonl"), '\n'))
    if (!line.empty()) lines.push_back(Json::parse(line));
  return lines;
}

TEST(Train, WithoutSamplesToEvaluateOnThereIsNoEvaluation) {
  const SmallConfig config;
  const std::vector<std::string> none = {"--set", "data.synthetic.eval_samples=0", "--set",
                                         "trainer.eval_every_steps=0"};
  const Json json = only_json(
      lockstep(std::vector<std::string>{"train", config.path(), "--json", "--out", config / "run"} + none));
  EXPECT_FALSE(json.contains("eval_loss"));
  EXPECT_EQ(json["steps"], 12);
  const Ran eval = lockstep({"eval", "--checkpoint", config / "run"});
  EXPECT_EQ(eval.code, 2);
  EXPECT_THAT(eval.err, HasSubstr("eval: the data have nothing to evaluate on"));
}

TEST(Train, Float16TellsOfItsLossScaleAndOfWhatOverflowed) {
  const SmallConfig config;
  const std::string run = config / "half";
  const Ran ran =
      lockstep({"train", config.path(), "--out", run, "--json", "--set", "precision.compute=FLOAT16", "--set",
                "precision.loss_scaling.initial_scale=16777216"});
  ASSERT_EQ(ran.code, 0) << ran.err;
  const Json json = Json::parse(ran.out);
  const auto skipped = json["skipped_steps"].get<int>();
  EXPECT_GE(skipped, 2);
  EXPECT_LT(skipped, 12);
  EXPECT_EQ(json["loss_scale"], std::ldexp(1.0, 24 - skipped));  // it halved at each
  EXPECT_EQ(occurrences(ran.err, "skipped"), 0u) << ran.err;
  EXPECT_THAT(ran.err, HasSubstr("stored as float16"));
  const auto metrics = metrics_of(run);
  EXPECT_EQ(metrics[0]["loss_scale"], 16777216);
  EXPECT_EQ(metrics[0]["skipped"], 1);
  EXPECT_EQ(metrics[1]["loss_scale"], 8388608);
}

TEST(Profile, IsWhatStagesAreDividedBy) {
  const SmallConfig config;
  const std::string file = config / "small.profile";
  const Ran ran = lockstep({"profile", config.path(), "--steps", "4", "--out", file});
  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.out,
              HasSubstr("small.textproto: 4 steps after 3 of warm-up, layout dp=1, micro-batches of 6 on "));
  for (const char* row : {"\nfc1 ", "\nloss ", "\nmicro-batch ", "\nupdate ", "--set parallel.profile="})
    EXPECT_THAT(ran.out, HasSubstr(row));
  EXPECT_THAT(read_text_file(file), HasSubstr("name: \"fc1\""));
  const Ran again = lockstep({"profile", config.path(), "--out", file});
  EXPECT_EQ(again.code, 2);
  EXPECT_THAT(again.err, HasSubstr("small.profile: is there already; remove it, or name another file"));
  EXPECT_NE(lockstep({"profile", config.path(), "--out", config / "none/x.profile"}).code, 0);
  // Whatever the config says of saving, resuming, and of a profile that is not there yet.
  const std::string own = config / "own.profile";
  const Ran itself =
      lockstep({"profile", config.path(), "--steps", "1", "--out", own, "--set", "parallel.profile=" + own,
                "--set", "checkpoint.every_steps=5", "--set", "checkpoint.keep=2", "--quiet"});
  EXPECT_EQ(itself.code, 0) << itself.err;

  const Ran inspected =
      lockstep({"inspect", config.path(), "--layout", "dp=1,pp=2", "--set", "parallel.profile=" + file});
  EXPECT_EQ(inspected.code, 0) << inspected.err;
  EXPECT_THAT(inspected.out, HasSubstr("s, sums and communication apart, with the times of " + file));
  const Json json = only_json(mpirun(
      2, {"train", config.path(), "--json", "--set", "parallel.profile=" + file, "--layout", "dp=1,pp=2"}));
  EXPECT_EQ(json["params_hash"], only_json(lockstep({"train", config.path(), "--json"}))["params_hash"]);
}

TEST(Profile, IsOfAllRanksTogether) {
  const SmallConfig config;
  const Json json = only_json(
      mpirun(2, {"profile", config.path(), "--steps", "2", "--json", "--layout", "dp=1,pp=2,schedule=1f1b"}));
  EXPECT_EQ(json["micro_batch"], 6);
  EXPECT_GT(json["micro_batch_seconds"], 0);
  EXPECT_GT(json["update_seconds"], 0);
  for (const auto& layer : json["layers"])
    if (layer["op"] == "linear") {
      EXPECT_GT(layer["backward_weight_seconds"], 0) << layer;
    }
  const Ran refused = mpirun(2, {"profile", config.path(), "--layout", "dp=1,sync=ps,mode=stale", "--set",
                                 "parallel.reduction=FAST"});
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, HasSubstr("do not make steps together; measure with --layout dp=1"));
}

TEST(Train, ComputesWithAsManyThreadsAsItIsToldOrNotAtAll) {
  const SmallConfig config;
  const auto with_environment = [&](const std::string& variable) {
    return run_command({"env", variable, LOCKSTEP_PROGRAM, "train", config.path(), "--json", "--set",
                        "parallel.intra_op_threads=2"});
  };
  EXPECT_EQ(only_json(with_environment("OMP_DYNAMIC=true"))["params_hash"],
            only_json(with_environment("OMP_DYNAMIC=false"))["params_hash"]);
  for (const std::string variable : {"OMP_THREAD_LIMIT=1", "OMP_MAX_ACTIVE_LEVELS=0"}) {
    const Ran refused = with_environment(variable);
    EXPECT_EQ(refused.code, 2) << variable;
    EXPECT_THAT(refused.err, HasSubstr("parallel.intra_op_threads is 2, and OpenMP starts 1: " + variable +
                                       " allows no more; unset it, or set parallel.intra_op_threads to 1"));
  }
}

TEST(Train, JsonIsTheOnlyThingOnStdoutAndHasEveryField) {
  const SmallConfig config;
  const Ran ran = lockstep({"train", config.path(), "--json"});
  const Json json = only_json(ran);
  for (const char* field : {"steps",
                            "epochs",
                            "skipped_steps",
                            "train_loss",
                            "eval_loss",
                            "eval_accuracy",
                            "samples_per_second",
                            "step_ms",
                            "exposed_comm_ms",
                            "data_wait_ms",
                            "startup_ms",
                            "first_step_ms",
                            "startup_parts_ms",
                            "peak_memory_bytes",
                            "host_memory_bytes",
                            "process_memory_bytes",
                            "params_hash",
                            "state_hash",
                            "math_hash",
                            "config_hash",
                            "world_size",
                            "layout",
                            "ranks"})
    EXPECT_TRUE(json.contains(field)) << field;
  EXPECT_EQ(json["steps"], 12);
  EXPECT_DOUBLE_EQ(json["epochs"], 1.2);
  EXPECT_EQ(json["world_size"], 1);
  EXPECT_EQ(json["layout"], "dp=1");
  EXPECT_GT(json["startup_ms"], 0);
  EXPECT_LT(json["startup_ms"], 60000);
  double parts = 0;
  for (const auto& [name, milliseconds] : json["startup_parts_ms"].items())
    parts += milliseconds.get<double>();
  EXPECT_NEAR(json["first_step_ms"].get<double>(), parts, 1e-6);
  EXPECT_NEAR(json["startup_ms"].get<double>() + json["startup_parts_ms"]["first_step"].get<double>(), parts,
              1e-6);
  EXPECT_THAT(ran.err, HasSubstr("global batch 24 = 1 worker x 4 leaves"));
  EXPECT_THAT(ran.err, HasSubstr("12/12"));
}

TEST(Train, QuietSaysNothingAndTheTableNamesTheAccuracy) {
  const SmallConfig config;
  const Ran ran = lockstep({"train", config.path(), "--quiet"});
  EXPECT_EQ(ran.code, 0);
  EXPECT_EQ(ran.err, "");
  EXPECT_THAT(ran.out, HasSubstr("accuracy"));
}

TEST(Train, MemoryIsWhatThePlanSays) {
  const SmallConfig config;
  // Without threads that read ahead, how much there is of that does not depend on their speed.
  const std::string unhurried = "--set=data.prefetch_threads=0";
  const Json plan = Json::parse(lockstep({"inspect", config.path(), unhurried, "--json"}).out);
  const Json report = only_json(lockstep({"train", config.path(), unhurried, "--device", "cpu", "--json"}));
  EXPECT_EQ(report["peak_memory_bytes"], plan["memory_bytes"]["total"]);
  // What is agreed on in a step, its replay, the evaluation and behind a checkpoint, 16 bytes each, and how
  // the last went.
  EXPECT_EQ(plan["host_memory_bytes"],
            Json({{"checkpoint_copy", 0}, {"staging", 96}, {"served", 0}, {"read_ahead", 0}, {"total", 96}}));
  EXPECT_EQ(report["host_memory_bytes"], 96);
}

TEST(Train, TwoRanksMakeTheBitsOfOneProcess) {
  const SmallConfig config;
  const Json one = only_json(lockstep({"train", config.path(), "--json"}));
  const Json two = only_json(mpirun(2, {"train", config.path(), "--json"}));
  EXPECT_EQ(two["world_size"], 2);
  EXPECT_EQ(two["layout"], "dp=2");
  for (const char* field :
       {"train_loss", "eval_loss", "eval_accuracy", "params_hash", "state_hash", "math_hash"})
    EXPECT_EQ(two[field], one[field]) << field;
}

TEST(Train, TheLayoutIsNamedAlikeEverywhere) {
  const SmallConfig config;
  const std::string run = config / "a";
  const Ran ran = mpirun(2, {"train", config.path(), "--layout", "dp=2,pp=1", "--out", run, "--json"});
  EXPECT_EQ(only_json(ran)["layout"], "dp=2");
  EXPECT_THAT(ran.err, HasSubstr("2 workers, layout dp=2, REPRODUCIBLE reduction"));
  for (const auto& line : metrics_of(run)) EXPECT_EQ(line["layout"], "dp=2");
  EXPECT_EQ(Json::parse(read_text_file(run + "/checkpoints/step-00000012/manifest.json"))["layout"], "dp=2");
  EXPECT_THAT(read_text_file(run + "/config.effective.textproto"), HasSubstr("  dp: 2\n"));
}

TEST(Train, APipelineTellsItsStagesAndItsBubble) {
  const SmallConfig config;
  const Ran ran = mpirun(2, {"train", config.path(), "--layout", "pp=2", "--set", "trainer.micro_batch=3",
                             "--json", "--verbose"});
  const Json json = only_json(ran);
  const Json plain =
      only_json(mpirun(1, {"train", config.path(), "--set", "trainer.micro_batch=3", "--json"}));
  EXPECT_EQ(json["layout"], "dp=1,pp=2");
  EXPECT_EQ(json["params_hash"], plain["params_hash"]);
  EXPECT_EQ(json["state_hash"], plain["state_hash"]);
  for (const int rank : {0, 1}) {
    EXPECT_EQ(json["ranks"][rank]["stage"], rank);
    EXPECT_EQ(json["ranks"][rank]["replica"], 0);
    EXPECT_EQ(json["ranks"][rank]["wire_bytes"]["sent"], json["ranks"][rank]["wire_bytes_theory"]["sent"]);
  }
  // (p-1) / (m+p-1) of it, with eight micro-batches.
  EXPECT_NEAR(json["bubble_fraction_theory"].get<double>(), 1.0 / 9, 1e-9);
  EXPECT_GE(json["bubble_fraction"].get<double>(), 0);
  EXPECT_LE(json["bubble_fraction"].get<double>(), 1);
  EXPECT_THAT(ran.err, HasSubstr("1f1b of 8 micro-batches: stages wait for 11.1 % of a step"));
}

/// configs/too_large.textproto, as docs/pipeline.md has it.
TEST(Train, ServersAreToldOfBesideWorkers) {
  const SmallConfig config;
  const Ran ran =
      mpirun(4, {"train", config.path(), "--layout", "dp=2,sync=ps,servers=2", "--json", "--verbose"});
  const Json ranks = only_json(ran)["ranks"];
  ASSERT_EQ(ranks.size(), 4u);
  for (const Json& rank : ranks) {
    const bool serves = rank["rank"] >= 2;
    EXPECT_EQ(rank["role"], serves ? "server" : "worker");
    for (const char* field : {"server_busy", "server_wait_ms"})
      EXPECT_EQ(rank.contains(field), serves) << field;
    for (const char* field : {"compute_share", "exposed_comm_ms", "data_wait_ms"})
      EXPECT_EQ(rank.contains(field), !serves) << field;
    EXPECT_GT(rank["wire_bytes"]["sent"], 0);
    EXPECT_EQ(rank["wire_bytes"], rank["wire_bytes_theory"]);
    if (!serves) continue;
    EXPECT_GT(rank["server_busy"], 0);
    EXPECT_LE(rank["server_busy"], 1);
  }
  EXPECT_THAT(ran.err,
              testing::ContainsRegex(
                  "served bytes: [0-9.]+ (bytes|KiB|B) on rank 2, [0-9.]+ (bytes|KiB|B) on rank 3\n"));
  EXPECT_THAT(ran.err, HasSubstr("memory of a server, rank "));
}

TEST(Train, WhatIsTooLargeForOneDeviceTrainsAsIsSuggested) {
  const std::string config = std::string(LOCKSTEP_CONFIGS) + "/too_large.textproto";
  const Ran refused = lockstep({"train", config});
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err,
              testing::AllOf(HasSubstr("layout 'dp=1': rank 0 takes "), HasSubstr("\n  activations "),
                             HasSubstr(" more than device.memory_limit allows (40.00 MiB)")));
  // "     30.94 MiB    0.56          2   --layout dp=1,pp=2"
  const size_t option = refused.err.find("--layout ");
  ASSERT_NE(option, std::string::npos) << refused.err;
  std::vector<std::string> pasted;
  for (const auto& word : split(refused.err.substr(option, refused.err.find('\n', option) - option), ' '))
    pasted.emplace_back(word);
  const size_t line = refused.err.rfind('\n', option) + 1;
  std::vector<std::string> columns;
  for (const auto& word : split(refused.err.substr(line, option - line), ' '))
    if (!word.empty()) columns.emplace_back(word);
  ASSERT_EQ(columns.size(), 4u);  // the size has a unit
  const int processes = std::stoi(columns[3]);
  EXPECT_EQ(processes, 2);

  std::vector<std::string> arguments{"train", config, "--json", "--set", "trainer.steps=5"};
  arguments.insert(arguments.end(), pasted.begin(), pasted.end());
  const Json json = only_json(mpirun(processes, arguments));
  EXPECT_EQ(json["steps"], 5);
  const auto peak = json["peak_memory_bytes"].get<int64_t>();
  EXPECT_LE(peak, 41943040);
  EXPECT_EQ(human_bytes(peak), columns[0] + " " + columns[1]) << "the plan is what is allocated";
}

/// With little of a library's own beside it.
TEST(Train, TakesAboutTheMemoryThatWasPlanned) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers have memory of their own";
#endif
  const std::string config = std::string(LOCKSTEP_CONFIGS) + "/too_large.textproto";
  for (const auto& [ranks, layout] : {std::pair(1, "dp=1"), std::pair(2, "dp=1,pp=2,schedule=gpipe")}) {
    const Json json = only_json(mpirun(ranks, {"train", config, "--json", "--layout", layout, "--set",
                                               "trainer.steps=2", "--set", "trainer.global_batch=64", "--set",
                                               "trainer.micro_batch=16", "--set", "device.memory_limit=0"}));
    const auto planned = json["peak_memory_bytes"].get<double>();
    const auto grown = json["process_memory_growth_bytes"].get<double>();
    EXPECT_GT(planned, 80e6) << "a percent is more than noise";
    EXPECT_GT(grown, 0.9 * planned) << layout;
    EXPECT_LT(grown, 1.1 * planned) << layout;
  }
}

TEST(Train, ALayoutThatCannotRunIsOneErrorWithTheNearestThatCan) {
  const SmallConfig config;
  const auto refusal = [&](int ranks, const std::string& layout,
                           const std::string& reduction = "REPRODUCIBLE") {
    const Ran ran = mpirun(
        ranks, {"train", config.path(), "--layout", layout, "--set", "parallel.reduction=" + reduction});
    EXPECT_EQ(ran.code, 2) << layout;
    EXPECT_EQ(occurrences(ran.err, "lockstep: error: "), 1u) << ran.err;
    return ran.err;
  };
  EXPECT_THAT(refusal(2, "dp=3"),
              HasSubstr("layout 'dp=3': takes 3 processes, but there are 2; start 3, or use 'dp=2'"));
  EXPECT_THAT(refusal(3, "pp=2,sync=ps,mode=async", "FAST"),
              HasSubstr("the nearest that works is 'dp=1,pp=2,sync=ps'"));
  EXPECT_THAT(refusal(2, "bound=2"), HasSubstr("(did you mean 'sync=ps,mode=stale,bound=2'?)"));
  EXPECT_THAT(refusal(1, ""), HasSubstr("layout '': it is empty"));
}

TEST(Train, WritesMetricsEffectiveConfigAndCheckpoint) {
  const SmallConfig config;
  const std::string run = config / "runs/a";
  const Json json = only_json(lockstep({"train", config.path(), "--out", run, "--json"}));
  const auto metrics = metrics_of(run);
  ASSERT_EQ(metrics.size(), 12u + 3u);  // steps, and evaluations after steps 5, 10 and 12
  EXPECT_EQ(metrics[0]["step"], 1);
  EXPECT_EQ(metrics[5]["step"], 5);
  EXPECT_TRUE(metrics[5].contains("eval_loss"));
  EXPECT_EQ(metrics[13]["step"], 12);
  EXPECT_EQ(metrics[13]["loss"], json["train_loss"]);  // all digits
  EXPECT_EQ(metrics[14]["eval_accuracy"], json["eval_accuracy"]);
  for (const char* field : {"learning_rate", "grad_norm", "step_ms"})
    EXPECT_TRUE(metrics[0].contains(field)) << field;
  EXPECT_TRUE(fs::exists(run + "/checkpoints/step-00000012/manifest.json"));
  EXPECT_EQ(lockstep({"config", "check", run + "/config.effective.textproto"}).code, 0);
}

TEST(Train, SkippedStepsAreCountedWarnedOfAndMarkedInTheMetrics) {
  const SmallConfig config;
  const std::string run = config / "a";
  // The first step makes parameters of 1e30, whose losses are not finite.
  const std::vector<std::string> train = {"train",  config.path(),
                                          "--out",  run,
                                          "--json", "--quiet",
                                          "--set",  "trainer.nonfinite=SKIP",
                                          "--set",  "optimizer.learning_rate=1e30",
                                          "--set",  "trainer.eval_at_end=false",
                                          "--set",  "trainer.eval_every_steps=0",
                                          "--set",  "metrics.log_every_steps=100"};
  const Ran ran = mpirun(2, train + std::vector<std::string>{"--set", "trainer.nonfinite_limit=12"});
  const Json json = only_json(ran);
  EXPECT_EQ(json["steps"], 12);
  EXPECT_EQ(json["skipped_steps"], 11);
  EXPECT_EQ(occurrences(ran.err, "the step is skipped"), 5u)
      << ran.err;  // the first three, the fourth, the eighth
  const auto metrics = metrics_of(run);
  ASSERT_EQ(metrics.size(), 11u);  // nothing but what was skipped, and the last step, which was too
  for (const auto& line : metrics) {
    EXPECT_EQ(line["skipped"], 1);
    EXPECT_TRUE(line["loss"].is_string()) << line;
  }

  std::filesystem::remove_all(run);
  const Ran ended = lockstep(train + std::vector<std::string>{"--set", "trainer.nonfinite_limit=4"});
  EXPECT_EQ(ended.code, 70);
  EXPECT_THAT(ended.err, HasSubstr("it is skipped step 4, and trainer.nonfinite_limit is 4"));
}

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
  EXPECT_THAT(behind.err, HasSubstr("the run has 12 steps already"));
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

TEST(Train, RanksThatDifferAreNamedWithTheField) {
  const SmallConfig config;
  const Ran ran =
      mpirun({{1, {"train", config.path()}}, {1, {"train", config.path(), "--set", "trainer.seed=2"}}});
  EXPECT_EQ(ran.code, 2);
  EXPECT_EQ(ran.out, "");
  EXPECT_THAT(ran.err, HasSubstr("trainer.seed: rank 1 has 2, rank 0 has 1"));
  EXPECT_EQ(occurrences(ran.err, "lockstep: error: "), 1u) << ran.err;
}

TEST(Train, OptionsThatDecideWhatRanksDoTogetherMustBeTheSame) {
  const SmallConfig config;
  const Ran out =
      mpirun({{1, {"train", config.path(), "--out", config / "run"}}, {1, {"train", config.path()}}});
  EXPECT_EQ(out.code, 2) << out.err;
  EXPECT_THAT(out.err, HasSubstr("--out: rank 1 has not given, rank 0 has given"));
  const Ran stop =
      mpirun({{1, {"train", config.path()}}, {1, {"train", config.path(), "--stop-after", "3"}}});
  EXPECT_EQ(stop.code, 2) << stop.err;
  EXPECT_THAT(stop.err, HasSubstr("--stop-after: rank 1 has 3, rank 0 has 0"));
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
  EXPECT_THAT(states.err, HasSubstr("state of checkpoint run/checkpoints/step-00000004: rank 1 has"));

  // A first step that overflows leaves parameters as they were, whatever the scale.
  const SmallConfig scales;
  const auto half = [](const char* scale) {
    return std::vector<std::string>{"precision.compute=FLOAT16",
                                    std::string("precision.loss_scaling.initial_scale=") + scale};
  };
  const Ran progress = resume_on_two_hosts(scales, "1", {half("16777216"), half("8388608")});
  EXPECT_EQ(progress.code, 65) << progress.err;
  EXPECT_THAT(progress.err,
              HasSubstr("progress of checkpoint run/checkpoints/step-00000001: rank 1 has "
                        "1 skipped steps, 1 of them overflows, loss scale 4194304 for 0 steps"));
}

TEST(Train, FailuresHaveTheirExitCodes) {
  const SmallConfig config;
  const Ran cuda = lockstep({"train", config.path(), "--device", "cuda"});
  EXPECT_EQ(cuda.code, 69);
  EXPECT_THAT(cuda.err, HasSubstr("--device cuda: "));

  const std::string idx =
      "data.idx={train_images: \"i\" train_labels: \"l\" eval_images: \"i\" eval_labels: \"l\"}";
  const std::vector<std::string> train = {"train", config.path(), "--set",
                                          idx,     "--data-dir",  config / "data"};
  const Ran missing = lockstep(train);
  EXPECT_EQ(missing.code, 74);
  EXPECT_THAT(missing.err, HasSubstr(config / "data/i"));
  fs::create_directory(config / "data");
  for (const char* name : {"data/i", "data/l"}) write_file(config / name, std::string("not an IDX file"));
  EXPECT_EQ(lockstep(train).code, 65);
  // Every rank meets the same error, and it is said once.
  const Ran ranks = mpirun(2, train);
  EXPECT_EQ(ranks.code, 65);
  EXPECT_EQ(occurrences(ranks.err, "lockstep: error: "), 1u) << ranks.err;

  write_file(config / "file", std::string("x"));
  EXPECT_EQ(lockstep({"train", config.path(), "--out", config / "file"}).code, 2);
  EXPECT_EQ(lockstep({"train", config.path(), "--out", config / "file/below"}).code, 74);
  EXPECT_EQ(lockstep({"train", config.path(), "--resume", config / "nowhere"}).code, 65);
  EXPECT_EQ(lockstep({"train", config.path(), "--resume", "auto"}).code, 2);
}

TEST(Train, ALimitOfFileSizesIsAnErrorOfTheDisk) {
  const SmallConfig config;
  const auto limited = [&](const std::string& policy) {
    return run_command({"bash", "-c", "ulimit -f 8; exec \"$@\"", "limited", LOCKSTEP_PROGRAM, "train",
                        config.path(), "--out", config / policy, "--set", "trainer.steps=2000", "--set",
                        "trainer.eval_every_steps=0", "--set", "checkpoint.at_end=false", "--set",
                        "checkpoint.background=false", "--set", "checkpoint.on_failure=" + policy});
  };
  const Ran stopped = limited("STOP"), gone_on = limited("CONTINUE");
  for (const Ran* ran : {&stopped, &gone_on}) {
    EXPECT_EQ(ran->code, 74) << ran->err;
    EXPECT_THAT(ran->err, HasSubstr("ulimit -f"));
  }
  // Its own thread writes metrics, so the run ends some steps later. Or goes on to the end, where what is
  // missing is not told in silence.
  EXPECT_EQ(occurrences(stopped.err, "step 2000: evaluation"), 0u);
  EXPECT_EQ(occurrences(gone_on.err, "step 2000: evaluation"), 1u) << gone_on.err;
}

TEST(Train, ANonFiniteLossEndsAllRanksAndNamesATensor) {
  const SmallConfig config;
  const Ran ran = mpirun(2, {"train", config.path(), "--set", "optimizer.learning_rate=1e30"});
  EXPECT_EQ(ran.code, 70);
  EXPECT_THAT(ran.err, HasSubstr("not both finite"));
  EXPECT_THAT(ran.err, HasSubstr("first: "));
  EXPECT_EQ(occurrences(ran.err, "lockstep: error: "), 1u) << ran.err;
}

TEST(Train, AnErrorOfOneRankAloneEndsTheOthers) {
  const SmallConfig config;
  write_file(config / "file", std::string("x"));
  const std::vector<std::string> train = {"train", config.path(), "--quiet", "--set",
                                          "trainer.steps=100000000"};
  const auto traced = [&](const std::string& folder) {
    return train + std::vector<std::string>{"--trace", folder};
  };
  const Ran ran = mpirun({{1, traced(config / "traces")}, {1, traced(config / "file")}});
  EXPECT_EQ(ran.code, 74);
  EXPECT_THAT(ran.err, HasSubstr("lockstep: error: cannot write " + (config / "file/trace-1.jsonl")));
}

TEST(Train, AStepOfTooManyMicroBatchesIsRefusedBeforeItTakesMemory) {
  const SmallConfig config;
  const Ran ran = lockstep(
      {"train", config.path(), "--set", "trainer.global_batch=1073741824", "--set", "trainer.micro_batch=1"});
  EXPECT_EQ(ran.code, 2);
  EXPECT_THAT(ran.err, HasSubstr("raise trainer.micro_batch"));
  const Ran wide = lockstep({"train", config.path(), "--set", "trainer.global_batch=1073741824"});
  EXPECT_EQ(wide.code, 2);
  EXPECT_THAT(wide.err, HasSubstr("more than 2^31"));
}

TEST(Train, AClosedStandardErrorPutsNothingIntoTheRunsFiles) {
  const SmallConfig config;
  const Ran ran = run_command(
      {"sh", "-c",
       std::string(LOCKSTEP_PROGRAM) + " train " + config.path() + " --out " + (config / "run") + " 2>&-"});
  EXPECT_EQ(ran.code, 0);
  EXPECT_EQ(metrics_of(config / "run").size(), 12u + 3u);  // steps, and evaluations behind 5, 10 and 12
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

TEST(Train, APipeInPlaceOfDataIsRefusedAtOnce) {
  const SmallConfig config;
  const Ran ran =
      run_command({"sh", "-c",
                   "mkfifo " + (config / "pipe") + " && " + LOCKSTEP_PROGRAM + " train " + config.path() +
                       " --set 'data.idx={train_images: \"pipe\" train_labels: \"pipe\" eval_images: "
                       "\"pipe\" eval_labels: "
                       "\"pipe\"}' --data-dir " +
                       (config / "")});
  EXPECT_EQ(ran.code, 74);
  EXPECT_THAT(ran.err, HasSubstr("not a regular file"));
}

TEST(Train, AModelThatDivergedInItsLastStepIsAnError) {
  const SmallConfig config;
  const Ran ran = lockstep({"train", config.path(), "--set", "trainer.steps=1", "--set",
                            "optimizer.weight_decay=3e38", "--set", "optimizer.learning_rate=3e38"});
  EXPECT_EQ(ran.code, 70);
  EXPECT_THAT(ran.err, HasSubstr("diverged"));
}

TEST(Train, AnEmptyFolderNameIsAMistake) {
  const SmallConfig config;
  EXPECT_EQ(lockstep({"train", config.path(), "--out", ""}).code, 2);
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

TEST(Train, SaysLittleUnlessAsked) {
  const SmallConfig config;
  const Ran brief = lockstep({"train", config.path(), "--set", "parallel.reduction=FAST"});
  ASSERT_EQ(brief.code, 0) << brief.err;
  EXPECT_LE(occurrences(brief.err.substr(0, brief.err.find("step 5:")), "\n"), 8u) << brief.err;
  EXPECT_THAT(brief.out, testing::StartsWith("evaluation loss"));
  EXPECT_THAT(brief.err, HasSubstr("trainer.virtual_replicas is unused under FAST"));  // the config states it
  for (const char* detail : {"planned memory", "first step done", "state hash"})
    EXPECT_EQ(occurrences(brief.out, detail), 0u);
  const Ran verbose = lockstep({"train", config.path(), "--verbose"});
  for (const char* detail : {"planned memory", "first step done", "state hash"})
    EXPECT_THAT(verbose.out, HasSubstr(detail));
  EXPECT_THAT(verbose.err, HasSubstr("beside it, of the host:"));
  EXPECT_EQ(lockstep({"train", config.path(), "--verbose", "--quiet"}).code, 2);
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
  EXPECT_THAT(none.err, HasSubstr("c is no run: there are no checkpoints in it"));
}

TEST(Train, ALinkThatLeadsNowhereIsFoundBeforeTheFirstStep) {
  const SmallConfig config;
  fs::create_directories(config / "a/checkpoints");
  fs::create_symlink("nowhere", config / "a/checkpoints/step-00000010");
  const Ran ran = lockstep({"train", config.path(), "--out", config / "a", "--resume", "auto"});
  EXPECT_EQ(ran.code, 2);
  EXPECT_THAT(ran.err, HasSubstr("step-00000010 is a link that leads nowhere; remove it"));
  fs::rename(config / "a/checkpoints/step-00000010", config / "a/checkpoints/mine");
  EXPECT_EQ(lockstep({"train", config.path(), "--out", config / "a", "--resume", "auto"}).code, 0);
}

TEST(Metrics, DrawsAndTabulatesARun) {
  const SmallConfig config;
  ASSERT_EQ(lockstep({"train", config.path(), "--out", config / "run"}).code, 0);
  const Ran ran = lockstep({"metrics", config / "run", "--svg", config / "a.svg", "--csv", config / "a.csv"});
  ASSERT_EQ(ran.code, 0) << ran.err;
  for (const char* text :
       {"loss, and \u25cf on evaluation data", "learning rate\n", "evaluation accuracy  ", "\u25cf"})
    EXPECT_THAT(ran.out, HasSubstr(text));
  const std::string svg = read_text_file(config / "a.svg"), csv = read_text_file(config / "a.csv");
  EXPECT_EQ(occurrences(svg, "<svg"), occurrences(svg, "</svg>"));
  EXPECT_EQ(occurrences(svg, "<svg"), 4u);
  EXPECT_EQ(occurrences(csv, "\n"), 1 + 12 + 3u);
  EXPECT_THAT(csv, testing::StartsWith("step,accuracy,"));
  const Ran again = lockstep({"metrics", config / "run/metrics.jsonl", "--svg", config / "a.svg"});
  EXPECT_EQ(again.code, 2);
  EXPECT_THAT(again.err, HasSubstr("is there already"));
  const Ran none = lockstep({"metrics", config / "b"});
  EXPECT_EQ(none.code, 2);
  EXPECT_THAT(none.err, HasSubstr("name the folder of a run"));
}

TEST(Messages, ShowControlCharactersAndDoNotObeyThem) {
  const Ran ran = lockstep({"train",
                            "a\x1b[31m\r\xc2\x9b"
                            "b.textproto"});
  EXPECT_EQ(ran.code, 2);
  EXPECT_THAT(ran.err, HasSubstr("a\\x1b[31m\\x0d\\x9bb.textproto"));
}

TEST(Train, EndsWhereEvaluationsBecomeNoBetter) {
  const SmallConfig config;
  const std::vector<std::string> train = {"train",
                                          config.path(),
                                          "--json",
                                          "--set",
                                          "trainer.eval_every_steps=2",
                                          "--set",
                                          "trainer.early_stopping=2",
                                          "--set",
                                          "optimizer.learning_rate=1e-30",
                                          "--set",
                                          "trainer.steps=1000"};
  const std::vector<std::string> out = {"--out", config / "a"};
  const Ran ran = lockstep(train + out);
  const Json json = only_json(ran);
  EXPECT_EQ(json["steps"], 6);  // evaluated after 2, 4 and 6
  EXPECT_EQ(json["best_step"], 2);
  EXPECT_EQ(json["ended_early"], true);
  EXPECT_THAT(
      ran.err,
      HasSubstr("the training ends after step 6: 2 evaluations in a row were no better than that of step 2"));
  EXPECT_TRUE(fs::exists(config / "a/checkpoints/step-00000006/manifest.json"));
  EXPECT_EQ(only_json(lockstep(train + out + std::vector<std::string>{"--resume", "auto"}))["steps"], 6);
  for (const char* layout : {"dp=2", "pp=2", "dp=1,sync=ps,servers=1"})
    EXPECT_EQ(only_json(mpirun(2, train + std::vector<std::string>{"--layout", layout}))["steps"], 6)
        << layout;
}

}  // namespace
}  // namespace lockstep::test
