// An op of a program's own trains in every layout to the same bits, and falls behind no other.

#include "lockstep/custom_op.h"

#include <gtest/gtest.h>

#include <cmath>

#include "train/loop/divided_models.h"

namespace lockstep::train {
namespace {

/// y = x tanh(a x), a learned for each channel: backward reads its input.
class Bent : public CustomOp {
 public:
  Signature signature(const std::vector<Shape>& inputs, const Attributes& attributes) const override {
    attributes.expect_only({"scale"});
    return {.output = inputs.at(0),
            .parameters = {{.name = "a",
                            .shape = {inputs[0][-1]},
                            .initial = Initial::normal,
                            .scale = static_cast<float>(attributes.number("scale"))}},
            .backward_needs_input = {true}};
  }
  void forward(const Call& call) const override {
    for (size_t i = 0; i < call.output.size(); ++i)
      call.output[i] = call.inputs[0][i] * std::tanh(a(call, i) * call.inputs[0][i]);
  }
  void backward_input(const Call& call) const override {
    for (size_t i = 0; i < call.output_gradient.size(); ++i) {
      const float x = call.inputs[0][i], t = std::tanh(a(call, i) * x);
      call.input_gradients[0][i] = call.output_gradient[i] * (t + a(call, i) * x * (1 - t * t));
    }
  }
  void backward_parameters(const Call& call) const override {
    for (size_t i = 0; i < call.output_gradient.size(); ++i) {
      const float x = call.inputs[0][i], t = std::tanh(a(call, i) * x);
      call.parameter_gradients[0][i % call.parameters[0].size()] +=
          call.output_gradient[i] * x * x * (1 - t * t);
    }
  }

 private:
  static float a(const Call& call, size_t i) { return call.parameters[0][i % call.parameters[0].size()]; }
};

constexpr const char* kConfig = R"(
format_version: 1
model {
  input { name: "image" shape: [4, 3, 1] }
  input { name: "label" type: INT32 }
  layer { name: "flat" input: "image" flatten {} }
  layer { name: "fc1" linear { units: 9 } }
  layer { name: "bent1" custom { name: "test.bent" attribute { name: "scale" value: 0.5 } } }
  layer { name: "fc2" linear { units: 9 } }
  layer { name: "bent2" custom { name: "test.bent" attribute { name: "scale" value: 2 } } }
  layer { name: "sum" input: ["bent2", "bent1"] add {} }
  layer { name: "fc3" linear { units: 3 } }
  layer { name: "loss" input: ["fc3", "label"] softmax_cross_entropy {} }
}
data { synthetic { samples: 64 eval_samples: 12 classes: 3 shape: 4 shape: 3 shape: 1 } }
trainer { steps: 4 global_batch: 24 virtual_replicas: 6 check_every_steps: 1 clip_norm: 1 }
optimizer { learning_rate: 0.05 adam {} }
parallel { reduction: REPRODUCIBLE }
)";

config::RunConfig config_with(const std::vector<std::string>& overrides) {
  [[maybe_unused]] static const bool registered = [] {
    register_op("test.bent", std::make_shared<Bent>());
    return true;
  }();
  return config::parse_run_config(kConfig, "test", overrides);
}

TEST(CustomOp, HasTheGradientsThatItSays) {
  config_with({});
  check_gradients("test.bent", {{3, 9}}, {{"scale", 1}});
}

TEST(CustomOp, TrainsToTheSameBitsInAllLayouts) {
  const Trace one = trace_of(config_with({"trainer.micro_batch=1"}), "dp=1");
  for (const char* alone : {"trainer.micro_batch=4", "trainer.micro_batch=24", "parallel.intra_op_threads=2"})
    EXPECT_EQ(trace_of(config_with({alone}), "dp=1"), one) << alone;
  for (const char* layout :
       {"dp=2", "dp=3", "dp=3,shard=optimizer", "dp=1,pp=2", "dp=2,pp=2,schedule=gpipe,recompute=full",
        "dp=1,pp=2,schedule=zero_bubble", "dp=2,sync=ps", "dp=2,recompute=selective"}) {
    EXPECT_EQ(trace_of(config_with({}), layout), one) << layout;
    EXPECT_EQ(trace_of(config_with({"trainer.micro_batch=2"}), layout), one)
        << layout << ", micro-batches of 2";
  }
}

TEST(CustomOp, TrainsWithTwoByteElementsToTheSameBits) {
  const auto config = config_with({"precision.compute=BFLOAT16"});
  const Trace one = trace_of(config, "dp=1");
  for (const char* layout : {"dp=2", "dp=3", "dp=1,pp=2"}) EXPECT_EQ(trace_of(config, layout), one) << layout;
}

TEST(CustomOp, LearnsNothingIfItIsFrozen) {
  const auto config = config_with({"model.frozen=['bent*']"});
  const Trace frozen = trace_of(config, "dp=1");
  EXPECT_EQ(trace_of(config, "dp=2"), frozen);
  EXPECT_FALSE(frozen == trace_of(config_with({}), "dp=1"));
}

}  // namespace
}  // namespace lockstep::train
