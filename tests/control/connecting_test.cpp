#include <gmock/gmock.h>

#include "control/control_job.h"
#include "control/control_plane.h"
#include "control/endpoint.h"
#include "mentions.h"

namespace lockstep::control {
namespace {

using std::chrono::milliseconds;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(ControlPlane, RanksThatConnectLateAreAwaited) {
  Job job(4);
  job.customize = [](int rank, ControlPlaneOptions& options) {
    options.before_connect = [rank](const std::string& addresses) {
      EXPECT_THAT(addresses, testing::MatchesRegex("127.0.0.1:[0-9]+"));
      std::this_thread::sleep_for(milliseconds(rank * 37 % 100));
    };
  };
  std::atomic<int> done = 0;
  Gate all;
  job.run([&](int, ControlPlane& plane) {
    if (++done == 4) all.open();
    EXPECT_TRUE(all.wait());
    plane.leave();
  });
  EXPECT_EQ(done, 4);
}

TEST(ControlPlane, WhereARankCannotConnectAllThrowTheSame) {
  Job job(3);
  job.timings.connect = milliseconds(200);
  job.customize = [](int rank, ControlPlaneOptions& options) {
    if (rank == 2) options.before_connect = [](const std::string&) { throw CommError("no way out"); };
  };
  job.run([&](int, ControlPlane&) { ADD_FAILURE() << "started"; });
  const std::string message = job.end(0).text();
  EXPECT_THAT(message, StartsWith("the ranks cannot be connected: rank 0 on host a listened at 127.0.0.1:"));
  EXPECT_THAT(message, Mentions("rank 2 ... rank 2"));
  EXPECT_THAT(message, Mentions("LOCKSTEP_CONTROL_INTERFACE ... lo 127.0.0.1"));
  EXPECT_EQ(job.end(1).text(), message);
  EXPECT_EQ(job.end(2).text(), message);
  for (auto& end : job.ends) EXPECT_EQ(end->thrown, 69);
}

TEST(ControlPlane, APortThatIsTakenIsNamedOnAllRanks) {
  std::string error;
  HostAddress loopback{.interface = "lo", .loopback = true};
  loopback.bytes = {127, 0, 0, 1};
  const auto taken = listen_at(loopback, 0, error);
  ASSERT_TRUE(taken) << error;
  Job job(3);
  job.customize = [&](int, ControlPlaneOptions& options) { options.port = taken->endpoint.port; };
  job.run([&](int, ControlPlane&) { ADD_FAILURE() << "started"; });
  for (auto& end : job.ends) {
    EXPECT_EQ(end->text(), job.end(0).text());
    EXPECT_EQ(end->thrown, 2);
  }
  EXPECT_THAT(job.end(0).text(),
              StartsWith("the ranks cannot be connected: host a cannot listen on any of its "
                         "addresses (127.0.0.1:"));
}

TEST(ControlPlane, AnInterfaceThatIsNotThereIsNamedOnAllRanks) {
  Job job(2);
  job.customize = [](int, ControlPlaneOptions& options) { options.interface = "ib77"; };
  job.run([&](int, ControlPlane&) { ADD_FAILURE() << "started"; });
  for (const int rank : {0, 1}) {
    EXPECT_THAT(
        job.end(rank).text(),
        StartsWith(
            "the ranks cannot be connected: host a has no interface or address 'ib77' (it has lo 127.0.0.1"));
    EXPECT_THAT(job.end(rank).text(), EndsWith("set LOCKSTEP_CONTROL_INTERFACE to one of these"));
    EXPECT_EQ(job.end(rank).text(), job.end(0).text());
    EXPECT_EQ(job.end(rank).thrown, 2);
  }
}

}  // namespace
}  // namespace lockstep::control
