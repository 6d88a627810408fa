#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "config_testing.h"
#include "mentions.h"

namespace lockstep::config {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string with(const std::string& line) { return kSmallConfig + line + "\n"; }

TEST(Parsing, AcceptsTheSmallConfigs) {
  EXPECT_EQ(refusal(kSmallConfig), "accepted");
  EXPECT_EQ(refusal(kSmallGpt), "accepted");
}

TEST(Parsing, NamesFileLineAndColumnOfAnUnknownField) {
  EXPECT_EQ(refusal("model { mlp {} }\ntrainer { global_bach: 4 }"),
            "c.textproto:2:11: trainer: no field 'global_bach' (did you mean 'global_batch'?)");
}

TEST(Parsing, AnUnknownFieldAtTheTopIsCompared) {
  EXPECT_EQ(refusal("\n  trainr {}"), "c.textproto:2:3: no field 'trainr' (did you mean 'trainer'?)");
}

TEST(Parsing, AFieldInTheWrongMessageIsFoundWhereItBelongs) {
  EXPECT_EQ(
      refusal(with("checkpoint { learning_rate: 1 }")),
      "c.textproto:5:14: checkpoint: no field 'learning_rate' (did you mean 'optimizer.learning_rate'?)");
  EXPECT_THAT(refusal("optimizer { adam { momentum: 0.9 } }"),
              Mentions("optimizer.adam: ... 'momentum' ... 'optimizer.sgd.momentum'"));
  EXPECT_THAT(refusal("optimizer { schedule { constant { minimum: 0.1 } } }"),
              HasSubstr("'optimizer.schedule.cosine.minimum'"));
  EXPECT_THAT(refusal("data { text { mean: 0.5 } }"), HasSubstr("'data.idx.mean'"));
}

TEST(Parsing, AFieldThatResemblesNothingListsWhatThereIs) {
  EXPECT_THAT(refusal("metrics { xyzzyplugh: 1 }"), HasSubstr("log_every_steps, progress"));
}

TEST(Parsing, AnUnknownFieldIsNamedAlsoBehindLists) {
  EXPECT_THAT(refusal("model {\n mlp { hidden: [1, 2] image: 4 image: 5 clases: 3 } }"),
              StartsWith("c.textproto:2:41: model.mlp: no field 'clases' (did you mean 'classes'?)"));
  EXPECT_THAT(refusal("model { layer { name: \"a\" relu {} } layer { nme: \"b\" } }"),
              StartsWith("c.textproto:1:45: model.layer: no field 'nme' (did you mean 'name'?)"));
}

TEST(Parsing, AWrongEnumeratorListsTheRightOnes) {
  EXPECT_EQ(refusal(with("parallel { reduction: FASTT }")),
            "c.textproto:5:23: parallel.reduction: expected one of FAST, REPRODUCIBLE, found FASTT (did you "
            "mean 'FAST'?)");
}

TEST(Parsing, AWrongTypeSaysWhatIsExpected) {
  EXPECT_THAT(refusal("trainer { steps: abc }"),
              StartsWith("c.textproto:1:18: trainer.steps: expected a whole number, at least 1"));
  EXPECT_THAT(refusal("trainer { steps: 1.5 }"), HasSubstr("trainer.steps: expected a whole number"));
  EXPECT_THAT(refusal("trainer { seed: -1 }"), Mentions("trainer.seed: expected ... 0"));
  EXPECT_THAT(refusal("trainer { steps: 99999999999999999999 }"),
              HasSubstr("trainer.steps: expected a whole number"));
  EXPECT_THAT(refusal("data { shuffle: maybe }"), Mentions("data.shuffle: ... true ... false"));
  EXPECT_THAT(refusal("data { directory: 5 }"), HasSubstr("data.directory: expected text"));
  EXPECT_THAT(refusal("optimizer { learning_rate: \"fast\" }"),
              HasSubstr("optimizer.learning_rate: expected a number"));
}

TEST(Parsing, AFieldStatedTwiceIsRefused) {
  EXPECT_THAT(refusal(with("trainer { steps: 4 }")), StartsWith("c.textproto:5:"));
  EXPECT_THAT(refusal("trainer { seed: 1 seed: 2 }"), HasSubstr("trainer.seed: "));
}

TEST(Parsing, TwoMembersOfAChoiceAreRefused) {
  EXPECT_THAT(refusal("trainer { steps: 1 epochs: 1 }"), HasSubstr("trainer.epochs"));
  EXPECT_THAT(refusal("optimizer { sgd {} adam {} }"), HasSubstr("\"sgd\""));
  EXPECT_THAT(refusal("checkpoint { resume_automatic: true resume_path: \"x\" }"),
              HasSubstr("resume_automatic"));
  EXPECT_THAT(refusal("model { mlp {} lenet {} }"), HasSubstr("lenet"));
}

TEST(Parsing, WhatIsRequiredIsNamed) {
  EXPECT_EQ(refusal(""), "c.textproto: model: is required");
  EXPECT_THAT(refusal("model { mlp {} }"), HasSubstr("data: is required"));
  EXPECT_THAT(refusal("model { gpt {} }"), HasSubstr("c.textproto:1:9: model.gpt.vocabulary: is required"));
  EXPECT_THAT(refusal("model { mlp {} } data { }"), Mentions("data: ... idx, text, synthetic"));
  EXPECT_THAT(refusal("model { mlp {} } data { text { file: \"\" } }"),
              Mentions("data.text.file: ... empty"));
  EXPECT_THAT(refusal(kSmallConfig, {"optimizer={learning_rate: 1}"}), HasSubstr("sgd, adam, adamw"));
  EXPECT_THAT(refusal(kSmallConfig, {"trainer={global_batch: 1}"}), HasSubstr("steps, epochs"));
}

TEST(Parsing, DeepNestingIsRefused) {
  std::string deep;
  for (int i = 0; i < 50000; ++i) deep += "layer{block{";
  EXPECT_THAT(refusal("model { " + deep), Mentions("limit ... 64"));
}

TEST(Parsing, LargeFilesAreRefused) {
  EXPECT_THAT(refusal(std::string((1 << 20) + 1, '#')), HasSubstr("1.00 MiB"));
}

TEST(Parsing, NumbersThatBeginWithAZeroAreNotTakenAsOctal) {
  EXPECT_EQ(
      refusal("trainer {\n  steps: 020 }"),
      "c.textproto:2:10: trainer.steps: 020 begins with a zero, which would make it octal; remove the zero");
  EXPECT_THAT(refusal("model { mlp { hidden: [8, -010] } }"), HasSubstr("010 begins with a zero"));
  EXPECT_THAT(refusal(kSmallConfig, {"trainer.steps=020"}),
              HasSubstr("trainer.steps: 020 begins with a zero"));
  EXPECT_THAT(refusal(kSmallConfig, {"model.mlp.hidden=[8, 010]"}),
              HasSubstr("model.mlp.hidden: 010 begins with a zero"));
  EXPECT_EQ(refusal(kSmallConfig, {"trainer.steps=0x20", "optimizer.learning_rate=0.5", "trainer.seed=0"}),
            "accepted");
  EXPECT_EQ(refusal(with("# 020"), {"data.directory=020"}), "accepted") << "a comment, and text";
}

TEST(Parsing, DecimalCommasAndTypographicQuotesAreNamed) {
  for (const char* slip : {"optimizer { learning_rate: 0,05 }", "optimizer { learning_rate: 1,5 }",
                           "data { text { file: “a.txt” } }", "data { text { file: ‘a.txt’ } }"}) {
    const std::string message = refusal(slip);
    EXPECT_THAT(message, testing::AnyOf(HasSubstr("a point, not a comma"), HasSubstr("typographic"))) << slip;
  }
  EXPECT_THAT(refusal(kSmallConfig, {"optimizer.learning_rate=0,05"}), HasSubstr("a point, not a comma"));
  EXPECT_THAT(refusal(kSmallConfig, {"data.directory=“a”"}), HasSubstr("typographic"));
  // What stands in plain quotes, in comments or in a list is as it is meant.
  for (const char* good : {"# 0,5 “x”", "checkpoint { resume_path: \"l’été 1,5\" }"})
    EXPECT_NO_THROW(parse(std::string(kSmallConfig) + good)) << good;
  EXPECT_NO_THROW(parse(kSmallConfig, {"data.directory=l’été 1,5"}));
}

TEST(Parsing, AByteOrderMarkIsNamed) {
  EXPECT_THAT(refusal("\xef\xbb\xbf" + std::string(kSmallConfig)),
              HasSubstr("begins with a byte-order mark"));
}

TEST(Parsing, NumbersThatFloat32CannotHoldAreRefused) {
  for (const char* number : {"1e39", "1e-310", "1e-39"})
    EXPECT_THAT(refusal(kSmallConfig, {fmt::format("optimizer.learning_rate={}", number)}),
                HasSubstr("float32"))
        << number;
  EXPECT_THAT(refusal(kSmallConfig, {"model={mlp {image: [4, 4, 1] classes: 3 dropout: 0.99999999999}}"}),
              HasSubstr("dropout"));
}

TEST(Parsing, AbsurdlyLongWordsAreShortenedInMessages) {
  const std::string word(1000000, 'a');
  EXPECT_LT(refusal(word + ": 1").size(), 1000u);
  EXPECT_LT(refusal("trainer { steps: " + word + " }").size(), 1000u);
  EXPECT_LT(refusal("parallel { reduction: " + word + " }").size(), 1000u);
  EXPECT_LT(refusal("data { shuffle: " + word + " }").size(), 1000u);
  EXPECT_THAT(refusal(kSmallConfig, {word + "=1"}), HasSubstr("no field"));
}

TEST(Parsing, TextMustBePrintable) {
  EXPECT_THAT(refusal(with("checkpoint { resume_path: \"a\\nb\" }")),
              HasSubstr("checkpoint.resume_path: expected text"));
  EXPECT_THAT(refusal(with("checkpoint { resume_path: \"a\\000b\" }")), HasSubstr("control characters"));
  for (const char* bad :
       {"\\377", "\\303", "\\300\\200", "\\340\\200\\200", "\\355\\240\\200", "\\364\\220\\200\\200"})
    EXPECT_THAT(refusal(with("checkpoint { resume_path: \"" + std::string(bad) + "\" }")), HasSubstr("UTF-8"))
        << bad;
  for (const char* good : {"\xc3\xa4", "\xe2\x82\xac", "\xf0\x9f\x98\x80", "\\303\\244"})
    EXPECT_EQ(refusal(with("checkpoint { resume_path: \"" + std::string(good) + "\" }")), "accepted") << good;
}

TEST(Parsing, CommentsAndListsAreUnderstood) {
  const auto run = parse("# one\n" + kSmallConfig + "# two");
  EXPECT_EQ(run.model.inputs[0].spec.shape, (Shape{4, 4, 1}));
}

TEST(Loading, AMissingFileIsComparedWithItsNeighbours) {
  const auto folder = std::filesystem::path(::testing::TempDir()) / "lockstep_config_loading";
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "mnist.textproto") << kSmallConfig;
  EXPECT_EQ(load_run_config((folder / "mnist.textproto").string(), {"trainer.steps=9"}).trainer.steps, 9);
  const auto refusal_of = [](const std::filesystem::path& path) -> std::string {
    try {
      load_run_config(path.string(), {});
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_THAT(refusal_of(folder / "mnits.textproto"), HasSubstr("'mnist.textproto'"));
  EXPECT_THAT(refusal_of(folder), HasSubstr(folder.string()));
  std::filesystem::remove_all(folder);
}

TEST(Loading, AKeptConfigMayHaveAnOptimizerThatNobodyWouldTrainWith) {
  const auto folder = std::filesystem::path(::testing::TempDir()) / "lockstep_kept_config_loading";
  std::filesystem::create_directories(folder);
  const std::string path = (folder / "config.effective.textproto").string();
  std::ofstream(path) << kSmallConfig;
  const std::string groups = "optimizer.groups={parameters: \"*\" adaptive_clip: false}";
  const std::vector<std::vector<std::string>> all = {{"optimizer.lamb={}"},
                                                     {"optimizer.adaptive_clip={}", groups}};
  for (const auto& ignored : all) {
    EXPECT_THROW(load_run_config(path, ignored), ConfigError) << ignored[0];
    EXPECT_EQ(load_kept_config(path, ignored, "pp=1").trainer.steps, 5) << ignored[0];
  }
  EXPECT_THROW(load_kept_config(path, {"optimizer.lars={trust: 0}"}, "pp=1"), ConfigError);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace lockstep::config
