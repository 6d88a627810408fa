// Where a rank on a GPU is, as its watchdog sees it: written by the GPU, or, if it cannot, found by its host.

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <thread>

#include "base/clock.h"
#include "device/emulated/emulated_device.h"
#include "train/thread_ranks.h"

namespace lockstep::train {
namespace {

constexpr const char* kProgressConfig = R"(
format_version: 1
model { mlp { image: 4 image: 4 image: 1 hidden: 8 hidden: 8 classes: 3 } }
data { synthetic { samples: 256 eval_samples: 8 classes: 3 shape: 4 shape: 4 shape: 1 } }
trainer { steps: 2 global_batch: 8 virtual_replicas: 4 micro_batch: 1 seed: 3 }
optimizer { learning_rate: 0.1 sgd {} }
parallel { reduction: REPRODUCIBLE bucket_bytes: 512 }
)";

config::RunConfig config_of(const std::vector<std::string>& overrides = {}) {
  return config::parse_run_config(kProgressConfig, "test", overrides);
}

class GpuProgress : public ::testing::TestWithParam<bool> {
 protected:
  GpuProgress() { device::set_emulated_options({.writes_words = GetParam()}); }
  ~GpuProgress() override { device::set_emulated_options({}); }
};

TEST_P(GpuProgress, TrainingIsTheSameAndALineSaysWhatIsLost) {
  const TraceOptions cuda{.device = device::DeviceKind::cuda},
      watched{.device = device::DeviceKind::cuda, .watched = true};
  const Trace expected = train_on_threads(config_of(), 2, cuda);
  ::testing::internal::CaptureStderr();
  const Trace actual = train_on_threads(config_of(), 2, watched);
  const std::string told = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(actual, expected);
  const std::string line = "(it is told to refuse)";
  int lines = 0;
  for (size_t at = told.find(line); at != told.npos; at = told.find(line, at + 1)) ++lines;
  EXPECT_EQ(lines, GetParam() ? 0 : 2) << "one for each rank: " << told;
}

std::vector<control::Progress::Entry> entries(const control::Progress& progress) {
  std::vector<control::Progress::Entry> all;
  for (int slot = 0; slot < control::Progress::kSlots; ++slot) all.push_back(progress.at(slot));
  return all;
}

bool only_waits(const std::vector<control::Progress::Entry>& entries) {
  bool waits = false;
  for (const auto& entry : entries) {
    if (entry.activity != control::Activity::idle && entry.activity != control::Activity::waiting)
      return false;
    waits = waits || (entry.activity == control::Activity::waiting && entry.program == kStepProgram);
  }
  return waits;
}

/// Such a rank must not be blamed, however long that takes; and the watchdog must see that it stands still.
TEST_P(GpuProgress, ARankThatWaitsForAPeerSaysSoAndNothingElse) {
  const config::RunConfig config = config_of();
  std::vector<control::Progress> progress(2);
  run_ranks(2, [&](int rank, comm::Communicator& world) {
    Worker worker(config, {.rank = rank,
                           .world_size = 2,
                           .device = device::DeviceKind::cuda,
                           .progress = &progress[static_cast<size_t>(rank)]});
    worker.connect(world);
    Trainer trainer(worker, world, {},
                    {.stop_requested = {}, .progress = &progress[static_cast<size_t>(rank)]});
    trainer.prepare();
    if (rank == 1) {
      const Deadline deadline = deadline_in(std::chrono::seconds(60));
      std::vector<control::Progress::Entry> before, now;
      do {
        before = entries(progress[0]);
        std::this_thread::sleep_for(std::chrono::milliseconds(30));
        now = entries(progress[0]);
      } while (!(now == before && only_waits(now)) && Clock::now() < deadline);
      EXPECT_TRUE(now == before && only_waits(now));
      for (int lane = 0; lane < static_cast<int>(worker.programs().step.lanes.size()); ++lane) {
        const auto& entry = now[static_cast<size_t>(control::Progress::lane_slot(lane))];
        if (entry.activity == control::Activity::idle) continue;
        const auto& instruction = worker.programs().step.instructions[static_cast<size_t>(entry.instruction)];
        EXPECT_EQ(instruction.lane, lane);
        EXPECT_EQ(instruction.deadline, program::DeadlineClass::communication);
      }
    }
    trainer.run();
  });
}

/// Of servers that do not wait for all workers the first has answered, and the second does not yet: the step
/// has begun, and its host waits in the middle of it.
TEST_P(GpuProgress, AWorkerThatWaitsForAServerInItsStepSaysSoAndNothingElse) {
  config::RunConfig config = config_of({"parallel.reduction=FAST"});
  config.parallel.layout = layout::parse_layout("dp=1,sync=ps,servers=2,mode=async");
  std::vector<control::Progress> progress(3);
  run_ranks(3, [&](int rank, comm::Communicator& world) {
    control::Progress& own = progress[static_cast<size_t>(rank)];
    Worker worker(config,
                  {.rank = rank, .world_size = 3, .device = device::DeviceKind::cuda, .progress = &own});
    worker.connect(world);
    Trainer trainer(worker, world, {}, {.stop_requested = {}, .progress = &own});
    trainer.prepare();
    const auto from_second = [&](const program::Instruction& i) {
      return i.kind == program::InstructionKind::pull && i.operands.at(0).peer == 2;
    };
    if (rank == 2) {
      const Deadline deadline = deadline_in(std::chrono::seconds(60));
      std::vector<control::Progress::Entry> before, now;
      const auto waits_for_this = [&] {
        const auto& main = now[control::Progress::kMainSlot];
        const auto& program = worker.compiled().compile(0).step;
        return main.activity == control::Activity::waiting && main.program == kStepProgram &&
               from_second(program.instruction(main.instruction));
      };
      do {
        before = entries(progress[0]);
        std::this_thread::sleep_for(std::chrono::milliseconds(30));
        now = entries(progress[0]);
      } while (!(now == before && only_waits(now) && waits_for_this()) && Clock::now() < deadline);
      EXPECT_TRUE(now == before && only_waits(now) && waits_for_this());
    }
    trainer.run();
  });
}

TEST_P(GpuProgress, TheHostStaysNearItsDeviceHoweverLongTheProgram) {
  const auto most_queued = [](const char* batch) {
    size_t most = 0;
    run_ranks(1, [&](int, comm::Communicator& world) {
      control::Progress progress;
      Worker worker(config_of({batch}), {.device = device::DeviceKind::cuda, .progress = &progress});
      worker.connect(world);
      Trainer trainer(worker, world, {}, {.stop_requested = {}, .progress = &progress});
      trainer.prepare();
      trainer.run();
      most = dynamic_cast<device::EmulatedDevice&>(worker.device()).most_queued();
    });
    return most;
  };
  const size_t of_64 = most_queued("trainer.global_batch=64"),
               of_256 = most_queued("trainer.global_batch=256");
  EXPECT_LT(static_cast<double>(of_256), 1.1 * static_cast<double>(of_64)) << "four times as much work";
  EXPECT_LT(of_256, 1024u) << "what a GPU's driver takes";
}

INSTANTIATE_TEST_SUITE_P(Words, GpuProgress, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "WrittenByTheDevice" : "Refused"; });

// A rank sends its part of the last parameters only after the other one's step has returned.
TEST(GpuSteps, ReturnWhenTheirReportIsKnownAndGoOnInTheNextOne) {
  for (const bool writes_words : {true, false}) {
    device::set_emulated_options({.writes_words = writes_words});
    std::promise<void> returned;
    run_ranks(2, [&](int rank, comm::Communicator& world) {
      control::Progress progress;
      const auto is_last_gather = [](const program::Program& program, int instruction) {
        return program.name == "step" &&
               program.instruction(instruction).kind == program::InstructionKind::ring_all_gather &&
               instruction + 1 == static_cast<int>(program.instructions.size());
      };
      bool waited = false;
      Worker worker(config_of({"parallel.shard=OPTIMIZER", "parallel.reduction=FAST"}),
                    {.rank = rank,
                     .world_size = 2,
                     .device = device::DeviceKind::cuda,
                     .asynchronous = {},
                     .progress = &progress,
                     .before_instruction = [&](const Worker&, const program::Program& program, uint64_t step,
                                               int instruction) {
                       if (rank == 0 || step > 0 || !is_last_gather(program, instruction)) return;
                       waited = returned.get_future().wait_for(std::chrono::seconds(30)) ==
                                std::future_status::ready;
                     }});
      worker.connect(world);
      Trainer(worker, world, {}, {}).prepare();
      for (uint64_t step = 0; step < 3; ++step) {
        worker.run_step(
            {.constants = {.kernels = {.step = step}, .update = {.learning_rate = 0.5}}, .iteration = step});
        if (rank == 0 && step == 0) returned.set_value();
        EXPECT_GT(worker.verdict().gradient_norm, 0);
      }
      worker.finish_step();
      EXPECT_TRUE(waited || rank == 0) << "nobody waits for the gathering of parameters";
    });
  }
  device::set_emulated_options({});
}

}  // namespace
}  // namespace lockstep::train
