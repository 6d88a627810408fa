#include "compile/run_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "lockstep/error.h"
#include "mentions.h"
#include "model/presets.h"
#include "model/shared_graph.h"

namespace lockstep::compile {
namespace {

CompileOptions options_of(const ModelSpec& model, const std::string& layout) {
  CompileOptions options{.graph = model::share_graph(model), .global_batch = 8};
  options.parallel.layout = layout::parse_layout(layout);
  return options;
}

ModelSpec tied_gpt() {
  return model::make_gpt(
      {.vocabulary = 11, .context = 6, .layers = 2, .heads = 2, .width = 8, .tied_head = true});
}

/// What is refused; "" if nothing is.
std::string refusal_of(const CompileOptions& options) {
  try {
    require_plan(options);
    return "";
  } catch (const ConfigError& error) {
    return error.what();
  }
}

TEST(RunPlan, HasTheModelsGraphInTheTypeOfStorage) {
  CompileOptions options = options_of(model::make_lenet({}), "dp=1");
  options.storage = DType::bfloat16;
  const RunPlan plan = plan_run(options, {});
  EXPECT_EQ(plan.graph.compute, DType::bfloat16);
  EXPECT_EQ(plan.graph.value(plan.graph.inputs[0]).spec.dtype, DType::bfloat16);
  EXPECT_EQ(plan.graph.logical_spec(plan.graph.inputs[0]).dtype, DType::float32);
  EXPECT_EQ(options.graph->compute, DType::float32) << "the shared one stays as it is";
  EXPECT_EQ(model::hash_of(model::stored_as(plan.graph, DType::float32)), model::hash_of(*options.graph));
}

TEST(RequirePlan, OfALayoutWithoutReplicasIsOfAnyNumberOfThem) {
  // One worker that serves cannot be two servers.
  EXPECT_EQ(refusal_of(options_of(model::make_lenet({}), "sync=ps,servers=2,placement=colocated")), "");
  CompileOptions reproducible = options_of(model::make_lenet({}), "dp=3");
  reproducible.parallel.reduction = layout::Reduction::reproducible;
  reproducible.virtual_replicas = 2;
  EXPECT_THAT(refusal_of(reproducible), Mentions("3 ... 2"));
  reproducible.parallel.layout.dp = 0;
  EXPECT_EQ(refusal_of(reproducible), "");
}

TEST(RequirePlan, MeasuresNoiseBesideSmallerBatches) {
  CompileOptions options = options_of(model::make_lenet({}), "dp=1");
  options.measures_noise = true;
  EXPECT_THAT(refusal_of(options), Mentions("metrics.noise_scale_every_steps ... trainer.micro_batch to 4"));
  options.micro_batch = 4;
  EXPECT_EQ(refusal_of(options), "");
  options.micro_batch = 0;
  options.parallel.layout.dp = 0;
  EXPECT_EQ(refusal_of(options), "") << "two workers have two micro-batches";
}

TEST(RequirePlan, MeasuresNoiseOfWholeGradients) {
  CompileOptions options = options_of(tied_gpt(), "dp=1,pp=2");
  options.micro_batch = 2;
  EXPECT_EQ(refusal_of(options), "");
  options.measures_noise = true;
  EXPECT_THAT(refusal_of(options), Mentions("metrics.noise_scale_every_steps ... pp=2"));
  options.parallel.layout = layout::parse_layout("dp=1");
  EXPECT_EQ(refusal_of(options), "");
}

TEST(RequirePlan, TransformsImagesOnGpus) {
  CompileOptions options = options_of(model::make_lenet({.image = {12, 12, 1}}), "dp=1");
  options.packed_training = options.packed_evaluation = pixels::PackedLayout{.image = {12, 12, 1}};
  EXPECT_EQ(refusal_of(options), "") << "workers may be on GPUs";
  EXPECT_THROW(plan_run(options, {.device = device::DeviceKind::cpu}), ConfigError);
  EXPECT_NO_THROW(plan_run(options, {.device = device::DeviceKind::cuda}));
  options.graph = model::share_graph(tied_gpt());
  EXPECT_THAT(refusal_of(options), Mentions("data.transforms_on ... 'image'"));
}

}  // namespace
}  // namespace lockstep::compile
