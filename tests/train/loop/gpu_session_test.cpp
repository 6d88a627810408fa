// Workers on GPUs that do not wait for each other, and their servers on hosts' processors, on the emulated
// GPU: what passes through pinned memory, in which order, and what a device holds between sessions.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "data/test_files.h"
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
data { synthetic { samples: 40 eval_samples: 11 classes: 5 shape: 6 shape: 6 shape: 1 } }
)";
constexpr const char* kSmallLenet = R"(
model { lenet { image: 16 image: 16 image: 1 classes: 4 dropout: 0.2 batch_norm: true } }
data { synthetic { samples: 24 eval_samples: 5 classes: 4 shape: 16 shape: 16 shape: 1 } }
)";
constexpr const char* kSmallGpt = R"(
model { gpt { vocabulary: 11 context: 3 layers: 1 heads: 1 width: 32 dropout: 0.1 tied_head: true } }
data { synthetic { samples: 40 eval_samples: 3 classes: 11 context: 3 } }
)";

config::RunConfig small(const char* model, const std::vector<std::string>& overrides = {}) {
  return config::parse_run_config(std::string(kSmall) + model, "test", overrides);
}

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
  for (const std::string servers :
       {"", ",servers=2", ",placement=colocated", ",servers=2,placement=colocated"}) {
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

INSTANTIATE_TEST_SUITE_P(
    All, GpuSessions,
    ::testing::Values(Case{"mlp", kSmallMlp, {}},
                      Case{"mlp_as_it_lands", kSmallMlp, {"trainer.clip_norm=0", "trainer.nonfinite=IGNORE"}},
                      Case{"mlp_without_state", kSmallMlp, {"optimizer.sgd={}"}},
                      Case{"lenet", kSmallLenet, {}}, Case{"gpt", kSmallGpt, {"precision.compute=BFLOAT16"}}),
    [](const auto& info) { return info.param.name; });

TEST(GpuSession, WithABoundOfZeroHasTheBitsOfServersThatWaitForAll) {
  for (const char* model : {kSmallMlp, kSmallLenet}) {
    const auto config = small(model, {"parallel.reduction=REPRODUCIBLE"});
    for (const std::string servers : {"", ",servers=2,placement=colocated"}) {
      const EndedRank waiting = train_on(kGpu, config, "dp=2,sync=ps" + servers)[0];
      const EndedRank zero = train_on(kGpu, config, "dp=2,sync=ps" + servers + ",mode=stale,bound=0")[0];
      EXPECT_EQ(zero.state_hash, waiting.state_hash) << servers;
      EXPECT_EQ(zero.outcome.train_loss, waiting.outcome.train_loss) << servers;
    }
  }
}

/// Servers on processors, whose memory for whole matrices the plan has once, however many they serve.
TEST(GpuSession, UpdatesMatricesOnServers) {
  const auto config = small(kSmallMlp, {"optimizer.muon={adamw: {learning_rate: 0.002}}",
                                        "optimizer.groups={parameters: \"fc1.weight\" muon: true}"});
  const EndedRank dedicated = train_on(kGpu, config, "dp=1,sync=ps,mode=async")[0];
  EXPECT_EQ(train_on(kGpu, config, "dp=1,sync=ps,placement=colocated,mode=async")[0].state_hash,
            dedicated.state_hash)
      << "where servers are changes no bit";
  const EndedRank cpu = train_on(kCpu, config, "dp=1,sync=ps,mode=async")[0];
  ASSERT_EQ(cpu.records.size(), dedicated.records.size());
  for (size_t i = 0; i < cpu.records.size(); ++i)
    EXPECT_NEAR(dedicated.records[i].loss, cpu.records[i].loss, 2e-2 * cpu.records[i].loss) << "step " << i;
  for (const std::string layout :
       {"dp=2,sync=ps,mode=stale", "dp=2,sync=ps,servers=2,assign=whole,mode=async"}) {
    const auto ended = train_on(kGpu, config, layout);
    EXPECT_EQ(ended[0].outcome.steps, 5) << layout;
    EXPECT_TRUE(std::isfinite(ended[0].outcome.evaluation->loss)) << layout;
  }
}

TEST(GpuSession, LearnsThoughWorkersDoNotWaitForEachOther) {
  const auto config = small(kSmallMlp, {"trainer.steps=40", "trainer.eval_every_steps=0",
                                        "model.mlp.dropout=0", "trainer.clip_norm=0"});
  for (const std::string layout :
       {"dp=2,sync=ps,mode=stale", "dp=2,sync=ps,servers=2,mode=stale", "dp=2,sync=ps,mode=async",
        "dp=2,sync=ps,servers=2,mode=async", "dp=2,sync=ps,placement=colocated,mode=async"}) {
    const auto ended = train_on(kGpu, config, layout);
    const auto& records = ended[0].records;
    ASSERT_EQ(records.size(), 40u) << layout;
    const auto mean = [&](size_t first) {
      double sum = 0;
      for (size_t i = first; i < first + 10; ++i) sum += records[i].loss / 10;
      return sum;
    };
    EXPECT_LT(mean(30), 0.9 * mean(0)) << layout;
  }
}

SessionRanksOptions in(const test::TemporaryDirectory& folder, int64_t stop_after = 0) {
  return {.folder = folder.path(), .stop_after = stop_after, .stop_requested = {}, .before = {}};
}

const std::vector<std::string> kSaving = {
    "checkpoint={every_steps: 2 background: false resume_automatic: true}"};

TEST(GpuSession, OfAWorkerWithoutOthersGoesOnToTheSameBits) {
  for (const std::string layout :
       {"dp=1,sync=ps,mode=async", "dp=1,sync=ps,placement=colocated,mode=async"}) {
    const auto config = small(kSmallMlp, kSaving);
    const test::TemporaryDirectory whole_folder, folder;
    const auto whole = train_on(kGpu, config, layout, in(whole_folder));
    train_on(kGpu, config, layout, in(folder, 3));
    const auto rest = train_on(kGpu, config, layout, in(folder));
    EXPECT_EQ(rest[0].outcome.first_step, 3) << layout;
    EXPECT_EQ(rest[0].state_hash, whole[0].state_hash) << layout << ": the optimizer's state went along";
  }
}

TEST(GpuSession, GoesOnFromCheckpointsOfOtherModesAndOfCpus) {
  const auto config = small(kSmallLenet, kSaving);
  for (const auto& [first_device, first, second] :
       {std::tuple{kGpu, "dp=2,sync=ps,mode=stale", "dp=2"},
        std::tuple{kGpu, "dp=1", "dp=2,sync=ps,servers=2,mode=async"},
        std::tuple{kCpu, "dp=2,sync=ps,servers=2,mode=async", "dp=2,sync=ps,placement=colocated,mode=stale"},
        std::tuple{kGpu, "dp=2,sync=ps,servers=2,placement=colocated,mode=async", "dp=2,sync=ps"}}) {
    const test::TemporaryDirectory folder;
    train_on(first_device, config, first, in(folder, 2));
    const auto rest = train_on(kGpu, config, second, in(folder));
    EXPECT_EQ(rest[0].outcome.first_step, 2) << first;
    EXPECT_EQ(rest[0].outcome.steps, 5) << first << ", then " << second;
    EXPECT_TRUE(std::isfinite(rest[0].outcome.train_loss.value())) << first << ", then " << second;
  }
}

TEST(GpuSession, IsOverSoonWhereAnyRankIsAskedToStop) {
  const auto config =
      small(kSmallMlp, {"trainer.steps=200", "trainer.eval_every_steps=0", "trainer.eval_at_end=false"});
  for (const std::string layout : {"dp=2,sync=ps,mode=stale", "dp=2,sync=ps,mode=async"})
    for (const int asked : {0, 2}) {
      std::atomic<int> polls{0};
      const auto ended = train_on(kGpu, config, layout,
                                  {.folder = {},
                                   .stop_requested = [&](int rank) { return rank == asked && ++polls > 8; },
                                   .before = {}});
      EXPECT_TRUE(ended[0].outcome.stopped) << layout << ", rank " << asked;
      EXPECT_LT(ended[0].outcome.steps, 150) << layout;
    }
}

std::string error_of(const config::RunConfig& config, const std::string& layout) {
  try {
    train_on(kGpu, config, layout);
  } catch (const Error& error) {
    return error.what();
  }
  return "none";
}

TEST(GpuSession, OfStepsThatAreNotFiniteEndsOrSkipsThem) {
  const std::vector<std::string> diverging = {"optimizer.sgd={}",           "optimizer.learning_rate=1e30",
                                              "trainer.clip_norm=0",        "optimizer.weight_decay=0",
                                              "trainer.eval_every_steps=0", "trainer.eval_at_end=false"};
  for (const std::string layout : {"dp=2,sync=ps,mode=stale", "dp=2,sync=ps,mode=async"}) {
    const std::string located = error_of(small(kSmallMlp, diverging), layout);
    EXPECT_THAT(located, HasSubstr("share of the batch are not both finite; its push changed nothing"));
    EXPECT_THAT(located, HasSubstr("first: the gradient of parameter"));
    auto skipping = diverging;
    skipping.insert(skipping.end(), {"trainer.nonfinite=SKIP", "trainer.nonfinite_limit=1000"});
    const auto ended = train_on(kGpu, small(kSmallMlp, skipping), layout);
    EXPECT_GT(ended[0].outcome.skipped_steps, 0) << layout;
    EXPECT_EQ(ended[0].outcome.steps, 5) << layout;
  }
}

TEST(GpuSession, IsTheSameWhereDevicesDoNotTellWhereTheyAre) {
  const char* layout = "dp=1,sync=ps,servers=2,mode=async";
  const uint64_t expected = train_on(kGpu, small(kSmallMlp), layout)[0].state_hash;
  for (const bool writes_words : {true, false}) {
    device::set_emulated_options({.seed = 5, .writes_words = writes_words});
    const auto ended = train_on(kGpu, small(kSmallMlp), layout,
                                {.folder = {}, .stop_requested = {}, .before = {}, .watched = true});
    EXPECT_EQ(ended[0].state_hash, expected) << writes_words;
  }
  device::set_emulated_options({});
}

TEST(GpuSession, CountsTheBytesThatProgramsSayBesideItsMessages) {
  const std::string layout = "dp=2,sync=ps,servers=2,mode=stale";
  const auto ended = train_on(kGpu, small(kSmallLenet), layout);
  const auto run = compile_run(with(small(kSmallLenet), layout), {.world_size = 4, .device = kGpu});
  for (int rank = 0; rank < 4; ++rank) {
    const auto theory = run.compile(rank).traffic();
    EXPECT_GE(nth(ended, rank).transferred.sent, 5 * theory.exchanged_sent_bytes) << rank;
    EXPECT_GE(nth(ended, rank).transferred.received, 5 * theory.exchanged_received_bytes) << rank;
    EXPECT_GT(theory.exchanged_sent_bytes, 0) << rank;
  }
}

WorkerMemory planned(const std::string& layout, int rank) {
  const auto config = with(small(kSmallMlp, {"parallel.bucket_bytes=1000000"}), layout);
  const auto run = compile_run(config, {.world_size = config.parallel.layout.world_size(), .device = kGpu});
  return plan_worker_memory(run, run.compile(rank), config);
}

/// That this is what devices allocate is checked after every training (session_ranks.cpp).
TEST(GpuSession, TakesTheHostsMemoryForWhatPassesThroughItAndForWhatServersHold) {
  // One range of 933 parameters, each tensor on a multiple of 64 bytes.
  constexpr int64_t kRange = 3968, kPlaced = 4096;
  const std::string colocated = "dp=2,sync=ps,placement=colocated";
  const WorkerMemory both = planned(colocated + ",mode=stale", 0),
                     without_bound = planned(colocated + ",mode=async", 0),
                     worker = planned("dp=2,sync=ps,mode=stale", 0),
                     server = planned("dp=2,sync=ps,mode=stale", 2), plain = planned(colocated, 0);
  EXPECT_EQ(worker.host.served_bytes, 0);
  // What a pull brings, and a push takes with its verdict; no replay, whose images and labels, constants and
  // record do not take theirs.
  EXPECT_EQ(both.host.staging_bytes, plain.host.staging_bytes + kRange + kRange + 64 - 4 * 256 - 64 - 16);
  // Parameters, two moments, and places for two pushes of each of two workers.
  EXPECT_EQ(both.host.served_bytes, kPlaced + 2 * kRange + 2 * 2 * kPlaced);
  // One push of each worker, and eight slices, each of an eighth of the range, on their way to each.
  EXPECT_EQ(without_bound.host.served_bytes, kPlaced + 2 * kRange + 2 * kPlaced + 2 * kPlaced);
  // Of servers on processors, what workers get when a session ends, and agreements.
  EXPECT_GT(worker.host.staging_bytes, both.host.staging_bytes + kRange);
  for (const WorkerMemory* memory : {&worker, &both}) {
    EXPECT_EQ(memory->device.space_bytes[static_cast<size_t>(program::Space::host)], 0);
    int64_t sum = 0;
    for (const int64_t bytes : memory->device.category_bytes) sum += bytes;
    EXPECT_EQ(sum, memory->device.total_bytes);
  }
  EXPECT_THAT(describe(both), HasSubstr("  served             27.75 KiB\n"));
  EXPECT_THAT(describe(worker), ::testing::Not(HasSubstr("served")));
  // A processor's memory is all its own.
  EXPECT_EQ(server.host.served_bytes, 0);
  EXPECT_GT(server.device.total_bytes, kPlaced + 2 * kRange + 2 * 2 * kPlaced);
}

TEST(GpuSession, IsServedFromTheHostsMemory) {
  for (const std::string layout :
       {"dp=2,sync=ps,placement=colocated,mode=stale", "dp=2,sync=ps,placement=colocated,mode=async"}) {
    const auto run = compile_run(with(small(kSmallLenet), layout), {.world_size = 2, .device = kGpu});
    const program::Program serve = run.compile(0).serve;
    ASSERT_FALSE(serve.instructions.empty()) << layout;
    for (const auto& instruction : serve.instructions)
      for (const auto& operand : instruction.operands) {
        // What lies there between sessions, too, is the device's.
        const bool stays = operand.role == program::Role::destination || operand.role == program::Role::state;
        EXPECT_EQ(serve.buffer(operand.range.buffer).space == program::Space::host, !stays)
            << layout << ": " << program::name_of(operand.role);
      }
  }
}

/// Must not be asked.
class NoMuster : public control::Muster {
 public:
  void enter(std::vector<bool>) override { ADD_FAILURE() << "on GPUs nobody can be lost"; }
  std::vector<int> lost() const override { return {}; }
  int lost_count() const override { return 0; }
  void leave() override {}
  std::optional<std::vector<int>> members() override { return {}; }
};

TEST(GpuSession, EndsTheJobWithALostWorker) {
  run_ranks(3, [](int rank, comm::Communicator& world) {
    NoMuster muster;
    WorkerOptions options{.rank = rank, .world_size = 3, .device = kGpu, .asynchronous = {}};
    options.company = {&muster, {0, 1, 2}};
    Worker worker(with(small(kSmallMlp), "dp=2,sync=ps,mode=async"), options);
    worker.connect(world);
    Trainer trainer(worker, world, {}, {.output_directory = {}, .stop_requested = {}});
    trainer.prepare();
    EXPECT_EQ(trainer.run().steps, 5);
  });
}

}  // namespace
}  // namespace lockstep::train
