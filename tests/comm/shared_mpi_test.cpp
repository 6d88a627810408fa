// The shared-memory communicator over MPI's: ranks are processes that mpirun has started.

#include <gmock/gmock.h>

#include "comm/conformance.h"
#include "comm/mpi_main.h"
#include "comm/shared_support.h"

namespace lockstep::comm {
namespace {

class SharedOverMpi : public testing::TestWithParam<ConformanceCheck> {};

TEST_P(SharedOverMpi, Conforms) {
  const auto group = test_environment().world();
  GetParam().run(*make_shared_memory_communicator(*group));
}

INSTANTIATE_TEST_SUITE_P(Checks, SharedOverMpi,
                         testing::ValuesIn(conformance_checks().begin(), conformance_checks().end()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(SharedOverMpi, LeavesNothingInDevShm) {
  const auto group = test_environment().world();
  const auto world = make_shared_memory_communicator(*group);
  HostStream stream;
  world->barrier(stream);  // rank 0 takes the name away before it comes here
  world->synchronize(stream, patience());
  EXPECT_THAT(left_in_dev_shm(), testing::IsEmpty());
}

TEST(SharedOverMpi, TellsAllRanksThatThereIsTooLittleSharedMemory) {
  const auto group = test_environment().world();
  if (group->size() == 1) return;  // needs none
  EXPECT_THAT(
      comm_error_of([&] { make_shared_memory_communicator(*group, {.chunk_bytes = int64_t{1} << 57}); }),
      testing::HasSubstr("--shm-size"));
}

}  // namespace
}  // namespace lockstep::comm
