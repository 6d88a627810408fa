// The communicator for GPUs with processes as ranks: NCCL's, or the emulated GPU's over MPI.

#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <string>

#include "comm/conformance.h"
#include "comm/conformance_support.h"
#include "comm/device_twin.h"
#include "comm/mpi_main.h"
#include "comm/stream_checks.h"

namespace lockstep::comm {
namespace {

/// Before NCCL starts. Where the host has fewer GPUs than ranks, they share.
class Gpus : public testing::Environment {
 public:
  void SetUp() override {
    const auto probe = device::probe_gpus();
    problem = probe.problem;
    const auto world = test_environment().world();
    const auto count = static_cast<int>(probe.devices.size());
    ordinal = count == 0 ? 0 : world->rank() % count;
    ::setenv("NCCL_SOCKET_IFNAME", "lo", 0);
  }

  static inline std::string problem;  // where there is no GPU
  static inline int ordinal = 0;
};
[[maybe_unused]] const auto* const environment = testing::AddGlobalTestEnvironment(new Gpus);

#define SKIP_WITHOUT_GPU() \
  if (!Gpus::problem.empty()) GTEST_SKIP() << Gpus::problem << ": ONLY_SKIPPED_TESTS"

/// NCCL cannot tell what the other side expects: the interface asks only that nobody waits for ever.
void sizes_that_differ_end_in_time(Communicator& world) {
  const auto control = world.split(0, world.rank());
  HostStream stream;
  for (const int64_t expected : {12, 20}) {
    const auto pair = world.split(world.rank() < 2 ? 0 : -1, world.rank());
    if (pair != nullptr && pair->size() == 2) {
      auto* data = immortal<std::byte>(64);
      try {
        const auto transfer = pair->rank() == 0 ? send_to(1, data, 16) : receive_from(0, data, expected);
        pair->exchange(std::array{transfer}, stream);
        pair->synchronize(stream, deadline_in(std::chrono::seconds(3)));
      } catch (const CommError&) {
      }
    }
    control->barrier(stream);
    control->synchronize(stream, patience());
  }
}

class Gpu : public testing::TestWithParam<ConformanceCheck> {};

TEST_P(Gpu, Conforms) {
  SKIP_WITHOUT_GPU();
  const auto twin = std::make_shared<TwinDevice>(device::make_cuda_device(Gpus::ordinal));
  DeviceTwin world(make_gpu_communicator(*test_environment().world(), *twin->device), twin);
  if (world.backend() == "nccl" && GetParam().name == "SizesThatDifferAreAnError")
    sizes_that_differ_end_in_time(world);
  else
    GetParam().run(world);
}

class GpuStreams : public testing::TestWithParam<StreamCheck> {};

TEST_P(GpuStreams, Conform) {
  SKIP_WITHOUT_GPU();
  const auto device = device::make_cuda_device(Gpus::ordinal);
  const auto world = make_gpu_communicator(*test_environment().world(), *device);
  GetParam().run(*world, *device);
}

// By messages of the host's.

class Staged : public testing::TestWithParam<ConformanceCheck> {};

TEST_P(Staged, Conforms) {
  SKIP_WITHOUT_GPU();
  const auto twin = std::make_shared<TwinDevice>(device::make_cuda_device(Gpus::ordinal));
  DeviceTwin world(make_staged_communicator(test_environment().world(), *twin->device), twin);
  GetParam().run(world);
}

class StagedStreams : public testing::TestWithParam<StreamCheck> {};

TEST_P(StagedStreams, Conform) {
  SKIP_WITHOUT_GPU();
  const auto device = device::make_cuda_device(Gpus::ordinal);
  const auto world = make_staged_communicator(test_environment().world(), *device);
  GetParam().run(*world, *device);
}

constexpr auto name_of_check = [](const auto& info) { return std::string(info.param.name); };
INSTANTIATE_TEST_SUITE_P(Checks, Staged,
                         testing::ValuesIn(conformance_checks().begin(), conformance_checks().end()),
                         name_of_check);
INSTANTIATE_TEST_SUITE_P(Checks, StagedStreams,
                         testing::ValuesIn(stream_checks().begin(), stream_checks().end()), name_of_check);
INSTANTIATE_TEST_SUITE_P(Checks, Gpu,
                         testing::ValuesIn(conformance_checks().begin(), conformance_checks().end()),
                         name_of_check);
INSTANTIATE_TEST_SUITE_P(Checks, GpuStreams,
                         testing::ValuesIn(stream_checks().begin(), stream_checks().end()), name_of_check);

}  // namespace
}  // namespace lockstep::comm
