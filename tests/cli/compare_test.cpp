#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <cstdlib>

#include "mentions.h"
#include "program.h"

namespace lockstep::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
namespace fs = std::filesystem;

TEST(Bench, TellsWhatMessagesAndSumsTake) {
  const Ran alone = lockstep({"bench", "--seconds", "0.001"});
  ASSERT_EQ(alone.code, 0) << alone.err;
  EXPECT_THAT(alone.out, HasSubstr("one process, which sends nothing"));
  const Ran two = mpirun(2, {"bench", "--seconds", "0.001", "--largest", "65536", "--json"});
  ASSERT_EQ(two.code, 0) << two.err;
  const Json json = Json::parse(two.out);
  EXPECT_EQ(json["hosts"], Json({0, 0}));
  ASSERT_EQ(json["pairs"].size(), 1u);
  EXPECT_GT(json["pairs"][0]["latency_seconds"], 0);
  EXPECT_EQ(json["all_reduce"].back()["bytes"], 65536);
  EXPECT_EQ(json["all_reduce_shared_memory"].size(), json["all_reduce"].size());
  const Ran odd = lockstep({"bench", "--largest", "65537"});
  EXPECT_EQ(odd.code, 2);
  EXPECT_THAT(odd.err, HasSubstr("multiple of 4"));
}

TEST(Compare, ProvesMeasuresAndGoesOn) {
  const SmallConfig config;
  const std::string out = config / "comparison";
  const std::vector<std::string> command = {"compare",       config.path(),
                                            "--workers",     "1,2",
                                            "--layouts",     "sync=all_reduce; sync=ps; sync=ps,mode=async",
                                            "--steps",       "12",
                                            "--minutes",     "0",
                                            "--straggler",   "0:3",
                                            "--target-loss", "0.001",
                                            "--out",         out,
                                            "--set",         "parallel.reduction=FAST"};
  const Ran ran = lockstep(command);
  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.out, AllOf(HasSubstr("With 2 workers"), HasSubstr("\nworkers  layout"),
                             HasSubstr("drawn in " + out + "/report.html")));
  const Json first = Json::parse(read_text_file(out + "/results.json"));
  ASSERT_EQ(first["rows"].size(), 6u);
  for (const auto& row : first["rows"]) {
    EXPECT_EQ(row["proof"],
              row["layout"].get<std::string>().ends_with("async") ? "other mathematics" : "identical");
    EXPECT_EQ(row["samples"].size(), 1u) << "the first round is always made";
    EXPECT_GT(row["step_ms"]["median"], 0);
    EXPECT_GT(row["samples"][0]["straggler_step_ms"], 0);
    EXPECT_EQ(row["losses"].size(), 12u) << row["layout"];
  }
  for (const auto& row : first["rows"]) EXPECT_GT(row["predicted_ms"], 0) << row["layout"];
  EXPECT_TRUE(first["prediction_error"].is_number());
  EXPECT_FALSE(fs::exists(out + "/runs/dp=2-round-1/run/checkpoints")) << "nobody asked for them";
  EXPECT_THAT(ran.out, HasSubstr("predictions are off by "));
  EXPECT_EQ(first["ties"].size(), 0u) << "nobody named a link";
  EXPECT_EQ(first["rows"][4]["layout"], "dp=2,sync=ps");
  EXPECT_EQ(first["rows"][4]["processes"], 3);
  EXPECT_EQ(occurrences(read_text_file(out + "/results.csv"), "\n"), 7u);

  EXPECT_THAT(read_text_file(out + "/report.html"), HasSubstr("<h1>With 2 workers"));

  EXPECT_EQ(lockstep(command).code, 2) << "the folder is in use";
  // Nothing is measured twice; what is missing is.
  Json cut = first;
  cut["rows"][5]["samples"] = Json::array();
  cut["rows"][4]["failure"] = "the machine's fault, and perhaps gone";
  cut["rows"][0]["proof"] = "failed";
  cut["rows"][1]["proof"] = "failed";
  cut["rows"][1]["proof_detail"] = "out of luck";
  write_file(out + "/results.json", cut.dump());
  const Ran resumed = lockstep(command + std::vector<std::string>{"--resume", "--json"});
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  const Json second = Json::parse(resumed.out);
  for (size_t i = 0; i < 5; ++i) EXPECT_EQ(second["rows"][i], first["rows"][i]);
  EXPECT_EQ(second["rows"][5]["samples"].size(), 1u);
  const Ran other = lockstep(command + std::vector<std::string>{"--resume", "--scaling", "weak"});
  EXPECT_EQ(other.code, 2);
  EXPECT_THAT(other.err, HasSubstr("--scaling"));
}

/// Of each number of workers another batch: what one of them takes is measured of its own.
TEST(Compare, ScalesTheBatchWithTheWorkers) {
  const SmallConfig config;
  const std::string out = config / "comparison";
  const Ran ran = lockstep({"compare", config.path(), "--workers", "1,2", "--scaling", "weak", "--layouts",
                            "sync=all_reduce; sync=ps", "--steps", "12", "--proof-steps", "3", "--minutes",
                            "0", "--out", out});
  ASSERT_EQ(ran.code, 0) << ran.err;
  const Json rows = Json::parse(read_text_file(out + "/results.json"))["rows"];
  ASSERT_EQ(rows.size(), 4u);
  for (const auto& row : rows) {
    EXPECT_EQ(row["global_batch"], rows[0]["global_batch"].get<int>() * row["workers"].get<int>());
    EXPECT_EQ(row["proof"], "identical") << "beside the first layout of its batch";
    EXPECT_GT(row["predicted_ms"], 0);
  }
  EXPECT_NE(rows[0]["math_hash"], rows[2]["math_hash"]);
  for (int workers : {1, 2})
    EXPECT_TRUE(std::ranges::any_of(fs::directory_iterator(out + "/profiles"), [&](const auto& profile) {
      return profile.path().filename().string().starts_with(
          fmt::format("1-workers-batch-{}-", workers * rows[0]["global_batch"].get<int>()));
    }));
}

/// The job ends with the worker and is started again, or goes on without it.
TEST(Compare, TellsWhatALostWorkerCosts) {
  const SmallConfig config;
  const std::string out = config / "comparison";
  const Ran ran = lockstep({"compare", config.path(), "--workers", "2", "--layouts",
                            "sync=all_reduce; sync=ps,mode=stale; sync=ps,mode=async", "--steps", "40",
                            "--minutes", "0", "--kill", "1", "--no-prediction", "--out", out, "--set",
                            "parallel.reduction=FAST", "--set", "trainer.steps=40"});
  ASSERT_EQ(ran.code, 0) << ran.err;
  const Json rows = Json::parse(read_text_file(out + "/results.json"))["rows"];
  ASSERT_EQ(rows.size(), 3u);
  for (int i : {0, 1, 2}) {
    EXPECT_EQ(rows[i]["kill"]["starts"], i == 2 ? 1 : 2) << rows[i];
    EXPECT_GT(rows[i]["kill"]["seconds"], 0);
  }
}

/// An mpirun that bends a number of what its ranks have written down: as if they had computed another one.
TEST(Compare, SaysWhereALayoutChangesTheResults) {
  const SmallConfig config;
  const std::string out = config / "comparison";
  fs::create_directory(config / "bin");
  const Ran found = run_command({"sh", "-c", "command -v mpirun"});
  const std::string real = found.out.substr(0, found.out.find('\n'));
  write_file(
      config / "bin/mpirun",
      "#!/bin/sh\n" + real + " \"$@\"\ncode=$?\n" +
          "while [ $# -gt 0 ]; do\n"
          R"(  [ "$1" != --trace ] || sed -i '3s/"fc2.weight","[0-9a-f]*/"fc2.weight","0123456789abcdef/' "$2"/trace-*)"
          "\n"
          "  shift\n"
          "done\nexit $code\n");
  fs::permissions(config / "bin/mpirun", fs::perms::owner_all);
  const Ran ran =
      run_command({"env", "PATH=" + (config / "bin:") + std::getenv("PATH"), LOCKSTEP_PROGRAM, "compare",
                   config.path(), "--workers", "1,2", "--layouts", "sync=all_reduce", "--steps", "12",
                   "--proof-steps", "4", "--minutes", "0", "--no-prediction", "--out", out});
  EXPECT_EQ(ran.code, 70) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("DIFFERENT"));
  const Json rows = Json::parse(read_text_file(out + "/results.json"))["rows"];
  EXPECT_EQ(rows[0]["proof"], "identical");
  EXPECT_EQ(rows[1]["proof"], "DIFFERENT");
  EXPECT_THAT(rows[1]["proof_detail"], AllOf(HasSubstr("step 3"), HasSubstr("fc2.weight")));
  EXPECT_EQ(rows[1]["samples"].size(), 1u) << "it is measured all the same";
  EXPECT_THAT(read_text_file(out + "/report.html"), HasSubstr("fc2.weight"));
}

TEST(Compare, RefusesWhatCannotRunBeforeAnythingDoes) {
  const SmallConfig config;
  const auto refusal = [&](const std::vector<std::string>& more) {
    const Ran ran = lockstep(std::vector<std::string>{"compare", config.path(), "--out", config / "none",
                                                      "--set", "trainer.steps=50"} +
                             more);
    EXPECT_EQ(ran.code, 2) << ran.out;
    EXPECT_FALSE(fs::exists(config / "none"));
    return ran.err;
  };
  EXPECT_THAT(refusal({"--layouts", "sync=all_reduce; dp=2"}), Mentions("'dp=2' ... --workers"));
  EXPECT_THAT(refusal({"--layouts", "sync=all_reduce; pp=2", "--workers", "3"}),
              Mentions("'pp=2' ... 2 stages ... 3 workers"));
  EXPECT_THAT(refusal({"--layouts", "sync=all_reduce; server=2"}), HasSubstr("no key 'server'"));
  EXPECT_THAT(refusal({"--layouts", "sync=all_reduce"}), HasSubstr("name at least two layouts"));
  EXPECT_THAT(refusal({"--layouts", "pp=1; sync=all_reduce"}), Mentions("'sync=all_reduce' ... 'pp=1'"));
  EXPECT_THAT(refusal({"--layouts", "sync=all_reduce", "--workers", "1,x"}), HasSubstr("found 'x'"));
  EXPECT_THAT(refusal({"--layouts", "sync=all_reduce", "--workers", "2,2"}), HasSubstr("--workers 2,2"));
  EXPECT_THAT(refusal({"--layouts", "sync=all_reduce; sync=ps", "--link", "none,fast"}),
              Mentions("1gbit ... 200mbit ... 'fast'"));
  EXPECT_THAT(refusal({"--layouts", "sync=all_reduce; sync=ps", "--link", "1gbit,1gbit"}),
              HasSubstr("1gbit is listed twice"));
  EXPECT_THAT(refusal({"--layouts", "sync=all_reduce; sync=ps", "--link", "none", "--hostfile", "hosts"}),
              HasSubstr("--hostfile"));
  EXPECT_THAT(refusal({"--layouts", "sync=all_reduce; sync=ps", "--workers", "1,2", "--straggler", "1:2"}),
              HasSubstr("1 worker"));
  for (const char* option : {"--minutes", "--price", "--precision", "--target-loss"})
    EXPECT_THAT(refusal({"--layouts", "sync=all_reduce; sync=ps", option, "nan"}),
                HasSubstr("expected a finite number"));
  EXPECT_THAT(refusal({"--layouts", "sync=all_reduce; sync=ps", "--straggler", "0:2", "--device", "cuda"}),
              HasSubstr("use --device cpu"));
  EXPECT_THAT(refusal({"--layouts", "sync=all_reduce; sync=ps", "--workers", "2", "--kill", "2"}),
              HasSubstr("2 workers"));
  EXPECT_THAT(refusal({"--layouts", "sync=all_reduce; sync=ps,mode=async", "--workers", "2", "--kill", "0"}),
              HasSubstr("kill another one, such as 1"));
  EXPECT_THAT(refusal({"--layouts", "sync=all_reduce; sync=ps", "--predict", "8", "--precision", "5%"}),
              HasSubstr("--link or --hostfile"));
  EXPECT_THAT(
      refusal({"--layouts", "sync=all_reduce; pp=2", "--workers", "2", "--link", "none", "--predict", "5"}),
      HasSubstr("5 workers"));
  EXPECT_THAT(refusal({"--layouts", "sync=all_reduce; sync=ps", "--hostfile", config / "no hosts"}),
              HasSubstr("no hosts"));
  EXPECT_THAT(refusal({"--layouts", "sync=all_reduce; sync=ps,mode=async", "--workers", "2"}),
              HasSubstr("2 workers: layout 'dp=2,sync=ps,mode=async': "))
      << "the config is REPRODUCIBLE";
  EXPECT_THAT(refusal({"--layouts", "sync=all_reduce; dp=2; pp=4; sync=ps,mode=async", "--workers", "2"}),
              AllOf(HasSubstr("3 layouts cannot run:\n"), HasSubstr("'dp=2'"),
                    HasSubstr("'pp=4' has 4 stages"), HasSubstr("'dp=2,sync=ps,mode=async'")));
  EXPECT_THAT(refusal({"--layouts", "sync=all_reduce; sync=ps;", "--steps", "51"}),
              HasSubstr("--steps 51: the config trains for 50"));
  const std::vector<std::string> ring = {"--layouts", "sync=all_reduce; shard=optimizer",
                                         "--workers", "2",
                                         "--set",     "parallel={reduction: FAST algorithm: RING}"};
  EXPECT_THAT(refusal(ring), AllOf(HasSubstr("REPRODUCIBLE"), HasSubstr("--proof-steps 0")));
}

/// Rates of a link on which this machine's two hosts talk; nothing of them stays.
TEST(Compare, MeasuresOverLinksBetweenTwoHosts) {
  const SmallConfig config;
  const std::string out = config / "comparison";
  const Ran ran = lockstep({"compare",   config.path(),
                            "--workers", "2",
                            "--layouts", "sync=all_reduce; sync=ps",
                            "--steps",   "40",
                            "--minutes", "0",
                            "--link",    "none,200mbit",
                            "--predict", "4",
                            "--price",   "2",
                            "--out",     out,
                            "--set",     "parallel.reduction=FAST",
                            "--set",     "trainer.steps=40"});
  if (ran.code == 69) GTEST_SKIP() << ran.err;
  ASSERT_EQ(ran.code, 0) << ran.err;
  const Json results = Json::parse(read_text_file(out + "/results.json")), rows = results["rows"];
  ASSERT_EQ(rows.size(), 4u);
  for (const auto& row : rows) {
    EXPECT_EQ(row["proof"], "identical");
    EXPECT_GT(row["predicted_ms"], 0);
    EXPECT_EQ(row["samples"][0]["hosts"], 2);
    EXPECT_GT(row["link_bytes_theory"], 0);
  }
  EXPECT_EQ(rows[2]["link"], "200mbit");
  ASSERT_EQ(results["forecasts"].size(), 4u);
  EXPECT_EQ(results["forecasts"][0]["workers"], 4);
  for (const auto& row : results["forecasts"]) EXPECT_GT(row["predicted_ms"], 0);
  ASSERT_EQ(results["ties"].size(), 3u) << "at which rate, and with how many servers over each link";
  EXPECT_TRUE(results["ties"][0].contains("rates"));
  EXPECT_TRUE(results["ties"][1].contains("servers"));
  // What a stop has left out is computed when it goes on, and nothing twice.
  Json cut = results;
  cut["ties"].erase(1);
  write_file(out + "/results.json", cut.dump());
  const Ran resumed = lockstep({"compare",   config.path(),
                                "--workers", "2",
                                "--layouts", "sync=all_reduce; sync=ps",
                                "--steps",   "40",
                                "--minutes", "0",
                                "--link",    "none,200mbit",
                                "--predict", "4",
                                "--price",   "2",
                                "--out",     out,
                                "--set",     "parallel.reduction=FAST",
                                "--set",     "trainer.steps=40",
                                "--resume",  "--json"});
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_EQ(Json::parse(resumed.out)["ties"].size(), 3u);
  EXPECT_EQ(results["ties"][2]["link"], "200mbit");
  EXPECT_THAT(ran.out, Mentions("2 workers ... bit/s ... ms ... 2 workers ... 200mbit ... ms"));
  ASSERT_GE(results["answers"].size(), 4u) << "for each link the fastest, and bits";
}

/// A stop by SIGINT within the first round leaves a page, and what is missing is measured afterwards.
TEST(Compare, GoesOnAfterAnInterrupt) {
  const SmallConfig config;
  const std::string out = config / "comparison";
  const std::vector<std::string> command = {"compare",
                                            config.path(),
                                            "--workers",
                                            "2",
                                            "--layouts",
                                            "sync=all_reduce; shard=optimizer",
                                            "--steps",
                                            "12",
                                            "--minutes",
                                            "0",
                                            "--out",
                                            out,
                                            "--kill",
                                            "1",
                                            "--no-prediction",
                                            "--proof-steps",
                                            "0"};
  const TemporaryDirectory folder;
  jobs::ProcessJob job{.program = LOCKSTEP_PROGRAM, .arguments = command};
  job.environment["OMP_NUM_THREADS"] = "1";
  job.stdout_path = folder / "out";
  job.stderr_path = folder / "err";
  bool asked = false;
  job.watch = [&](pid_t pid) {
    if (!asked && fs::exists(out + "/runs/dp=2-round-1")) asked = ::kill(pid, SIGINT) == 0;
  };
  const jobs::JobOutcome stopped = jobs::run_to_end(job);
  EXPECT_EQ(stopped.code, 130) << stopped.error;
  EXPECT_TRUE(fs::exists(out + "/report.html"));
  const Ran resumed = lockstep(command + std::vector<std::string>{"--resume", "--json"});
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  const Json answer = Json::parse(resumed.out);
  ASSERT_FALSE(answer["rows"].empty());
  for (const auto& row : answer["rows"]) {
    EXPECT_EQ(row["samples"].size(), 1u);
    EXPECT_EQ(row["kill"]["starts"], 2) << row;
    EXPECT_GT(row["kill"]["seconds"], 0);
    EXPECT_GT(row["kill"]["undisturbed_seconds"], 0);
  }
}

/// Data that is not there is met by the trainings alone.
TEST(Compare, ARunThatFailsIsARowWithItsReason) {
  const SmallConfig config;
  const std::string out = config / "comparison";
  const Ran ran =
      lockstep({"compare", config.path(), "--workers", "1,2", "--layouts", "sync=all_reduce", "--steps", "12",
                "--minutes", "0", "--proof-steps", "0", "--out", out, "--set",
                "data={idx {train_images: \"i\" train_labels: \"l\" eval_images: \"i\" eval_labels: \"l\"}}",
                "--data-dir", config / "nowhere"});
  EXPECT_EQ(ran.code, 70) << ran.err;
  const Json rows = Json::parse(read_text_file(out + "/results.json"))["rows"];
  ASSERT_EQ(rows.size(), 2u);
  for (const auto& row : rows) {
    EXPECT_EQ(row["proof"], "not tried");
    EXPECT_THAT(row["failure"], HasSubstr("nowhere"));
  }
  EXPECT_THAT(ran.out, HasSubstr("FAILED: "));
}

}  // namespace
}  // namespace lockstep::test
