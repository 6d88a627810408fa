#include "train/faults/nonfinite.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <limits>

#include "data/test_files.h"
#include "mentions.h"
#include "train/thread_ranks.h"
#include "train/worker/model_state.h"

namespace lockstep::train {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr const char* kNonfiniteConfig = R"(
format_version: 1
model { mlp { image: 4 image: 4 image: 1 hidden: 8 hidden: 8 classes: 3 } }
data { synthetic { samples: 24 eval_samples: 6 classes: 3 shape: 4 shape: 4 shape: 1 } }
trainer { steps: 5 global_batch: 8 virtual_replicas: 4 seed: 3 eval_at_end: false }
optimizer { learning_rate: 1e25 sgd {} }
parallel { reduction: REPRODUCIBLE }
)";

struct Failure {
  std::string message = "nothing was thrown";
  ExitCode code = ExitCode::done;
  int64_t step = -1;
  std::vector<float> parameter;
};

/// Trains until the step that overflows; what each rank threw.
std::vector<Failure> train_to_failure(int ranks, const std::vector<std::string>& overrides) {
  const config::RunConfig config = config::parse_run_config(kNonfiniteConfig, "test", overrides);
  std::vector<Failure> failures(static_cast<size_t>(ranks));
  run_ranks(ranks, [&](int rank, comm::Communicator& world) {
    Worker worker(config, {.rank = rank, .world_size = ranks, .asynchronous = {}});
    worker.connect(world);
    Trainer trainer(worker, world, {}, {});
    trainer.prepare();
    auto& failure = failures[static_cast<size_t>(rank)];
    try {
      trainer.run();
    } catch (const comm::CollectiveError& error) {
      failure.message = error.what();
      failure.code = error.code();
    }
    failure.step = trainer.next_step();
    const float* data = worker.parameter_data(0);
    failure.parameter.assign(data, data + 8);
  });
  return failures;
}

TEST(NonFinite, NamesOpTensorMicroBatchAndRankOnEveryRank) {
  const auto failures = train_to_failure(2, {});
  EXPECT_THAT(failures[0].message, AllOf(Mentions("first: ... layer fc"), HasSubstr("(linear)"),
                                         HasSubstr("micro-batch 0 of rank 0"), HasSubstr("learning_rate")));
  EXPECT_EQ(failures[0].message, failures[1].message);
  EXPECT_EQ(failures[0].code, ExitCode::internal);
}

TEST(NonFinite, NamesWhatIsTooLargeForItsType) {
  // After a step like this, weights are finite, and beyond 65504.
  const auto weights = train_to_failure(1, {"precision.compute=FLOAT16", "optimizer.learning_rate=1e7",
                                            "precision.loss_scaling.initial_scale=1"});
  EXPECT_THAT(
      weights[0].message,
      Mentions("first: forward of layer fc ... (linear) ... infinity ... parameter fc ... float16, element"));
  // Eight white images, each of whose pixels is a million.
  const test::TemporaryDirectory files;
  test::Bytes images{0, 0, 8, 3, 0, 0, 0, 8, 0, 0, 0, 4, 0, 0, 0, 4}, labels{0, 0, 8, 1, 0, 0, 0, 8};
  images.resize(images.size() + 8 * 16, 255);
  labels.resize(labels.size() + 8, 1);
  test::write_file(files / "images", images);
  test::write_file(files / "labels", labels);
  const auto inputs = train_to_failure(
      1,
      {"precision.compute=FLOAT16", "data.directory=" + files.path(),
       R"(data.idx={train_images: "images" train_labels: "labels" eval_images: "images" eval_labels: "labels" deviation: 1e-6})"});
  EXPECT_THAT(
      inputs[0].message,
      Mentions("first: forward of layer fc1 (linear) ... infinity ... input image ... float16, element 0"));
}

TEST(NonFinite, LeavesParametersAsBeforeTheStep) {
  const auto failures = train_to_failure(1, {});
  ASSERT_GE(failures[0].step, 1);
  for (const float value : failures[0].parameter) EXPECT_TRUE(std::isfinite(value));
  // Trained exactly as far as the failing step, a run ends with the same parameters.
  const auto shorter = train_to_failure(1, {"trainer.steps=" + std::to_string(failures[0].step)});
  EXPECT_EQ(shorter[0].message, "nothing was thrown");
  EXPECT_EQ(shorter[0].parameter, failures[0].parameter);
}

TEST(NonFinite, TheEarliestFindingOfAllRanksCounts) {
  const NonFiniteFinding nothing, backward{0, 9, 2, "backward"}, forward{0, 4, 1, "forward"},
      later_call{0, 4, 2, "later"}, later_batch{1, 0, 0, "batch 1"}, before{-1, 0, 0, "parameter"};
  EXPECT_EQ(earliest_message({nothing, nothing}), "");
  EXPECT_EQ(earliest_message({backward, nothing, forward, later_call}), "forward");
  EXPECT_EQ(earliest_message({later_batch, backward}), "backward");
  EXPECT_EQ(earliest_message({forward, before}), "parameter");
  EXPECT_EQ(earliest_message({{0, 4, 1, "rank 0"}, {0, 4, 1, "rank 1"}}), "rank 0");
  const NonFiniteFinding read = finding_from_text(to_text(before));
  EXPECT_EQ(read.micro_batch, -1);
  EXPECT_EQ(read.message, "parameter");
  EXPECT_EQ(finding_from_text(to_text(nothing)).message, "");
}

TEST(NonFinite, StateThatOverflowedInTheUpdateIsNotSaved) {
  const std::string directory = testing::TempDir() + "lockstep_nonfinite_save";
  std::filesystem::remove_all(directory);
  // The step's gradients are finite, what the update makes of them is not.
  const config::RunConfig config = config::parse_run_config(
      kNonfiniteConfig, "test",
      {"optimizer.learning_rate=3e38", "optimizer.weight_decay=3e38", "trainer.steps=1"});
  std::string message;
  run_ranks(2, [&](int rank, comm::Communicator& world) {
    Worker worker(config, {.rank = rank, .world_size = 2, .asynchronous = {}});
    worker.connect(world);
    Trainer trainer(worker, world, {}, {.output_directory = directory, .stop_requested = {}});
    trainer.prepare();
    try {
      trainer.run();
    } catch (const comm::CollectiveError& error) {
      if (rank == 1) message = error.what();
    }
  });
  EXPECT_THAT(message, AllOf(HasSubstr("not saved"), HasSubstr("fc"), HasSubstr("step 1")));
  EXPECT_TRUE(checkpoint::find_checkpoints(directory + "/checkpoints").empty());
  std::filesystem::remove_all(directory);
}

TEST(NonFinite, IgnorePolicyUpdatesEvenWithClipping) {
  const auto three = train_to_failure(1, {"trainer.nonfinite=IGNORE", "trainer.clip_norm=1",
                                          "trainer.steps=3", "optimizer.learning_rate=0.1"});
  const auto five =
      train_to_failure(1, {"trainer.nonfinite=IGNORE", "trainer.clip_norm=1", "optimizer.learning_rate=0.1"});
  EXPECT_NE(three[0].parameter, five[0].parameter);
}

TEST(NonFinite, StopPolicyDoesNotReplay) {
  const auto failures = train_to_failure(2, {"trainer.nonfinite=STOP"});
  EXPECT_THAT(failures[1].message, AllOf(Mentions("loss ... finite"), Not(HasSubstr("first:"))));
}

constexpr const char* kBatchNorm = R"(
format_version: 1
model { lenet { image: 12 image: 12 image: 1 classes: 3 batch_norm: true } }
data { synthetic { samples: 24 eval_samples: 6 classes: 3 shape: 12 shape: 12 shape: 1 } }
trainer { steps: 6 global_batch: 8 virtual_replicas: 4 seed: 3 eval_at_end: false nonfinite: SKIP check_every_steps: 1 }
optimizer { learning_rate: 0.05 adam {} }
parallel { reduction: REPRODUCIBLE }
)";

struct SkippingRun {
  std::vector<StepRecord> records;
  std::vector<std::vector<uint64_t>>
      hashes;  ///< of every tensor, after each step, parameters as they were trained
  TrainingOutcome outcome;
};

/// Trains with one weight not a number during steps 3 and 5 of 6, on every rank; rank 0's view.
SkippingRun train_with_bad_steps(int ranks, const std::vector<std::string>& overrides = {}) {
  const config::RunConfig config = config::parse_run_config(kBatchNorm, "test", overrides);
  std::vector<SkippingRun> runs(static_cast<size_t>(ranks));
  run_ranks(ranks, [&](int rank, comm::Communicator& world) {
    auto& run = runs[static_cast<size_t>(rank)];
    Worker worker(config, {.rank = rank, .world_size = ranks, .asynchronous = {}});
    worker.connect(world);
    float& weight = worker.parameter_data(0)[1];
    float good = 0;
    TrainerEvents events;
    events.on_step = [&](const StepRecord& record) {
      if (std::isnan(weight)) weight = good;
      run.records.push_back(record);
      auto& hashes = run.hashes.emplace_back();
      for (const auto& [name, hash] : tensor_hashes(worker, world)) hashes.push_back(hash);
      if (record.step == 2 || record.step == 4) {
        good = weight;
        weight = std::numeric_limits<float>::quiet_NaN();
      }
    };
    Trainer trainer(worker, world, events, {});
    trainer.prepare();
    run.outcome = trainer.run();
  });
  return runs[0];
}

TEST(NonFinite, SkipPolicyLeavesEverythingAsItWasCountsAndGoesOn) {
  const SkippingRun run = train_with_bad_steps(2);
  ASSERT_EQ(run.records.size(), 6u);
  for (const auto& record : run.records) {
    const bool bad = record.step == 3 || record.step == 5;
    EXPECT_EQ(record.skipped, bad) << record.step;
    EXPECT_EQ(std::isfinite(record.loss), !bad) << record.step;
    if (record.step == 1) continue;
    const auto& now = run.hashes[static_cast<size_t>(record.step - 1)];
    const auto& before = run.hashes[static_cast<size_t>(record.step - 2)];
    // Weights, the running statistics of batch normalization, and Adam's moments.
    for (size_t t = 0; t < now.size(); ++t)
      EXPECT_EQ(now[t] == before[t], bad) << "step " << record.step << ", tensor " << t;
  }
  EXPECT_EQ(run.outcome.steps, 6);
  EXPECT_EQ(run.outcome.skipped_steps, 2);
}

TEST(NonFinite, SkippedStepsHaveTheSameBitsOnAnyNumberOfWorkers) {
  const SkippingRun one = train_with_bad_steps(1);
  for (const int ranks : {2, 4}) {
    const SkippingRun run = train_with_bad_steps(ranks);
    EXPECT_EQ(run.hashes, one.hashes) << ranks;
    EXPECT_EQ(run.outcome.skipped_steps, 2);
  }
}

/// Residuals of error feedback, which a step that is skipped has used all the same.
TEST(NonFinite, OneBadStepDoesNotSpoilWhatRoundingKeeps) {
  const std::vector<std::string> feedback{"model.lenet.batch_norm=false", "parallel.wire=BFLOAT16",
                                          "parallel.error_feedback=true"};
  const SkippingRun one = train_with_bad_steps(1, feedback);
  ASSERT_EQ(one.records.size(), 6u);
  for (const auto& record : one.records) EXPECT_EQ(record.skipped, record.step == 3 || record.step == 5);
  for (const int ranks : {2, 4}) {
    const SkippingRun run = train_with_bad_steps(ranks, feedback);
    EXPECT_EQ(run.hashes, one.hashes) << ranks;
    EXPECT_EQ(run.outcome.skipped_steps, 2);
  }
}

TEST(NonFinite, SkipPolicyEndsAtTheLimitWithTheCount) {
  EXPECT_EQ(train_with_bad_steps(1, {"trainer.nonfinite_limit=3"}).outcome.skipped_steps, 2);
  const auto failures =
      train_to_failure(2, {"trainer.nonfinite=SKIP", "trainer.nonfinite_limit=3", "trainer.steps=20"});
  const auto located = train_to_failure(2, {});
  EXPECT_EQ(failures[1].code, ExitCode::internal);
  EXPECT_EQ(failures[1].step, located[1].step + 2);  // what overflows once, overflows in every step
  EXPECT_THAT(failures[1].message,
              AllOf(Mentions("step 3 ... trainer.nonfinite_limit ... 3"), HasSubstr("learning_rate"),
                    HasSubstr("step " + std::to_string(failures[1].step + 1) + ": loss ")));
  EXPECT_EQ(failures[1].message, failures[0].message);
  EXPECT_EQ(failures[1].parameter, located[1].parameter);
}

TEST(NonFinite, IgnorePolicyTrainsOn) {
  const auto failures = train_to_failure(1, {"trainer.nonfinite=IGNORE"});
  EXPECT_EQ(failures[0].message, "nothing was thrown");
  EXPECT_EQ(failures[0].step, 5);
}

}  // namespace
}  // namespace lockstep::train
