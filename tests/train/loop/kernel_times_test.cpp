// Times of kernels where lanes are streams: on the asynchronous CPU device, and on the emulated GPU.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "run/stamp_recorder.h"
#include "train/loop/time_account.h"
#include "train/thread_ranks.h"

namespace lockstep::train {
namespace {

using testing::Contains;
using testing::Key;

constexpr const char* kKernelTimesConfig = R"(
format_version: 1
model { mlp { image: 6 image: 6 image: 1 hidden: 17 hidden: 13 classes: 5 } }
data { synthetic { samples: 40 classes: 5 shape: 6 shape: 6 shape: 1 } }
trainer { steps: 8 global_batch: 8 micro_batch: 4 seed: 7 clip_norm: 0.5 }
optimizer { learning_rate: 0.01 adamw {} }
precision { compute: BFLOAT16 }
)";

enum class Streams { threads, gpu };

class KernelTimes : public ::testing::TestWithParam<Streams> {
 protected:
  /// Trains alone; `look` sees the worker and an account of its time at the end.
  void train(run::StampRecorder* recorder,
             const std::function<void(Worker& worker, const TimeAccount& account)>& look) const {
    run_ranks(1, [&](int, comm::Communicator& world) {
      WorkerOptions options{.rank = 0, .world_size = 1, .asynchronous = {}, .recorder = recorder};
      if (GetParam() == Streams::gpu)
        options.device = device::DeviceKind::cuda;
      else
        options.asynchronous = device::AsyncCpuOptions{.jitter_seed = 3, .max_jitter_us = 50};
      observe::PhaseClock phases(Clock::now());
      Worker worker(config::parse_run_config(kKernelTimesConfig, "test", {}), options);
      worker.connect(world);
      TimeAccount account(worker, phases);
      TrainerEvents events;
      events.on_step = [&](const StepRecord& record) { account.add(record); };
      Trainer trainer(worker, world, events,
                      {.output_directory = "", .stop_requested = {}, .phases = &phases});
      trainer.prepare();
      trainer.run();
      worker.finish_step();
      look(worker, account);
    });
  }

  void SetUp() override {
    if (GetParam() == Streams::gpu && device::probe_gpus().devices.empty())
      GTEST_SKIP() << "there is no GPU: ONLY_SKIPPED_TESTS";
  }
};

TEST_P(KernelTimes, OfASampledStepAreInTheExplanation) {
  train(nullptr, [](Worker& worker, const TimeAccount& account) {
    ASSERT_NE(worker.sampled_times(), nullptr);
    EXPECT_EQ(worker.sampled_times()->iterations, 1) << "the sixth of eight steps";
    const observe::Explanation explanation = account.so_far();
    const observe::RankExplanation& rank = explanation.ranks[0];
    const std::map<std::string, double> kinds(rank.computing_ms.begin(), rank.computing_ms.end());
    for (const char* kind : {"linear", "relu", "softmax_cross_entropy", "update", "norm"})
      EXPECT_THAT(kinds, Contains(Key(kind)));
    for (const auto& [kind, ms] : kinds) EXPECT_GT(ms, 0) << kind;
    EXPECT_FALSE(kinds.contains("load")) << "which is of no compute lane";
    EXPECT_NEAR(rank.explained(), 1, 1e-6);
    EXPECT_THAT(explanation.notes, Contains(testing::HasSubstr("1 of 8 steps")));
  });
}

TEST_P(KernelTimes, OfRecordedStepsLieWithinTheirInstructions) {
  run::StampRecorder recorder;
  recorder.open(2, 2, 10000);
  train(&recorder, [&](Worker& worker, const TimeAccount&) {
    const program::Program& program = worker.programs().step;
    std::map<std::pair<uint64_t, int>, run::Stamp> instructions;
    std::map<std::pair<uint64_t, int>, std::vector<run::Stamp>> kernels;
    for (const run::Stamp& stamp : recorder.stamps()) {
      const std::pair key{stamp.iteration, stamp.instruction};
      if (stamp.kind == run::StampKind::kernel)
        kernels[key].push_back(stamp);
      else
        instructions[key] = stamp;
    }
    const std::chrono::duration<double, std::milli> error(2 * recorder.device_error_ms() + 1e-3);
    for (const uint64_t iteration : {2, 3})
      for (int i = 0; i < static_cast<int>(program.instructions.size()); ++i) {
        const program::Instruction& instruction = program.instruction(i);
        const std::pair key{iteration, i};
        EXPECT_EQ(instructions.contains(key), !instruction.anew) << program::describe(program, i);
        const bool runs_segment = instruction.kind == program::InstructionKind::forward ||
                                  instruction.kind == program::InstructionKind::backward;
        EXPECT_EQ(kernels.contains(key), runs_segment) << program::describe(program, i);
        auto end = instructions[key].begin;
        for (const run::Stamp& kernel : kernels[key]) {
          EXPECT_GE(kernel.begin + error, end) << "one after the other";
          EXPECT_LE(kernel.begin, kernel.end);
          end = kernel.end;
          EXPECT_GE(kernel.node, 0);
        }
        EXPECT_LE(end - error, instructions[key].end);
      }
    // A recorded step tells as much as a sampled one.
    EXPECT_EQ(worker.sampled_times()->iterations, 3);
  });
}

INSTANTIATE_TEST_SUITE_P(Streams, KernelTimes, ::testing::Values(Streams::threads, Streams::gpu),
                         [](const auto& info) { return info.param == Streams::gpu ? "Gpu" : "Threads"; });

}  // namespace
}  // namespace lockstep::train
