// The shared-memory communicator with processes as ranks: one that is killed, and what it leaves behind. Made
// by fork rather than by mpirun, which would end the job.

#include <gmock/gmock.h>
#include <signal.h>
#include <sys/wait.h>

#include "comm/shared_support.h"
#include "mentions.h"

namespace lockstep::comm {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

float sum_of_ones(Communicator& world, std::vector<float>& values, Deadline deadline) {
  HostStream stream;
  std::fill(values.begin(), values.end(), 1.0f);
  world.all_reduce(values.data(), static_cast<int64_t>(values.size()), DType::float32, ReduceOp::sum, stream);
  world.synchronize(stream, deadline);
  return values.back();
}

/// Communicators of two ranks, of which a forked process takes the second.
class SharedProcesses : public testing::Test {
 protected:
  SharedProcesses() {
    run_group(2, [&](Communicator& group) { ranks_[group.rank()] = make_shared_memory_communicator(group); });
  }

  template <class Body>
  pid_t fork_rank_1(const Body& body) {
    const pid_t child = fork();
    if (child == 0) {
      int result = 1;
      try {
        result = body(*ranks_[1]);
      } catch (const std::exception&) {
      }
      _exit(result);
    }
    return child;
  }

  static int status_of(pid_t child) {
    int status = -1;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    return status;
  }

  std::unique_ptr<Communicator> ranks_[2];
};

TEST_F(SharedProcesses, SumAcrossProcesses) {
  std::vector<float> values(300'000);
  const pid_t child = fork_rank_1([&](Communicator& world) {
    for (int i = 0; i < 5; ++i)
      if (sum_of_ones(world, values, patience()) != 2.0f) return 2;
    return 0;
  });
  for (int i = 0; i < 5; ++i) EXPECT_EQ(sum_of_ones(*ranks_[0], values, patience()), 2.0f);
  EXPECT_EQ(status_of(child), 0);
}

TEST_F(SharedProcesses, AKilledRankIsNoticedAtTheDeadlineAndLeavesNothing) {
  std::vector<float> values(300'000);
  const pid_t child = fork_rank_1([&](Communicator& world) {
    for (;;) sum_of_ones(world, values, patience());
    return 0;
  });
  for (int i = 0; i < 3; ++i) EXPECT_EQ(sum_of_ones(*ranks_[0], values, patience()), 2.0f);
  ASSERT_EQ(kill(child, SIGKILL), 0);  // in the middle of the next all_reduce, most likely
  EXPECT_TRUE(WIFSIGNALED(status_of(child)));
  try {
    for (int i = 0; i < 2; ++i) sum_of_ones(*ranks_[0], values, soon());
    ADD_FAILURE() << "summed with a dead process";
  } catch (const CommError& error) {
    EXPECT_EQ(error.code(), ExitCode::hang);
    EXPECT_THAT(error.what(),
                AllOf(Mentions("all_reduce ... 300000 float32 ... 0.3"), HasSubstr("waiting for rank 1")));
  }
  EXPECT_THAT(left_in_dev_shm(), IsEmpty());
}

TEST_F(SharedProcesses, AnAbortReachesTheOtherProcess) {
  std::vector<float> values(1);
  const pid_t child = fork_rank_1([&](Communicator& world) {
    world.abort("the other process said so");
    return 0;
  });
  EXPECT_THAT(comm_error_of([&] { sum_of_ones(*ranks_[0], values, patience()); }),
              HasSubstr("the other process said so"));
  EXPECT_EQ(status_of(child), 0);
}

}  // namespace
}  // namespace lockstep::comm
