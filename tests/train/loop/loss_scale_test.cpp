// Training whose loss is scaled: what overflows, what that changes, and what a run that resumes keeps.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "data/test_files.h"
#include "mentions.h"
#include "train/loop/precision_configs.h"
#include "train/thread_ranks.h"
#include "train/worker/model_state.h"

namespace lockstep::train {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

TEST(LossScale, DividesOutOfEverythingExactly) {
  // In float32, where nothing overflows or becomes subnormal, a power of two changes no bit of update or
  // norm.
  for (const char* rule : {"optimizer.sgd={momentum: 0.9}", "optimizer.adamw={}"}) {
    std::vector<uint64_t> hashes;
    std::vector<double> norms;
    for (const double scale : {1.0, 1024.0, 0x1p-10}) {
      with_worker(precision_config(kPrecisionLenet, {rule}), [&](Worker& worker) {
        for (uint64_t step = 0; step < 3; ++step) {
          run::StepInputs inputs{.iteration = step};
          inputs.constants = {.kernels = {.step = step, .seed = 1, .loss_scale = scale},
                              .update = {.learning_rate = 0.01, .beta1_power = 0.5, .beta2_power = 0.5}};
          worker.run_step(inputs);
        }
        hashes.push_back(state_hash_of(worker, *comm::make_solo_communicator()));
        norms.push_back(worker.verdict().gradient_norm);
      });
    }
    EXPECT_EQ(hashes[1], hashes[0]) << rule;
    EXPECT_EQ(hashes[2], hashes[0]) << rule;
    EXPECT_EQ(norms[1], norms[0]) << rule;
    EXPECT_EQ(norms[2], norms[0]) << rule;
  }
}

// The first steps' gradients overflow at a scale of 2^30.
const std::vector<std::string> kOverflowing{
    "precision.compute=FLOAT16", "precision.loss_scaling={initial_scale: 1073741824 maximum: 1073741824}",
    "precision.loss_scaling.growth_interval=3", "trainer.steps=20"};

struct ScaledRun {
  std::vector<double> losses, scales;
  std::string skipped;  ///< 'x' for each step that was
  uint64_t state_hash = 0;
  TrainingOutcome outcome;
  std::string error;
  ExitCode code = ExitCode::done;
};

/// Rank 0's view, after checking that all ranks have the same.
ScaledRun train_scaled(const config::RunConfig& config, int ranks, const std::string& directory = {},
                       int64_t stop_after = 0) {
  std::vector<ScaledRun> runs(static_cast<size_t>(ranks));
  run_ranks(ranks, [&](int rank, comm::Communicator& world) {
    auto& run = runs[static_cast<size_t>(rank)];
    Worker worker(config, {.rank = rank, .world_size = ranks, .asynchronous = {}});
    worker.connect(world);
    TrainerEvents events;
    events.on_step = [&](const StepRecord& record) {
      run.losses.push_back(record.loss);
      run.scales.push_back(record.loss_scale.value_or(0));
      run.skipped += record.skipped ? 'x' : '.';
    };
    Trainer trainer(worker, world, events,
                    {.output_directory = directory, .stop_requested = {}, .stop_after = stop_after});
    try {
      trainer.prepare();
      run.outcome = trainer.run();
    } catch (const comm::CollectiveError& error) {
      run.error = error.what();
      run.code = error.code();
    }
    run.state_hash = state_hash_of(worker, world);
  });
  for (const auto& run : runs) {
    EXPECT_EQ(run.state_hash, runs[0].state_hash);
    EXPECT_EQ(run.scales, runs[0].scales);
  }
  return runs[0];
}

TEST(LossScale, OverflowIsSkippedSilentlyHalvesTheScaleAndGrowsBack) {
  testing::internal::CaptureStderr();
  const ScaledRun run = train_scaled(precision_config(kPrecisionMlp, kOverflowing), 2);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  ASSERT_EQ(run.error, "");
  ASSERT_EQ(run.scales.size(), 20u);
  EXPECT_EQ(run.scales[0], 0x1p30);
  ASSERT_EQ(run.skipped.substr(0, 3), "xxx");
  EXPECT_NE(run.skipped.find("..."), std::string::npos);
  double scale = 0x1p30;
  int64_t good = 0, skipped = 0;
  for (size_t i = 0; i < run.scales.size(); ++i) {
    EXPECT_EQ(run.scales[i], scale) << i;
    EXPECT_TRUE(std::isfinite(run.losses[i])) << i;
    const bool bad = run.skipped[i] == 'x';
    skipped += bad ? 1 : 0;
    good = bad ? 0 : good + 1;
    scale = bad ? scale / 2 : good == 3 ? scale * 2 : scale;
    if (good == 3) good = 0;
  }
  EXPECT_EQ(run.outcome.skipped_steps, skipped);
  EXPECT_EQ(run.outcome.loss_scale, scale);
}

TEST(LossScale, OverflowHasTheSameBitsOnAnyNumberOfWorkers) {
  for (const char* model : {kPrecisionMlp, kPrecisionLenet, kPrecisionGpt}) {
    const ScaledRun one = train_scaled(precision_config(model, kOverflowing), 1);
    ASSERT_NE(one.skipped.find('x'), std::string::npos);
    for (const int ranks : {2, 3, 4}) {
      const ScaledRun run = train_scaled(precision_config(model, kOverflowing), ranks);
      EXPECT_EQ(run.state_hash, one.state_hash) << ranks << " workers";
      EXPECT_EQ(run.scales, one.scales) << ranks << " workers";
      EXPECT_EQ(run.losses, one.losses) << ranks << " workers";
    }
  }
}

TEST(LossScale, SkippedStepsChangeNothing) {
  // One step of a scale that overflows, against none: nothing but the scale remembers it.
  auto overrides = kOverflowing;
  overrides.back() = "trainer.steps=1";
  const ScaledRun run = train_scaled(precision_config(kPrecisionLenet, overrides), 1);
  ASSERT_EQ(run.skipped, "x");
  with_worker(precision_config(kPrecisionLenet, overrides), [&](Worker& worker) {
    EXPECT_EQ(state_hash_of(worker, *comm::make_solo_communicator()), run.state_hash);
  });
}

TEST(LossScale, IsGoneOnWithWhereARunWasStopped) {
  auto overrides = kOverflowing;
  overrides.push_back("checkpoint.resume_automatic=true");
  const config::RunConfig config = precision_config(kPrecisionMlp, overrides);
  const ScaledRun whole = train_scaled(config, 1);
  for (const int64_t stop : {2, 7, 17}) {
    const test::TemporaryDirectory folder;
    const ScaledRun first = train_scaled(config, 2, folder / "run", stop);
    EXPECT_EQ(first.outcome.steps, stop);
    const ScaledRun second = train_scaled(config, 3, folder / "run");
    EXPECT_EQ(second.outcome.first_step, stop);
    EXPECT_EQ(second.state_hash, whole.state_hash) << "stopped after " << stop;
    EXPECT_EQ(second.outcome.loss_scale, whole.outcome.loss_scale);
    EXPECT_EQ(second.outcome.skipped_steps, whole.outcome.skipped_steps);
    auto scales = first.scales;
    scales.insert(scales.end(), second.scales.begin(), second.scales.end());
    EXPECT_EQ(scales, whole.scales);
  }
}

TEST(LossScale, ARunThatGoesOnFromFloat32BeginsWithTheFirstScale) {
  const test::TemporaryDirectory folder;
  const std::vector<std::string> plain{"checkpoint.resume_automatic=true", "trainer.steps=6"};
  run_ranks(1, [&](int, comm::Communicator& world) {
    Worker worker(precision_config(kPrecisionMlp, plain), {.rank = 0, .world_size = 1, .asynchronous = {}});
    worker.connect(world);
    Trainer trainer(worker, world, {},
                    {.output_directory = folder / "run", .stop_requested = {}, .stop_after = 3});
    trainer.prepare();
    trainer.run();
  });
  auto scaled = plain;
  scaled.insert(scaled.end(), {"precision.compute=FLOAT16", "checkpoint.allow_config_change=true"});
  const ScaledRun run = train_scaled(precision_config(kPrecisionMlp, scaled), 1, folder / "run");
  EXPECT_EQ(run.error, "");
  EXPECT_EQ(run.scales, (std::vector<double>{65536, 65536, 65536}));
}

TEST(LossScale, OverflowsAreNoSignOfTroubleInARunThatGoesOnInAnotherType) {
  const test::TemporaryDirectory folder;
  auto overrides = kOverflowing;
  overrides.push_back("checkpoint.resume_automatic=true");
  const ScaledRun first = train_scaled(precision_config(kPrecisionMlp, overrides), 1, folder / "run", 6);
  ASSERT_GE(first.outcome.skipped_steps, 3);
  for (const char* compute : {"BFLOAT16", "FLOAT32"}) {
    const ScaledRun second = train_scaled(
        precision_config(
            kPrecisionMlp,
            {std::string("precision.compute=") + compute, "trainer.steps=20",
             "checkpoint.resume_automatic=true", "checkpoint.allow_config_change=true",
             "optimizer.learning_rate=1e30", "trainer.clip_norm=0", "optimizer.schedule={}",
             "trainer.nonfinite=SKIP", "trainer.nonfinite_limit=2", "trainer.eval_every_steps=0"}),
        1, folder / "run");
    EXPECT_THAT(second.error, Mentions("step 2 ... trainer.nonfinite_limit ... 2")) << compute;
  }
}

/// Gradients overflow at the lowest scale there is.
std::vector<std::string> at_the_floor(const std::string& policy) {
  return {"precision.compute=FLOAT16",
          "precision.loss_scaling={initial_scale: 1073741824 minimum: 536870912 maximum: 1073741824}",
          "trainer.nonfinite=" + policy, "trainer.nonfinite_limit=3", "trainer.steps=20"};
}

TEST(LossScale, AtItsMinimumThePolicySaysWhatHappens) {
  const ScaledRun located = train_scaled(precision_config(kPrecisionMlp, at_the_floor("LOCATE")), 2);
  EXPECT_EQ(located.skipped, "x");
  EXPECT_EQ(located.code, ExitCode::internal);
  EXPECT_THAT(located.error,
              AllOf(HasSubstr("step 2: loss "), HasSubstr("536870912"),
                    Mentions("first: ... backward of layer"), HasSubstr("made infinity"),
                    HasSubstr("precision.loss_scaling.minimum: lower that"), Not(HasSubstr("clip_norm"))));
  const ScaledRun stopped = train_scaled(precision_config(kPrecisionMlp, at_the_floor("STOP")), 2);
  EXPECT_EQ(stopped.code, ExitCode::internal);
  EXPECT_THAT(stopped.error, AllOf(HasSubstr("536870912"), Not(HasSubstr("first:"))));
  const ScaledRun skipping = train_scaled(precision_config(kPrecisionMlp, at_the_floor("SKIP")), 2);
  EXPECT_EQ(skipping.skipped, "xxx");  // one that lowered the scale, two that counted, and the third ended it
  EXPECT_EQ(skipping.code, ExitCode::internal);
  EXPECT_THAT(skipping.error, AllOf(Mentions("step 3 ... trainer.nonfinite_limit ... 3"),
                                    HasSubstr("precision.loss_scaling.minimum: lower that")));
}

TEST(LossScale, ALossThatIsNotFiniteIsNoMatterOfTheScale) {
  const ScaledRun run = train_scaled(
      precision_config(kPrecisionMlp, {"precision.compute=FLOAT16", "optimizer.learning_rate=1e30",
                                       "trainer.clip_norm=0", "optimizer.schedule={}"}),
      2);
  EXPECT_EQ(run.code, ExitCode::internal);
  EXPECT_THAT(run.error, AllOf(Mentions("first: ... forward of layer"), HasSubstr("65536"),
                               HasSubstr("Lower optimizer.learning_rate")));
}

}  // namespace
}  // namespace lockstep::train
