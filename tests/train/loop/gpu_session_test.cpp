// Workers on GPUs that do not wait for each other, and their servers on hosts' processors, on the emulated GPU:
// what passes through pinned memory, in which order, and what a device holds between sessions.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "device/emulated/emulated_device.h"
#include "lockstep/error.h"
#include "train/loop/divided_models.h"
#include "train/session_ranks.h"
#include "train/thread_ranks.h"
#include "train/worker/compile_options.h"
#include "train/worker/worker_memory.h"

namespace lockstep::train {
namespace {

using ::testing::HasSubstr;

constexpr auto kCpu = device::DeviceKind::cpu, kGpu = device::DeviceKind::cuda;

constexpr const char* kSmall = R"(
format_version: 1
trainer { steps: 5 global_batch: 12 virtual_replicas: 4 micro_batch: 1 seed: 7 clip_norm: 0.5 eval_every_steps: 3 }
optimizer { learning_rate: 0.01 adamw {} weight_decay: 0.1 }
parallel { reduction: FAST bucket_bytes: 2048 }
)";
constexpr const char* kSmallMlp = R"(
model { mlp { image: 6 image: 6 image: 1 hidden: 17 hidden: 13 classes: 5 dropout: 0.3 } }
data { synthetic { samples: 40 eval_samples: 23 classes: 5 shape: 6 shape: 6 shape: 1 } }
)";
constexpr const char* kSmallLenet = R"(
model { lenet { image: 16 image: 16 image: 1 classes: 4 dropout: 0.2 batch_norm: true } }
data { synthetic { samples: 24 eval_samples: 9 classes: 4 shape: 16 shape: 16 shape: 1 } }
)";
constexpr const char* kSmallGpt = R"(
model { gpt { vocabulary: 11 context: 6 layers: 1 heads: 2 width: 32 dropout: 0.1 tied_head: true } }
data { synthetic { samples: 40 eval_samples: 9 classes: 11 context: 6 } }
)";

config::RunConfig small(const char* model, const std::vector<std::string>& overrides = {}) {
  return config::parse_run_config(std::string(kSmall) + model, "test", overrides);
}

/// `seed`: of the order in which devices do what is left open.
std::vector<EndedRank> train_on(device::DeviceKind device, const config::RunConfig& config,
                                const std::string& layout, SessionRanksOptions options = {}) {
  options.device = device;
  return train_sessions(config, layout, options);
}

const std::vector<std::string> kLayouts = {
    "dp=2,sync=ps,mode=stale",
    "dp=2,sync=ps,servers=2,mode=stale,bound=2",
    "dp=2,sync=ps,servers=2,assign=whole,mode=stale",
    "dp=2,sync=ps,servers=2,placement=colocated,mode=stale",
    "dp=3,sync=ps,placement=colocated,mode=stale",
    "dp=2,sync=ps,mode=async",
    "dp=2,sync=ps,servers=2,mode=async",
    "dp=3,sync=ps,servers=2,placement=colocated,mode=async",
};

struct Case {
  const char* name;
  const char* model;
  std::vector<std::string> overrides;
};

class GpuSessions : public ::testing::TestWithParam<Case> {
 protected:
  config::RunConfig config(std::vector<std::string> more = {}) const {
    more.insert(more.end(), GetParam().overrides.begin(), GetParam().overrides.end());
    return small(GetParam().model, more);
  }
};

TEST_P(GpuSessions, OfAWorkerWithoutOthersAreOrdinaryTraining) {
  const EndedRank plain = train_on(kGpu, config(), "dp=1")[0];
  std::vector<uint64_t> bits;
  for (const char* layout : {"dp=1,sync=ps,mode=async", "dp=1,sync=ps,placement=colocated,mode=async"}) {
    const EndedRank alone = train_on(kGpu, config(), layout)[0];
    bits.push_back(alone.state_hash);
    ASSERT_EQ(alone.records.size(), plain.records.size()) << layout;
    for (size_t i = 0; i < plain.records.size(); ++i)
      EXPECT_NEAR(alone.records[i].loss, plain.records[i].loss, 1e-4 * std::fabs(plain.records[i].loss))
          << layout << ", step " << i;
    EXPECT_NEAR(alone.outcome.evaluation->loss, plain.outcome.evaluation->loss, 1e-3) << layout;
  }
  EXPECT_EQ(bits[0], bits[1]) << "where servers are changes no bit";
}

TEST_P(GpuSessions, FollowThoseOfCpus) {
  const char* layout = "dp=1,sync=ps,mode=async";
  const EndedRank cpu = train_on(kCpu, config(), layout)[0], gpu = train_on(kGpu, config(), layout)[0];
  const double tolerance = config().precision.compute == config::ComputeType::float32 ? 1e-4 : 2e-2;
  for (size_t i = 0; i < cpu.records.size(); ++i)
    EXPECT_NEAR(gpu.records[i].loss, cpu.records[i].loss, tolerance * cpu.records[i].loss) << "step " << i;
  EXPECT_NEAR(gpu.outcome.evaluation->loss, cpu.outcome.evaluation->loss, tolerance * 5);
}

TEST_P(GpuSessions, OfOneStepHaveTheSameBitsHoweverServersArePlaced) {
  const auto one_step = config({"checkpoint.every_steps=1"});
  const EndedRank expected = train_on(kGpu, one_step, "dp=2,sync=ps,mode=stale")[0];
  EXPECT_EQ(expected.outcome.sessions, 5);
  for (const std::string servers : {"", ",servers=2", ",placement=colocated", ",servers=2,placement=colocated"}) {
    const std::string layout = "dp=2,sync=ps" + servers + ",mode=stale,bound=2";
    EXPECT_EQ(train_on(kGpu, one_step, layout)[0].state_hash, expected.state_hash) << layout;
  }
}

TEST_P(GpuSessions, MakeEveryStepOnce) {
  uint64_t seed = 1;
  for (const std::string& layout : kLayouts) {
    device::set_emulated_options({.seed = ++seed});
    const auto parsed = layout::parse_layout(layout);
    const auto ended = train_on(kGpu, config(), layout);
    const TrainingOutcome& outcome = ended[0].outcome;
    EXPECT_EQ(outcome.steps, 5) << layout;
    EXPECT_EQ(ended[0].records.size(), 5u) << layout;
    EXPECT_TRUE(std::isfinite(outcome.evaluation->loss)) << layout;
    EXPECT_GT(outcome.staleness.count, 0) << layout;
    EXPECT_EQ(outcome.staleness.count % (5 * parsed.dp), 0) << layout << ": each push once";
    if (parsed.mode == layout::ServerMode::stale) {
      EXPECT_LE(outcome.staleness.max, parsed.bound) << layout;
    }
  }
  device::set_emulated_options({});
}

TEST_P(GpuSessions, AreProven) {
  for (const std::string& layout : kLayouts)
    compile_run(with(config(), layout), {.world_size = processes_of(layout), .device = kGpu}).check();
}

INSTANTIATE_TEST_SUITE_P(All, GpuSessions,
                         ::testing::Values(Case{"mlp", kSmallMlp, {}},
                                           Case{"mlp_as_it_lands",
                                                kSmallMlp,
                                                {"trainer.clip_norm=0", "trainer.nonfinite=IGNORE"}},
                                           Case{"mlp_without_state", kSmallMlp, {"optimizer.sgd={}"}},
                                           Case{"lenet", kSmallLenet, {}}, Case{"gpt", kSmallGpt, {}},
                                           Case{"gpt_bfloat16", kSmallGpt, {"precision.compute=BFLOAT16"}}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace lockstep::train
