#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <thread>

#include "base/host_name.h"
#include "comm/conformance_support.h"
#include "comm/mpi_main.h"
#include "control/control_plane.h"
#include "control/meeting_of.h"

namespace lockstep::control {
namespace {

struct Watched {
  Watched() : world(comm::test_environment().world()) {
    plane = start_control_plane(meeting_of(*world), {.host = host_name(),
                                                     .interface = "",
                                                     .termination_requested = {},
                                                     .end_process = [this](int code) { ended = code; },
                                                     .print = [](std::string_view) {}});
  }
  void meet() {
    comm::HostStream stream;
    world->barrier(stream);
    world->synchronize(stream, comm::patience());
  }
  std::unique_ptr<comm::Communicator> world;
  std::atomic<int> ended{-1};
  std::unique_ptr<ControlPlane> plane;
};

TEST(ControlPlaneOverMpi, ConnectsAllRanksAndLetsThemLeave) {
  for (int round = 0; round < 3; ++round) {
    Watched watched;
    const int rank = watched.world->rank(), size = watched.world->size();
    Mailbox& mailbox = watched.plane->mailbox();
    mailbox.send(0, "name", "rank " + std::to_string(rank));
    if (rank == 0) {
      std::vector<int> from;
      for (int i = 0; i < size; ++i) {
        const auto message = mailbox.receive("name", comm::patience());
        ASSERT_TRUE(message);
        EXPECT_EQ(message->text, "rank " + std::to_string(message->from));
        from.push_back(message->from);
      }
      std::sort(from.begin(), from.end());
      for (int i = 0; i < size; ++i) EXPECT_EQ(from[static_cast<size_t>(i)], i);
      for (int to = 0; to < size; ++to) mailbox.send(to, "go", "");
    }
    EXPECT_TRUE(mailbox.receive("go", comm::patience()));
    watched.meet();
    watched.plane->leave();
    watched.plane.reset();
    EXPECT_EQ(watched.ended, -1);
    watched.meet();
  }
}

TEST(ControlPlaneOverMpi, AFailureReachesAllRanks) {
  Watched watched;
  const int last = watched.world->size() - 1;
  if (watched.world->rank() == last) {
    watched.plane->abort(ExitCode::data, "a shard is damaged");
    EXPECT_EQ(watched.ended, -1);
  } else {
    const Deadline deadline = comm::patience();
    while (watched.ended == -1 && Clock::now() < deadline) std::this_thread::yield();
    EXPECT_EQ(watched.ended, 65);
  }
  watched.meet();
}

}  // namespace
}  // namespace lockstep::control
