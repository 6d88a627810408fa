#include "jobs/job_places.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "lockstep/error.h"

namespace lockstep::jobs {
namespace {

namespace fs = std::filesystem;

bool are_there(pid_t owner) {
  return fs::exists("/run/netns/lockstep-compare" + std::to_string(owner) + "-a") ||
         fs::exists("/run/netns/lockstep-compare" + std::to_string(owner) + "-b");
}

TEST(StandInHosts, OfAProgramThatWasKilledGoWhenTheNextAreMade) {
  const pid_t killed = ::fork();
  if (killed == 0) {
    try {
      const StandInHosts hosts;
      ::_exit(0);  // without removing them
    } catch (const DeviceError&) {
      ::_exit(77);
    }
  }
  int status = 0;
  ASSERT_EQ(::waitpid(killed, &status, 0), killed);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77) GTEST_SKIP() << "there can be no hosts in namespaces";
  ASSERT_TRUE(are_there(killed));
  {
    const StandInHosts others;
    EXPECT_FALSE(are_there(killed));
    EXPECT_TRUE(are_there(::getpid()));
    // Those of a program that runs stay.
    const pid_t beside = ::fork();
    if (beside == 0) {
      { const StandInHosts hosts; }
      ::_exit(are_there(::getppid()) ? 0 : 1);
    }
    ASSERT_EQ(::waitpid(beside, &status, 0), beside);
    EXPECT_EQ(status, 0);
  }
  EXPECT_FALSE(are_there(::getpid()));
}

}  // namespace
}  // namespace lockstep::jobs
