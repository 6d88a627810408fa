#include "plan/speed_of_light.h"

#include <gtest/gtest.h>

#include "data/test_files.h"
#include "plan/plan_testing.h"

namespace lockstep::plan {
namespace {

StepWork work_of(const std::string& layout, const MachineSpeed& speed, int rank = 0) {
  const compile::CompileOptions options = gpt_options(layout);
  const compile::CompiledRun run(options, facts_of(options));
  return work_of_step(run, run.compile(rank).step, speed);
}

constexpr MachineSpeed kSpeed{1e9, 1e9};

TEST(SpeedOfLight, OfHalfTheBatchIsHalfTheWorkOfLayers) {
  EXPECT_DOUBLE_EQ(work_of("dp=2", kSpeed).flops, work_of("dp=1", kSpeed).flops / 2);
}

TEST(SpeedOfLight, StagesShareTheWorkOfLayers) {
  EXPECT_NEAR(work_of("dp=1,pp=2", kSpeed, 0).flops + work_of("dp=1,pp=2", kSpeed, 1).flops,
              work_of("dp=1", kSpeed).flops, 1);
}

TEST(SpeedOfLight, IsTheLongerOfComputingAndMovingBytes) {
  const double both = work_of("dp=1", kSpeed).least_seconds;
  const double computing = work_of("dp=1", {1e9, 1e30}).least_seconds;
  const double moving = work_of("dp=1", {1e30, 1e9}).least_seconds;
  EXPECT_NEAR(computing, work_of("dp=1", kSpeed).flops / 1e9, 1e-9);
  EXPECT_GT(moving, 0);
  EXPECT_GE(both, std::max(computing, moving));
  EXPECT_LE(both, computing + moving);
}

// Every operation of this model is small enough for a cache.
TEST(SpeedOfLight, WhatCachesHoldMovesFaster) {
  const double moving = work_of("dp=1", {1e30, 1e9}).least_seconds;
  EXPECT_NEAR(work_of("dp=1", {1e30, 1e9, 4e9}).least_seconds, moving / 4, 1e-6 * moving);
  EXPECT_DOUBLE_EQ(work_of("dp=1", {1e30, 1e9, 5e8}).least_seconds, moving);
}

TEST(SpeedOfLight, OfRecomputationIsMore) {
  EXPECT_GT(work_of("dp=1,recompute=full", kSpeed).flops, work_of("dp=1", kSpeed).flops);
}

TEST(SpeedOfLight, OfTheFirstLayerHasNoGradientOfData) {
  compile::CompileOptions options = gpt_options("dp=1");
  options.graph =
      model::share_graph(model::make_mlp({.image = {1, 1, 100}, .hidden = {}, .classes = 10, .dropout = 0}));
  const compile::CompiledRun run(options, facts_of(options));
  const double product = 2.0 * 100 * 10 * 16;
  EXPECT_GE(work_of_step(run, run.compile(0).step, kSpeed).flops, 2 * product);
  EXPECT_LT(work_of_step(run, run.compile(0).step, kSpeed).flops, 2.5 * product);
}

TEST(SpeedOfLight, OfFrozenLayersIsForwardAlone) {
  compile::CompileOptions options = gpt_options("dp=1");
  ModelSpec model = model::make_mlp({.image = {1, 1, 100}, .hidden = {100}, .classes = 10, .dropout = 0});
  model.frozen = {"fc1"};
  options.graph = model::share_graph(model);
  const compile::CompiledRun run(options, facts_of(options));
  const double first = 2.0 * 100 * 100 * 16, second = 2.0 * 100 * 10 * 16;
  const double flops = work_of_step(run, run.compile(0).step, kSpeed).flops;
  EXPECT_GE(flops, first + 2 * second);
  EXPECT_LT(flops, first + 3 * second);
}

TEST(SpeedOfLight, KnowsGpusByName) {
  ASSERT_TRUE(speed_of_gpu("NVIDIA H200 (GPU 0)"));
  EXPECT_EQ(speed_of_gpu("NVIDIA H200 (GPU 0)")->bytes_per_second, 4.8e12);
  EXPECT_EQ(speed_of_gpu("NVIDIA A100-SXM4-80GB")->bytes_per_second, 2.0e12);
  EXPECT_EQ(speed_of_gpu("NVIDIA A100-SXM4-40GB")->bytes_per_second, 1.56e12);
  EXPECT_EQ(speed_of_gpu("NVIDIA H100 80GB HBM3")->flops_per_second, 989e12);
  EXPECT_FALSE(speed_of_gpu("NVIDIA H100 PCIe")) << "is another one";
  EXPECT_FALSE(speed_of_gpu("a GPU of tomorrow"));
  EXPECT_TRUE(speed_of_gpu("NVIDIA A40"));
  EXPECT_FALSE(speed_of_gpu("NVIDIA RTX A4000"));
  EXPECT_FALSE(speed_of_gpu("NVIDIA GB200"));
  EXPECT_FALSE(speed_of_gpu("NVIDIA GeForce RTX 4090 Laptop GPU"));
  EXPECT_FALSE(speed_of_gpu("NVIDIA H200 MIG 1g.18gb"));
}

TEST(SpeedOfLight, IsKeptAndReadBack) {
  const test::TemporaryDirectory folder;
  const std::string path = folder / "cache/lockstep/speed-host.json";
  EXPECT_FALSE(kept_speed(path));
  keep_speed(path, {1.5e11, 2.5e10});
  EXPECT_EQ(kept_speed(path), (MachineSpeed{1.5e11, 2.5e10}));
  // Measured beside other work, and once more without.
  keep_speed(path, {1e11, 3e10, 9e10});
  EXPECT_EQ(kept_speed(path), (MachineSpeed{1.5e11, 3e10, 9e10}));
  for (const char* damaged : {"", "{", "[]", "{\"flops_per_second\": 1}", "{\"flops_per_second\": 0}",
                              "{\"flops_per_second\": \"x\", \"bytes_per_second\": 1}"}) {
    test::write_file(path, damaged);
    EXPECT_FALSE(kept_speed(path)) << damaged;
  }
}

}  // namespace
}  // namespace lockstep::plan
