#include "mentions.h"
#include "program.h"

namespace lockstep::test {
namespace {

using testing::HasSubstr;
namespace fs = std::filesystem;

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
  EXPECT_THAT(refusal(2, "dp=3"), Mentions("'dp=3' ... 3 processes ... 2 ... 3 ... 'dp=2'"));
  EXPECT_THAT(refusal(3, "pp=2,sync=ps,mode=async", "FAST"), HasSubstr("'dp=1,pp=2,sync=ps'"));
  EXPECT_THAT(refusal(2, "bound=2"), HasSubstr("(did you mean 'sync=ps,mode=stale,bound=2'?)"));
  EXPECT_THAT(refusal(1, ""), HasSubstr("layout '': it is empty"));
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
  EXPECT_THAT(out.err, Mentions("--out ... rank 1 ... rank 0"));
  const Ran stop =
      mpirun({{1, {"train", config.path()}}, {1, {"train", config.path(), "--stop-after", "3"}}});
  EXPECT_EQ(stop.code, 2) << stop.err;
  EXPECT_THAT(stop.err, HasSubstr("--stop-after: rank 1 has 3, rank 0 has 0"));
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
  EXPECT_THAT(wide.err, HasSubstr("more than 2147483647"));
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

TEST(Messages, ShowControlCharactersAndDoNotObeyThem) {
  const Ran ran = lockstep({"train",
                            "a\x1b[31m\r\xc2\x9b"
                            "b.textproto"});
  EXPECT_EQ(ran.code, 2);
  EXPECT_THAT(ran.err, HasSubstr("a\\x1b[31m\\x0d\\x9bb.textproto"));
}

}  // namespace
}  // namespace lockstep::test
