// The comparisons themselves see what they are for.

#include "net/oracle/comparison.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "net/check.h"
#include "net/training.h"

namespace lockstep::net {
namespace {

using testing::HasSubstr;

std::string text_of(const std::string& optimizer, const std::string& reduction, const std::string& norm) {
  return R"(
format_version: 1
model {
  input { name: "image" shape: [5, 4, 1] }
  input { name: "label" type: INT32 }
  layer { name: "flat" input: "image" flatten {} }
  layer { name: "a" linear { units: 7 } }
  layer { name: "norm" )" +
         norm + R"( { epsilon: 0.1 } }
  layer { name: "bent" tanh {} }
  layer { name: "b" linear { units: 3 } }
  layer { name: "loss" input: "b" input: "label" softmax_cross_entropy {} }
}
data { synthetic { samples: 20 eval_samples: 5 classes: 3 } }
trainer { steps: 3 global_batch: 12 virtual_replicas: 3 }
optimizer { learning_rate: 0.05 )" +
         optimizer + R"( ema { decay: 0.9 } }
parallel { reduction: )" +
         reduction + " }\n";
}

config::RunConfig config_of(const std::string& text, const std::string& layout) {
  return config::parse_run_config(text, "test", {}, layout);
}

/// Batches are those of the layout's replicas, and no others.
TEST(Oracle, HasTheBatchNormsOfFastLayouts) {
  const std::string text = text_of("sgd { momentum: 0.9 }", "FAST", "batch_norm");
  for (const char* layout : {"dp=1,pp=2", "dp=2", "dp=3", "dp=2,pp=2,shard=optimizer", "dp=2,sync=ps"}) {
    CheckReport report;
    const auto finding = check_texts(text, layout, {}, {}, &report);
    EXPECT_FALSE(finding) << layout << ": " << finding->what;
    EXPECT_EQ(report.oracle.tensor_count, 8) << layout;
    EXPECT_EQ(report.oracle.sharp_tensors, 7) << layout << ": a bias before a batch norm learns nothing";
    EXPECT_EQ(report.oracle.state_count, 12) << layout;
  }
  const config::RunConfig two = config_of(text, "dp=2");
  const Trained trained = train_here(two, {.ranks = 2});
  EXPECT_EQ(compare_with_oracle(two, trained).difference, "");
  EXPECT_NE(compare_with_oracle(config_of(text, "dp=1"), trained).difference, "");
}

/// One element of one tensor, off by a thousandth of the largest.
TEST(Oracle, MissesNoErrorOfOptimizerState) {
  for (const char* optimizer : {"sgd { momentum: 0.9 }", "adamw { epsilon: 0.01 }", "adam { epsilon: 0.01 }",
                                "lars { trust: 0.1 epsilon: 0.01 }"}) {
    const config::RunConfig config = config_of(text_of(optimizer, "REPRODUCIBLE", "layer_norm"), "dp=1");
    const Trained trained = train_here(config, {});
    EXPECT_EQ(compare_with_oracle(config, trained).difference, "") << optimizer;
    for (const auto& [name, values] : trained.states) {
      Trained wrong = trained;
      float largest = 0;
      for (const float value : values) largest = std::max(largest, std::abs(value));
      wrong.states[name].back() += 1e-3f * largest;
      EXPECT_THAT(compare_with_oracle(config, wrong).difference, HasSubstr(name)) << optimizer;
      wrong.states.erase(name);
      EXPECT_NE(compare_with_oracle(config, wrong).difference, "") << optimizer << ", without " << name;
    }
  }
}

/// Of trainings that end early, too.
TEST(Differences, AreOfStepsAndOfTheirNumber) {
  const Trained one{.losses = {1.5, 2.5}, .norms = {1, 2}};
  Trained other = one;
  EXPECT_EQ(difference_of_steps(one, other), "");
  other.losses[1] = std::nextafter(2.5, 3.0);
  EXPECT_THAT(difference_of_steps(one, other), HasSubstr("loss of step 2"));
  other = one;
  other.norms[0] = 1.25;
  EXPECT_THAT(difference_of_steps(one, other), HasSubstr("norm of step 1"));
  other = one;
  other.losses.pop_back();
  EXPECT_NE(difference_of_steps(one, other), "");
}

/// The steps before a training diverges are known.
TEST(Differences, OfATrainingThatDivergesHaveTheStepsBefore) {
  std::string text = text_of("sgd { momentum: 0.9 }", "REPRODUCIBLE", "layer_norm");
  text.replace(text.find("learning_rate: 0.05"), 19, "learning_rate: 1e38");
  for (const int ranks : {1, 3}) {
    Trained until_failure;
    EXPECT_ANY_THROW(
        train_here(config_of(text, "dp=" + std::to_string(ranks)), {.ranks = ranks}, &until_failure));
    EXPECT_GE(until_failure.losses.size(), 1u);
  }
}

}  // namespace
}  // namespace lockstep::net
