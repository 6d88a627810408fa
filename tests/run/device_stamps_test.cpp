#include "run/device_stamps.h"

#include <gtest/gtest.h>

#include <thread>

namespace lockstep::run {
namespace {

/// Two instructions on a lane: one that runs kernels of two nodes, and a norm.
struct Recorded {
  std::unique_ptr<device::Device> device = device::make_async_cpu_device({});
  std::unique_ptr<device::Stream> stream = device->create_stream("lane");
  program::Program program;
  std::vector<Action> actions{2};

  Recorded() {
    program.add_lane("lane", program::LaneKind::compute);
    program.instructions.resize(2);
    program.instructions[0].kind = program::InstructionKind::forward;
    program.instructions[1].kind = program::InstructionKind::norm;
    actions[0].parts = {{.node = 3, .phase = ops::KernelPhase::forward},
                        {.node = 1, .phase = ops::KernelPhase::backward_weight}};
  }

  /// As an executor whose lanes are threads.
  void run(DeviceStamps& stamps, uint64_t iteration) {
    const auto place = static_cast<int>(iteration % 2);
    stamps.begin_iteration(place, {.iteration = iteration});
    for (const int instruction : {0, 1}) {
      stamps.before(place, instruction, *stream);
      stream->launch([&stamps, place, instruction] {
        for (size_t part = 0; part < 2; ++part) {
          const auto begin = Clock::now();
          std::this_thread::sleep_for(std::chrono::microseconds(200));
          if (instruction == 0) stamps.part_took(place, 0, part, begin, Clock::now());
        }
      });
      stamps.after(place, instruction, *stream);
    }
    stream->synchronize();
    stamps.collect(place);
  }
};

// Streams of the asynchronous CPU device work by themselves, and have a clock that only events tell.
TEST(DeviceStamps, LieBetweenTheHostsStampsAroundThem) {
  Recorded recorded;
  StampRecorder recorder;
  recorder.open(7, 2, 100);
  DeviceStamps stamps(*recorded.device, recorded.program, recorded.actions,
                      {.recorder = &recorder, .nodes = 4});
  const auto before = Clock::now();
  for (const uint64_t iteration : {6, 7, 8, 9}) recorded.run(stamps, iteration);
  stamps.settle();
  const auto after = Clock::now();
  const auto taken = recorder.stamps();
  ASSERT_EQ(taken.size(), 8U) << "two instructions and two kernels of the iterations 7 and 8";
  const auto error = std::chrono::duration<double, std::milli>(recorder.device_error_ms());
  for (const Stamp& stamp : taken) {
    EXPECT_GE(stamp.begin + error, before);
    EXPECT_LE(stamp.begin, stamp.end);
    EXPECT_LE(stamp.end - error, after);
  }
  EXPECT_LE(taken[0].end, taken[3].begin);
  EXPECT_LE(taken[3].end, taken[4].begin);
  EXPECT_GT(recorder.device_error_ms(), 0);
  // Kernels follow their instruction, and lie within it.
  for (const size_t kernel : {1, 2}) {
    EXPECT_EQ(taken[kernel].kind, StampKind::kernel);
    EXPECT_EQ(taken[kernel].instruction, 0);
    EXPECT_EQ(taken[kernel].node, kernel == 1 ? 3 : 1);
    EXPECT_GE(taken[kernel].begin + 2 * error, taken[0].begin);
    EXPECT_LE(taken[kernel].end - 2 * error, taken[0].end);
  }
  EXPECT_EQ(taken[2].phase, ops::KernelPhase::backward_weight);
}

TEST(DeviceStamps, SampleAnIterationBehindThoseThatWarmUpAndEveryFiftiethAfterIt) {
  Recorded recorded;
  DeviceStamps stamps(*recorded.device, recorded.program, recorded.actions, {.samples = true, .nodes = 4});
  for (uint64_t iteration = 100; iteration < 157; ++iteration) {
    recorded.run(stamps, iteration);
    EXPECT_EQ(stamps.sampled().iterations, iteration < 105 ? 0 : iteration < 155 ? 1 : 2) << iteration;
  }
  stamps.settle();
  const SampledTimes& sampled = stamps.sampled();
  for (const size_t node : {1, 3}) EXPECT_GE(sampled.nodes_ms[node], 2 * 0.2);
  for (const size_t node : {0, 2}) EXPECT_EQ(sampled.nodes_ms[node], 0);
  EXPECT_GE(sampled.kinds_ms[static_cast<size_t>(program::InstructionKind::norm)], 2 * 2 * 0.2);
  EXPECT_EQ(sampled.kinds_ms[static_cast<size_t>(program::InstructionKind::forward)], 0)
      << "its kernels count, by node";
}

}  // namespace
}  // namespace lockstep::run
