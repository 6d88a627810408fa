#include "mentions.h"
#include "program.h"

namespace lockstep::test {
namespace {

using testing::HasSubstr;
namespace fs = std::filesystem;

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
  EXPECT_THAT(eval.err, HasSubstr("no evaluation data"));
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
  EXPECT_THAT(ran.out, Mentions("small.textproto: 4 steps ... 3 ... dp=1 ... 24"));
  for (const char* row : {"\nfc1 ", "\nloss ", "\nmicro-batch ", "\nupdate ", "--set parallel.profile="})
    EXPECT_THAT(ran.out, HasSubstr(row));
  EXPECT_THAT(read_text_file(file), HasSubstr("name: \"fc1\""));
  const Ran again = lockstep({"profile", config.path(), "--out", file});
  EXPECT_EQ(again.code, 2);
  EXPECT_THAT(again.err, HasSubstr("small.profile:"));
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
  EXPECT_THAT(inspected.out, HasSubstr(file));
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
  EXPECT_THAT(refused.err, HasSubstr("--layout dp=1"));
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
    EXPECT_THAT(refused.err, Mentions("parallel.intra_op_threads is 2 ... " + variable +
                                      " ... parallel.intra_op_threads to 1"));
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
  EXPECT_THAT(ran.err, Mentions("24 = 1 worker ... 4 leaves"));
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
  EXPECT_EQ(plan["host_memory_bytes"], Json({{"checkpoint_copy", 0},
                                             {"staging", 96},
                                             {"served", 0},
                                             {"read_ahead", 0},
                                             {"averages", 0},
                                             {"total", 96}}));
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

/// MPI itself adds no bfloat16. Two workers' gradients have one order of summing, so that FAST has the bits
/// of one process under REPRODUCIBLE.
TEST(Train, TwoRanksSumANarrowerWireByThemselves) {
  const SmallConfig config;
  const std::vector<std::string> narrow = {"train",
                                           config.path(),
                                           "--json",
                                           "--set",
                                           "parallel.wire=BFLOAT16",
                                           "--set",
                                           "trainer.virtual_replicas=2"};
  const Json one = only_json(lockstep(narrow));
  for (const char* algorithm : {"AUTOMATIC", "RING", "SHARED_MEMORY"}) {
    const Json two = only_json(
        mpirun(2, narrow + std::vector<std::string>{"--set", "parallel.reduction=FAST", "--set",
                                                    "parallel.algorithm=" + std::string(algorithm)}));
    EXPECT_EQ(two["params_hash"], one["params_hash"]) << algorithm;
  }
  const Json exact = only_json(lockstep(narrow + std::vector<std::string>{"--set", "parallel.wire=FLOAT32"}));
  EXPECT_NE(exact["params_hash"], one["params_hash"]) << "nothing was rounded";
  // The start tells of what is rounded; by oneself under FAST that is nothing.
  EXPECT_THAT(lockstep(narrow).err, HasSubstr("bfloat16"));
  EXPECT_THAT(lockstep(narrow + std::vector<std::string>{"--set", "parallel.reduction=FAST"}).err,
              Not(HasSubstr("bfloat16")));
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
  EXPECT_THAT(ran.err, Mentions("1f1b ... 8 ... 11.1"));
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
  EXPECT_THAT(ended.err, Mentions("step 4 ... trainer.nonfinite_limit ... 4"));
}

TEST(Train, AClosedStandardErrorPutsNothingIntoTheRunsFiles) {
  const SmallConfig config;
  const Ran ran = run_command(
      {"sh", "-c",
       std::string(LOCKSTEP_PROGRAM) + " train " + config.path() + " --out " + (config / "run") + " 2>&-"});
  EXPECT_EQ(ran.code, 0);
  EXPECT_EQ(metrics_of(config / "run").size(), 12u + 3u);  // steps, and evaluations behind 5, 10 and 12
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
  EXPECT_THAT(ran.err, Mentions("step 6 ... 2 evaluations ... step 2"));
  EXPECT_TRUE(fs::exists(config / "a/checkpoints/step-00000006/manifest.json"));
  EXPECT_EQ(only_json(lockstep(train + out + std::vector<std::string>{"--resume", "auto"}))["steps"], 6);
  for (const char* layout : {"dp=2", "pp=2", "dp=1,sync=ps,servers=1"})
    EXPECT_EQ(only_json(mpirun(2, train + std::vector<std::string>{"--layout", layout}))["steps"], 6)
        << layout;
}

}  // namespace
}  // namespace lockstep::test
