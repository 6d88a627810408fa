#include "train/loop/noise_scale.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "lockstep/error.h"
#include "train/loop/divided_models.h"

namespace lockstep::train {
namespace {

/// What rank 0 has measured, by step.
using Scales = std::map<int64_t, double>;

Scales measure(const config::RunConfig& config, const std::string& layout, int64_t every_steps) {
  const int ranks = processes_of(layout);
  const auto mailboxes = control::make_local_mailboxes(ranks);
  Scales scales;
  run_ranks(ranks, [&](int rank, comm::Communicator& world) {
    Worker worker(with(config, layout), {.rank = rank, .world_size = ranks, .asynchronous = {}});
    worker.connect(world);
    worker.compiled().require_noise();
    NoiseScale noise(worker, {.every_steps = every_steps,
                              .mailbox = mailboxes[static_cast<size_t>(rank)].get(),
                              .write = [&](int64_t step, double scale) { scales[step] = scale; }});
    Trainer trainer(worker, world, {}, {.stop_requested = {}, .noise_scale = &noise});
    trainer.prepare();
    trainer.run();
    trainer.finish();
    noise.collect(deadline_in(std::chrono::seconds(60)));
  });
  return scales;
}

/// The same twelve samples in every step, whose parameters do not change; no dropout, whose masks would.
std::vector<std::string> still(const std::vector<std::string>& more) {
  std::vector<std::string> all = {"optimizer.learning_rate=1e-30", "optimizer.weight_decay=0",
                                  "trainer.clip_norm=0",           "data.shuffle=false",
                                  "trainer.eval_every_steps=0",    "data.synthetic.samples=12"};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

constexpr const char* kPlainMlp = R"(
model { mlp { image: 16 image: 16 image: 1 hidden: 300 hidden: 270 classes: 5 } }
data { synthetic { samples: 40 eval_samples: 23 classes: 5 shape: 16 shape: 16 shape: 1 } }
)";
constexpr const char* kTiedGpt = R"(
model { gpt { vocabulary: 110 context: 8 layers: 1 heads: 2 width: 64 tied_head: true } }
data { synthetic { samples: 40 eval_samples: 23 classes: 110 context: 8 } }
)";

/// By its definition, from norms that trainings of small batches report.
double scale_of(const char* model, int64_t small, int64_t large, const std::vector<std::string>& more = {}) {
  const auto norms_of = [&](int64_t batch, int64_t steps) {
    std::vector<std::string> all = {"trainer.global_batch=" + std::to_string(batch),
                                    "trainer.steps=" + std::to_string(steps), "trainer.virtual_replicas=1",
                                    "trainer.micro_batch=0"};
    all.insert(all.end(), more.begin(), more.end());
    return train_on_threads(config_of(model, still(all)), 1).norms;
  };
  double sum = 0;
  for (const double norm : norms_of(small, large / small)) sum += norm * norm;
  const double of_small = sum / static_cast<double>(large / small), norm = norms_of(large, 1)[0],
               of_large = norm * norm;
  const auto b = static_cast<double>(small), B = static_cast<double>(large);
  return (of_small - of_large) / (1 / b - 1 / B) / ((B * of_large - b * of_small) / (B - b));
}

TEST(NoiseScale, IsThatOfNormsOfSmallAndLargeBatchesInEveryLayout) {
  for (const char* model : {kPlainMlp, kTiedGpt}) {
    // Four leaves of three samples.
    const double expected = scale_of(model, 3, 12);
    ASSERT_GT(expected, 0);
    // Buffers of the steps after the first one hold the gradients of those before.
    const auto config = config_of(model, still({"trainer.steps=3", "trainer.micro_batch=3"}));
    for (const char* layout : {"dp=1", "dp=2", "dp=4", "dp=2,shard=optimizer", "dp=2,sync=ps,servers=1",
                               "dp=1,pp=2", "dp=2,pp=2,schedule=zero_bubble", "dp=1,recompute=full"}) {
      if (model == kTiedGpt && with(config, layout).parallel.layout.pp > 1) {
        EXPECT_THROW(measure(config, layout, 1), ConfigError) << "stages share the embedding";
        continue;
      }
      const Scales scales = measure(config, layout, 1);
      ASSERT_EQ(scales.size(), 3u) << layout;
      for (const auto& [step, scale] : scales)
        EXPECT_NEAR(scale, expected, 1e-4 * expected) << layout << ", step " << step;
    }
  }
}

/// The kernel of a frozen norm behind trained layers makes gradients that nobody needs.
TEST(NoiseScale, IsOfWhatIsTrained) {
  const std::string frozen = "model.frozen=[\"h.0.ln_1\", \"ln_f\"]";
  const double expected = scale_of(kTiedGpt, 3, 12, {frozen});
  const Scales scales =
      measure(config_of(kTiedGpt, still({"trainer.steps=1", "trainer.micro_batch=3", frozen})), "dp=2", 1);
  ASSERT_EQ(scales.size(), 1u);
  EXPECT_NEAR(scales.at(1), expected, 1e-4 * expected);
}

/// Where what is not finite is taken, one step must not spoil all figures after it.
TEST(NoiseScale, LeavesOutStepsThatAreNotFinite) {
  const Scales scales =
      measure(config_of(kPlainMlp, {"trainer.nonfinite=IGNORE", "trainer.micro_batch=3",
                                    "optimizer.learning_rate=1e30", "trainer.eval_every_steps=0"}),
              "dp=2", 1);
  for (const auto& [step, scale] : scales) EXPECT_TRUE(std::isfinite(scale)) << step;
  EXPECT_FALSE(scales.contains(5));
}

TEST(NoiseScale, OfScaledLossesIsTheSame) {
  const double expected = scale_of(kPlainMlp, 3, 12);
  const Scales scales = measure(
      config_of(kPlainMlp, still({"trainer.steps=1", "trainer.micro_batch=3", "precision.compute=FLOAT16"})),
      "dp=2", 1);
  ASSERT_EQ(scales.size(), 1u);
  EXPECT_NEAR(scales.at(1), expected, 0.05 * expected);
}

TEST(NoiseScale, IsMeasuredWhenItIsDueAndChangesNothing) {
  const config::RunConfig config = config_of(kMlp, {"optimizer.lamb={}"});
  const Scales scales = measure(config, "dp=2", 2);
  for (const auto& [step, scale] : scales) EXPECT_TRUE(step == 2 || step == 4) << step;
  // Observed steps run another way: the bits of a training must not.
  const Trace plain = train_on_threads(config, 2);
  const auto mailboxes = control::make_local_mailboxes(2);
  run_ranks(2, [&](int rank, comm::Communicator& world) {
    Worker worker(config, {.rank = rank, .world_size = 2, .asynchronous = {}});
    worker.connect(world);
    NoiseScale noise(worker, {.every_steps = 2,
                              .mailbox = mailboxes[static_cast<size_t>(rank)].get(),
                              .write = [](int64_t, double) {}});
    std::vector<double> losses, norms;
    TrainerEvents events;
    events.on_step = [&](const StepRecord& record) {
      losses.push_back(record.loss);
      norms.push_back(record.gradient_norm);
    };
    Trainer trainer(worker, world, events, {.stop_requested = {}, .noise_scale = &noise});
    trainer.prepare();
    trainer.run();
    trainer.finish();
    EXPECT_EQ(losses, plain.losses);
    EXPECT_EQ(norms, plain.norms);
  });
}

TEST(NoiseScale, NeedsMicroBatches) {
  const config::RunConfig config = config_of(kMlp, {"trainer.virtual_replicas=1", "trainer.micro_batch=12"});
  EXPECT_THROW(measure(config, "dp=1", 1), ConfigError);
}

TEST(NoiseScaleEstimate, AveragesBeforeItDivides) {
  NoiseScaleEstimate estimate;
  EXPECT_FALSE(estimate.value());
  // |G|² = 1 and S = 4: |G_2|² = 3, |G_8|² = 1.5.
  estimate.add(3, 0.5, 1.5, 8);
  EXPECT_NEAR(*estimate.value(), 4, 1e-12);
  // |G|² = 3 and S = 2. The older one counts for 0.9 of it.
  estimate.add(4, 0.5, 3.25, 8);
  EXPECT_NEAR(*estimate.value(), (0.9 * 4 + 2) / (0.9 * 1 + 3), 1e-12);
}

TEST(NoiseScaleEstimate, IsNothingOnceItIsNoNumber) {
  for (const double wrong : {std::nan(""), HUGE_VAL}) {
    NoiseScaleEstimate estimate;
    estimate.add(wrong, 0.5, wrong, 8);
    EXPECT_FALSE(estimate.value());
  }
}

TEST(NoiseScaleEstimate, IsNothingWhereNoiseHidesTheGradient) {
  NoiseScaleEstimate estimate;
  estimate.add(8, 0.5, 1, 8);  // of noise alone it would be 2
  EXPECT_FALSE(estimate.value());
}

}  // namespace
}  // namespace lockstep::train
