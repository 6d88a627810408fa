// include/lockstep as other people's programs use it: tests/cli/api_program.cpp, alone and under mpirun, in
// several layouts.

#include "mentions.h"
#include "program.h"

namespace lockstep::test {
namespace {

using testing::EndsWith;
using testing::HasSubstr;

Ran api(int ranks, std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), LOCKSTEP_API_PROGRAM);
  if (ranks > 1) {
    const std::vector<std::string> launcher = {"mpirun", "-n", std::to_string(ranks)};
    arguments.insert(arguments.begin(), launcher.begin(), launcher.end());
  }
  return run_command(std::move(arguments));
}

std::string good(int ranks, std::vector<std::string> arguments) {
  const Ran ran = api(ranks, std::move(arguments));
  EXPECT_EQ(ran.code, 0) << ran.err << ran.out;
  return ran.out;
}

TEST(PublicApi, TheSameBitsHoweverSamplesComeAndOnAnyNumberOfRanks) {
  const std::string one = good(1, {"train"});
  EXPECT_THAT(one, HasSubstr("20 steps, 2 epochs, loss "));
  EXPECT_THAT(one, HasSubstr("stopped 0, hash "));
  EXPECT_THAT(one, EndsWith("told of 20 steps\n"));
  EXPECT_EQ(good(1, {"callback"}), one);
  EXPECT_EQ(good(2, {"train"}), one);
  EXPECT_EQ(good(3, {"callback"}), one);
  EXPECT_EQ(good(2, {"train", "layout=pp=2"}), one);
}

// Random numbers come from the sample's number, not from who reads it.
TEST(PublicApi, TransformsOfSamplesOfOnesOwnGiveTheSameBitsOnAnyNumberOfRanks) {
  const std::string transforms =
      "data={transforms {pad_crop {padding: 1}} transforms {flip {}} transforms {normalize {mean: 0.5 "
      "deviation: 0.3}} "
      "eval_transforms {normalize {mean: 0.5 deviation: 0.3}}}";
  const std::string one = good(1, {"transformed", transforms});
  EXPECT_THAT(one, HasSubstr("20 steps"));
  EXPECT_EQ(good(2, {"transformed", transforms}), one);
  EXPECT_EQ(good(3, {"transformed", transforms, "data.prefetch_threads=3"}), one);
  EXPECT_NE(good(1, {"transformed"}), one);
}

TEST(PublicApi, ParametersGoInAndOutWhereverTheyLie) {
  const std::string one = good(1, {"parameters"});
  EXPECT_THAT(one, HasSubstr("again "));
  EXPECT_EQ(good(2, {"parameters"}), one);
  EXPECT_EQ(good(2, {"parameters", "layout=pp=2"}), one);
  EXPECT_EQ(good(2, {"parameters", "layout=shard=optimizer"}), one);
  EXPECT_EQ(good(3, {"parameters", "layout=dp=2,sync=ps,servers=1"}), one);
  EXPECT_THAT(good(2, {"parameters", "layout=dp=2,sync=ps,servers=2,placement=colocated,mode=stale",
                       "parallel.reduction=FAST"}),
              HasSubstr("20 steps"));
}

TEST(PublicApi, ParametersThatOneRankAloneHoldsGoInAndOut) {
  const std::string one = good(1, {"tied"});
  EXPECT_THAT(one, HasSubstr("20 steps"));
  EXPECT_EQ(good(2, {"tied", "layout=pp=2"}), one);
  EXPECT_EQ(good(3, {"tied", "layout=dp=1,sync=ps,servers=2"}), one);
  EXPECT_EQ(good(2, {"tied", "layout=dp=2,sync=ps,servers=2,placement=colocated"}), one);
}

TEST(PublicApi, PredictsInAnyLayoutAndFromACheckpointToTheSameBits) {
  const TemporaryDirectory folder;
  const std::string one = good(1, {"predict", "out=" + (folder / "run")});
  EXPECT_EQ(good(2, {"predict"}), one);
  EXPECT_EQ(good(2, {"predict", "layout=pp=2"}), one);
  EXPECT_EQ(good(2, {"predict", "layout=shard=optimizer"}), one);
  const std::string outputs = one.substr(one.find("right "));
  EXPECT_THAT(one, HasSubstr("evaluated " + outputs.substr(6, outputs.find(',') - 6) + "\n"));
  const std::string opened = good(1, {"model", folder / "run"});
  EXPECT_THAT(opened, testing::StartsWith(outputs));
  EXPECT_THAT(opened, HasSubstr("error: the model reads 'point'"));
  EXPECT_THAT(opened, HasSubstr("trained on text"));
  EXPECT_EQ(api(1, {"model", folder / "nothing"}).code, 2);
}

TEST(PublicApi, WritesWhatGenerateWrites) {
  const SmallConfig config;
  write_file(config / "text", std::string(300, 'a') + std::string(100, 'b'));
  const Ran trained = lockstep({"train", config.path(), "--out", config / "run", "--quiet", "--data-dir",
                                config / "", "--set", "data={text {file: \"text\" context: 6}}", "--set",
                                "model={gpt {vocabulary: 2 context: 6 layers: 1 heads: 1 width: 8}}"});
  ASSERT_EQ(trained.code, 0) << trained.err;
  const Json generated = only_json(lockstep({"generate", "--checkpoint", config / "run", "--prompt", "ab",
                                             "--tokens", "20", "--seed", "1", "--json"}));
  EXPECT_EQ(good(1, {"write", config / "run"}), generated["text"].get<std::string>() + "\n");
}

TEST(PublicApi, WhatFillsTheLastBatchOfAnEvaluationCountsForNothing) {
  for (const std::string scenario : {"mean_squares", "other_names"}) {
    const std::string one = good(1, {scenario});
    EXPECT_EQ(good(2, {scenario}), one);
    EXPECT_EQ(good(2, {scenario, "layout=pp=2"}), one);
    good(2, {scenario, "trainer.virtual_replicas=2"});
  }
  EXPECT_THAT(good(1, {"other_names"}), HasSubstr("error 2: layer words: vocabulary is 6, but the data"));
}

TEST(PublicApi, AStopIsToldByTheExitCodeAlsoWithoutAnEnd) {
  for (const int ranks : {1, 2}) {
    const Ran ran = api(ranks, {"stopped"});
    EXPECT_EQ(ran.code, 143) << ran.err;
    EXPECT_THAT(ran.out, HasSubstr("of 20 steps"));
    EXPECT_THAT(ran.out, testing::Not(HasSubstr("after 20 ")));
  }
}

TEST(PublicApi, ASaveThatFailsIsToldAlsoWithoutAnEnd) {
  const TemporaryDirectory folder;
  for (const int ranks : {1, 2}) {
    const Ran ran = api(ranks, {"unsaved", "out=" + (folder / std::to_string(ranks))});
    EXPECT_EQ(ran.code, 0) << ran.err;
    EXPECT_THAT(ran.err, HasSubstr("step 1"));
  }
}

TEST(PublicApi, OneTrainingBeginsWhereAnotherHasEnded) {
  for (const int ranks : {1, 2}) {
    const std::string out = good(ranks, {"transfer"});
    EXPECT_THAT(out, HasSubstr("error 2: another Training exists"));
    EXPECT_THAT(out, EndsWith("the same loss\n"));
  }
}

TEST(PublicApi, AnEndOfTheCallersOwnIsNoStop) {
  const std::string out = good(2, {"early"});
  EXPECT_THAT(out, HasSubstr("10 steps"));
  EXPECT_THAT(out, HasSubstr("stopped 0"));
}

TEST(PublicApi, SavesAndGoesOn) {
  const TemporaryDirectory folder;
  const std::string whole = good(1, {"early"}), out = "out=" + (folder / "run");
  EXPECT_EQ(good(2, {"save", out, "checkpoint.at_end=false"}), whole);
  EXPECT_TRUE(std::filesystem::exists(folder / "run/checkpoints/step-00000010/manifest.json"));
  const std::string resumed = good(2, {"train", out, "checkpoint.resume_automatic=true"});
  EXPECT_EQ(resumed.substr(0, resumed.find("told")), good(1, {"train"}).substr(0, resumed.find("told")));
  EXPECT_THAT(resumed, EndsWith("told of 10 steps\n"));
  // Other samples are other mathematics.
  const Ran other =
      api(1, {"callback", "out=" + (folder / "other"), "checkpoint.resume_path=" + (folder / "run")});
  EXPECT_EQ(other.code, 2) << other.err;
  EXPECT_THAT(other.err, HasSubstr("training data: "));
  // The program alone has its samples.
  const Ran command = lockstep({"eval", "--checkpoint", folder / "run"});
  EXPECT_EQ(command.code, 2);
  EXPECT_THAT(command.err, Mentions("data.own: ... 240 samples"));
}

TEST(PublicApi, MistakesAreNamedAndEndNothingElse) {
  for (const int ranks : {1, 2}) {
    const Ran ran = api(ranks, {"errors"});
    EXPECT_EQ(ran.code, 0) << ran.err << ran.out;
    for (const char* message :
         {"error 2: the model has no parameter 'fc1.wieght' (did you mean 'fc1.weight'?)",
          "parameter 'fc2.bias' has 3 values, found 4",
          "error 2: Training::evaluate: ", "error 2: Training::save: ", "error 2: Training::finish: ",
          "data: the program passes its own samples", "error 2: TrainingOptions: there are eval_samples",
          "error 2: config: data: is required", "error 2: config:1:",
          "model: the program passes its own model", "label 3 of sample 4 is not from 0 to 2",
          "trainer.eval_every_steps: is ignored", "error 2: Samples: field 'point' has 7 values",
          "error 2: Samples: field 'label' has 1 samples, but field 'point' has 2",
          "error 65: Samples: token -2 of sample 4 is negative", "error 2: Samples: identity is empty",
          "error 2: cannot read the config no/such.textproto"})
      EXPECT_THAT(ran.out, HasSubstr(message));
  }
}

TEST(PublicApi, ADamagedSampleIsNamed) {
  const Ran one = api(1, {"damaged"});
  EXPECT_EQ(one.code, 0) << one.err;
  EXPECT_THAT(
      one.out,
      HasSubstr(
          "error 65: Samples: label 17 of sample 33 (points of api_program, version 1) is not from -1 to 2"));
  EXPECT_THAT(one.out, HasSubstr("error 2: this training is over"));
  const Ran two = api(2, {"damaged"});
  EXPECT_EQ(two.code, 65) << two.err;
  EXPECT_THAT(two.err, HasSubstr("label 17 of sample 33"));
}

}  // namespace
}  // namespace lockstep::test
