// What the net, and others before it, have found: the smallest case of each. They stay, whatever the
// generator makes of a seed.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "net/check.h"

namespace lockstep::net {
namespace {

struct KnownCase {
  const char* name;
  const char* layers;
  const char* training;
  const char* layouts;  ///< separated by spaces
  const char* data = "samples: 20 eval_samples: 5 classes: 3";
};

const std::vector<KnownCase> kKnown = {
    // The gradient of `sum` is that of what `b` makes and of `t`, which the stage before waits for. In
    // halves,
    // the first wrote it where the second would look for it, and the stage before got what lay there.
    {"ProductIsAddedToAValueOfAnotherStage",
     R"(
layer { name: "flatten" input: "image" flatten {} }
layer { name: "a" linear { units: 8 } }
layer { name: "t" tanh {} }
layer { name: "d" tanh {} }
layer { name: "b" linear { units: 8 } }
layer { name: "sum" input: "b" input: "t" add {} }
layer { name: "c" linear { units: 4 } }
layer { name: "loss" input: "c" input: "label" softmax_cross_entropy {} }
)",
     "parallel { reduction: REPRODUCIBLE pipeline { cuts: \"b\" } }",
     "dp=1,pp=2,schedule=zero_bubble dp=2,pp=2,schedule=zero_bubble,recompute=full "
     "dp=1,pp=2,schedule=zero_bubble,recompute=selective dp=1,pp=2,schedule=zero_bubble,sync=ps"},
    // Backward reads what `relu` makes, and not what `gelu` does: that was computed again all the same, into
    // memory that nobody had planned.
    {"GeluIsReadByForwardAlone",
     R"(
layer { name: "flatten" input: "image" flatten {} }
layer { name: "a" linear { units: 8 } }
layer { name: "gelu" gelu {} }
layer { name: "relu" relu {} }
layer { name: "b" linear { units: 8 } }
layer { name: "gelu2" gelu {} }
layer { name: "c" linear { units: 4 } }
layer { name: "loss" input: "c" input: "label" softmax_cross_entropy {} }
)",
     "parallel { reduction: REPRODUCIBLE bucket_bytes: 64 }",
     "dp=2,recompute=selective dp=1,pp=2,schedule=gpipe,recompute=selective "
     "dp=1,pp=2,schedule=zero_bubble,recompute=selective"},
    // Nothing of the segment is kept but what is computed again, so that it seemed to be computed again as a
    // whole.
    {"NothingIsKeptButWhatIsRepeated",
     R"(
layer { name: "gelu" input: "image" gelu {} }
layer { name: "a" linear { units: 8 bias: false } }
layer { name: "flatten" flatten {} }
layer { name: "b" linear { units: 4 } }
layer { name: "loss" input: "b" input: "label" softmax_cross_entropy {} }
)",
     "parallel { reduction: REPRODUCIBLE bucket_bytes: 64 }", "dp=2,recompute=selective"},
    // A segment uses a parameter of its own stage again, and one of another stage: the first was summed with
    // the
    // second, then added to its other use, and summed once more.
    {"TiesOfTwoStagesInOneSegment",
     R"(
layer { name: "flatten" input: "image" flatten {} }
layer { name: "in" linear { units: 16 } }
layer { name: "r0" relu {} }
layer { name: "q0" linear { units: 16 bias: false } }
layer { name: "r1" relu {} }
layer { name: "w0" linear { units: 64 } }
layer { name: "w1" linear { units: 16 } }
layer { name: "p0" linear { units: 16 bias: false } }
layer { name: "r2" relu {} }
layer { name: "p1" linear { units: 16 bias: false } tie { parameter: "weight" with: "p0.weight" } }
layer { name: "r3" relu {} }
layer { name: "q1" linear { units: 16 bias: false } tie { parameter: "weight" with: "q0.weight" } }
layer { name: "r4" relu {} }
layer { name: "out" linear { units: 3 } }
layer { name: "loss" input: "out" input: "label" softmax_cross_entropy {} }
)",
     "parallel { reduction: FAST bucket_bytes: 1500 }",
     "dp=2,pp=2 dp=2,pp=2,schedule=zero_bubble dp=2,pp=2,schedule=interleaved "
     "dp=2,pp=2,sync=ps,aggregate=host "
     "dp=2,pp=2,shard=optimizer dp=4"},
    // The one label of the evaluation is ignored: there is no loss.
    {"NoLabelOfTheEvaluationCounts",
     R"(
layer { name: "flatten" input: "image" flatten {} }
layer { name: "a" linear { units: 4 } }
layer { name: "loss" input: "a" input: "label" softmax_cross_entropy { ignore_index: 0 } }
)",
     "parallel { reduction: REPRODUCIBLE }", "dp=2 dp=1,pp=2,schedule=gpipe dp=2,sync=ps",
     "samples: 20 eval_samples: 1 classes: 2"},
    // All that reaches the ReLU are the rounding errors of equal numbers less their mean: no derivative to
    // compare.
    {"ReluOfRoundingErrors",
     R"(
layer { name: "norm" input: "image" layer_norm { epsilon: 0.1 } }
layer { name: "conv" conv2d { channels: 1 kernel: 3 padding: 1 } }
layer { name: "a" linear { units: 12 bias: false init_std: 0.3 } }
layer { name: "b" linear { units: 12 bias: false } }
layer { name: "batch" batch_norm { epsilon: 0.1 } }
layer { name: "relu" relu {} }
layer { name: "flatten" flatten {} }
layer { name: "out" linear { units: 3 bias: false } }
layer { name: "loss" input: "out" input: "label" softmax_cross_entropy {} }
)",
     "parallel { reduction: REPRODUCIBLE }", "dp=2", "samples: 20 eval_samples: 5 classes: 3"},
    // The model diverges, on one rank as in any layout.
    {"LossThatIsNoNumber",
     R"(
layer { name: "flatten" input: "image" flatten {} }
layer { name: "a" linear { units: 8 init_std: 1e20 } }
layer { name: "b" linear { units: 4 init_std: 1e20 } }
layer { name: "loss" input: "b" input: "label" softmax_cross_entropy {} }
)",
     "parallel { reduction: REPRODUCIBLE }", "dp=2 dp=1,pp=2"},
    // The pixels' mean cancels, so that a small step of a parameter carries values over the ReLU's kink.
    {"ReluOfWhatCancels",
     R"(
layer { name: "ln0" input: "image" layer_norm {} }
layer { name: "ln2" layer_norm {} }
layer { name: "mean" global_pool2d {} }
layer { name: "a" linear { units: 8 bias: false } }
layer { name: "relu" relu {} }
layer { name: "loss" input: "relu" input: "label" softmax_cross_entropy { ignore_index: 4 } }
)",
     "parallel { reduction: REPRODUCIBLE }", "dp=2", "samples: 32 eval_samples: 5 classes: 5 seed: 474"},
};

std::string config_of(const KnownCase& found) {
  return fmt::format(
      "format_version: 1\nmodel {{\ninput {{ name: \"image\" shape: [8, 8, 1] }}\n"
      "input {{ name: \"label\" type: INT32 }}{}}}\ndata {{ synthetic {{ {} }} }}\n"
      "trainer {{ steps: 3 global_batch: 8 virtual_replicas: 4 micro_batch: 1 }}\n"
      "optimizer {{ learning_rate: 0.1 sgd {{}} }}\n{}\n",
      found.layers, found.data, found.training);
}

class FoundCases : public testing::TestWithParam<KnownCase> {};

TEST_P(FoundCases, AreMended) {
  std::string layouts = GetParam().layouts;
  while (!layouts.empty()) {
    const auto end = std::min(layouts.find(' '), layouts.size());
    const std::string layout = layouts.substr(0, end);
    layouts.erase(0, end + 1);
    const auto finding = check_texts(config_of(GetParam()), layout, {});
    EXPECT_FALSE(finding) << layout << ": " << name_of(finding->kind) << ": " << finding->what;
  }
}

/// The gradient of a bias of one channel is a sum of terms that nearly cancel, and its error that of the
/// terms.
TEST(FoundConfigs, StateOfOneNumberWhoseTermsCancel) {
  const auto finding = check_texts(R"(
format_version: 1
model {
  input { name: "image" shape: [4, 3, 3] }
  input { name: "label" type: INT32 }
  layer { name: "linear0" input: "image" linear { units: 12 bias: false } }
  layer { name: "conv8" conv2d { channels: 1 kernel: 3 stride: 2 padding: 1 } }
  layer { name: "linear9" linear { units: 12 } }
  layer { name: "flat10" flatten {} }
  layer { name: "linear11" linear { units: 2 bias: false } }
  layer { name: "loss" input: "linear11" input: "label" softmax_cross_entropy {} }
}
data { synthetic { samples: 5 eval_samples: 5 classes: 2 seed: 474 } shuffle: false }
trainer { steps: 3 global_batch: 4 virtual_replicas: 2 seed: 502 nonfinite: LOCATE }
optimizer { learning_rate: 0.01 adamw { epsilon: 0.001 } weight_decay: 0 adaptive_clip { clipping: 0.5 } }
parallel { reduction: REPRODUCIBLE }
)",
                                   "dp=1", {});
  EXPECT_FALSE(finding) << finding->what;
}

INSTANTIATE_TEST_SUITE_P(All, FoundCases, testing::ValuesIn(kKnown),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace lockstep::net
