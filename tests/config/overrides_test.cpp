#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "config_testing.h"
#include "mentions.h"

namespace lockstep::config {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

const std::string kPlain = R"(
model {
  input { name: "image" shape: 6 }
  input { name: "label" type: INT32 }
  layer { name: "fc1" linear { units: 4 } }
  layer { name: "act" relu {} }
  layer { name: "fc2" linear { units: 3 } }
  layer { name: "loss" input: "fc2" input: "label" softmax_cross_entropy {} }
}
data { synthetic { samples: 100 eval_samples: 10 classes: 3 } }
trainer { global_batch: 16 steps: 5 }
optimizer { learning_rate: 0.1 sgd {} }
)";

TEST(Overrides, ReplaceWhatTheFileSays) {
  EXPECT_EQ(parse(kSmallConfig, {"trainer.steps=7"}).trainer.steps, 7);
  EXPECT_EQ(parse(kSmallConfig, {"optimizer.learning_rate=0.05"}).optimizer.learning_rate, 0.05);
}

TEST(Overrides, SetWhatTheFileLeavesOut) {
  const auto run =
      parse(kSmallConfig, {"trainer.seed=18446744073709551615", "parallel.reduction=REPRODUCIBLE",
                           "metrics.progress=false", "optimizer.schedule.cosine.minimum=1e-3"});
  EXPECT_EQ(run.trainer.seed, 18446744073709551615u);
  EXPECT_EQ(run.parallel.reduction, layout::Reduction::reproducible);
  EXPECT_FALSE(run.metrics.progress);
  EXPECT_EQ(run.schedule.kind, optim::ScheduleKind::cosine);
  EXPECT_EQ(run.schedule.minimum, 1e-3);
}

TEST(Overrides, AreAppliedInOrder) {
  EXPECT_EQ(parse(kSmallConfig, {"trainer.steps=7", "trainer.steps=8"}).trainer.steps, 8);
}

TEST(Overrides, OneMemberOfAChoiceReplacesTheOther) {
  const auto run = parse(kSmallConfig, {"trainer.epochs=2.5", "optimizer.adamw.beta2=0.99"});
  EXPECT_EQ(run.trainer.steps, 0);
  EXPECT_EQ(run.trainer.epochs, 2.5);
  EXPECT_EQ(run.optimizer.kind, optim::OptimizerKind::adamw);
  EXPECT_EQ(run.optimizer.beta2, 0.99);
  EXPECT_EQ(
      parse(kSmallConfig, {"checkpoint.resume_automatic=true", "checkpoint.resume_path=x"}).checkpoint.resume,
      checkpoint::ResumePolicy::path);
}

TEST(Overrides, TakeTextWithAndWithoutQuotes) {
  EXPECT_EQ(parse(kSmallConfig, {"data.directory=/a b/c=d"}).data.directory, "/a b/c=d");
  EXPECT_EQ(parse(kSmallConfig, {"data.directory=\"/a b\""}).data.directory, "/a b");
  EXPECT_EQ(parse(kSmallConfig, {"data.directory='x'"}).data.directory, "x");
  EXPECT_EQ(parse(kSmallConfig, {"data.directory="}).data.directory, "");
}

TEST(Overrides, ReachElementsOfLists) {
  const auto run = parse(kPlain, {"model.layer[0].linear.units=5", "model.layer[2].linear.bias=false"});
  EXPECT_EQ(std::get<Linear>(run.model.layers[0].op).units, 5);
  EXPECT_FALSE(std::get<Linear>(run.model.layers[2].op).bias);
  const auto mlp = parse(kSmallConfig, {"model.mlp.hidden[0]=9"});
  EXPECT_EQ(std::get<Linear>(mlp.model.layers[1].op).units, 9);
}

TEST(Overrides, ReplaceTheOpOfALayer) {
  EXPECT_EQ(name_of(parse(kPlain, {"model.layer[1].gelu={}"}).model.layers[1].op), "gelu");
}

TEST(Overrides, ReplaceWholeListsAndMessages) {
  const auto run = parse(kSmallConfig, {"model.mlp.hidden=[7, 6]", "optimizer.sgd={ momentum: 0.5 }"});
  std::vector<int64_t> units;
  for (const auto& layer : run.model.layers)
    if (const auto* linear = std::get_if<Linear>(&layer.op)) units.push_back(linear->units);
  EXPECT_THAT(units, ElementsAre(7, 6, 3));
  EXPECT_EQ(run.optimizer.momentum, 0.5);
  EXPECT_EQ(parse(kSmallConfig, {"model.mlp.hidden=[]"}).model.layers.size(), 3u);
}

TEST(Overrides, ReplaceAWholeMessageInsteadOfMerging) {
  EXPECT_EQ(parse(kSmallConfig, {"optimizer.sgd.momentum=0.5", "optimizer.sgd={}"}).optimizer.momentum, 0);
}

TEST(Overrides, AnUnknownPathIsCompared) {
  EXPECT_EQ(refusal(kSmallConfig, {"trainer.step=3"}),
            "--set trainer.step=3: trainer: no field 'step' (did you mean 'steps'?)");
  EXPECT_EQ(refusal(kSmallConfig, {"optimiser.learning_rate=3"}),
            "--set optimiser.learning_rate=3: no field 'optimiser' (did you mean 'optimizer'?)");
  EXPECT_THAT(refusal(kSmallConfig, {"learning_rate=3"}), HasSubstr("'optimizer.learning_rate'"));
}

TEST(Overrides, AWrongTypeSaysWhatIsExpected) {
  EXPECT_EQ(refusal(kSmallConfig, {"trainer.steps=many"}),
            "--set trainer.steps=many: trainer.steps: expected a whole number, at least 1 and at most "
            "1000000000000, found "
            "'many'");
  EXPECT_EQ(
      refusal(kSmallConfig, {"parallel.reduction=REPRODUCABLE"}),
      "--set parallel.reduction=REPRODUCABLE: parallel.reduction: expected one of FAST, REPRODUCIBLE, found "
      "'REPRODUCABLE' (did you mean 'REPRODUCIBLE'?)");
  EXPECT_THAT(refusal(kSmallConfig, {"data.shuffle=perhaps"}), HasSubstr("'perhaps'"));
  EXPECT_THAT(refusal(kSmallConfig, {"trainer.steps=5 seed: 3"}), HasSubstr("expected a whole number"));
  EXPECT_THAT(refusal(kSmallConfig, {"trainer.steps="}), HasSubstr("expected a whole number"));
  EXPECT_THAT(refusal(kSmallConfig, {"trainer=5"}), HasSubstr("fields in {}"));
  EXPECT_THAT(refusal(kSmallConfig, {"trainer={ step: 5 }"}),
              Mentions("trainer: no field 'step' ... 'steps'"));
  EXPECT_THAT(refusal(kSmallConfig, {"optimizer.sgd={ momentun: 0.9 }"}),
              Mentions("optimizer.sgd: no field 'momentun' ... 'momentum'"));
  EXPECT_THAT(refusal(kSmallConfig, {"trainer={ steps: many }"}), Mentions("trainer.steps: expected"));
  EXPECT_THAT(refusal(kPlain, {"model.layer[0]={ name: \"fc1\" linear { unit: 4 } }"}),
              Mentions("linear: no field 'unit' ... 'units'"));
  EXPECT_THAT(refusal(kSmallConfig, {"model.mlp.hidden=x"}),
              HasSubstr("expected a list in [] of a whole number"));
  EXPECT_THAT(refusal(kSmallConfig, {"model.mlp.hidden=[1] classes: 7"}), HasSubstr("expected a list"));
}

TEST(Overrides, AValueMakesAChoiceOnce) {
  EXPECT_THAT(refusal(kSmallConfig, {"optimizer={ learning_rate: 0.1 sgd {} adam {} }"}),
              Mentions("optimizer.adam: ... sgd"));
  EXPECT_THAT(refusal(kSmallConfig, {"trainer={ global_batch: 16 steps: 5 steps: 6 }"}),
              Mentions("trainer.steps: ... steps"));
}

TEST(Overrides, MalformedPathsAreRefused) {
  for (const char* bad :
       {"trainer.steps", "=3", "", "trainer..steps=3", "trainer.steps[=3", "trainer.steps[x]=3",
        "model.layer[-1].name=x", "model.layer[99999999999].name=x", ".=1", "trainer.=1"})
    EXPECT_THAT(refusal(kSmallConfig, {bad}), StartsWith("--set " + std::string(bad) + ": ")) << bad;
}

TEST(Overrides, PathsMustFitTheSchema) {
  EXPECT_THAT(refusal(kSmallConfig, {"trainer.steps[0]=3"}), Mentions("trainer.steps ... list"));
  EXPECT_THAT(refusal(kSmallConfig, {"trainer.steps.x=3"}), HasSubstr("trainer.steps takes a whole number"));
  EXPECT_THAT(refusal(kPlain, {"model.layer[4].name=x"}), Mentions("model.layer ... 4 elements ... [4]"));
  EXPECT_THAT(refusal(kPlain, {"model.layer.name=x"}), HasSubstr("model.layer"));
}

TEST(Overrides, AValueOutsideItsLimitsNamesTheOverride) {
  EXPECT_EQ(
      refusal(kSmallConfig, {"trainer.global_batch=0"}),
      "--set trainer.global_batch=0: trainer.global_batch: expected a whole number, at least 1 and at most "
      "1073741824, found 0");
}

}  // namespace
}  // namespace lockstep::config
