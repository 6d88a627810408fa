#include "cli/stop_request.h"

#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>

namespace lockstep {
namespace {

// Each in a process of its own: signal handlers and what they remember belong to the process.
[[noreturn]] void exit_code_after(int signal, bool alone) {
  install_stop_request(alone);
  if (stop_requested()) std::_Exit(99);
  std::raise(signal);
  std::_Exit(stop_requested() ? static_cast<int>(stop_exit_code()) : 98);
}

TEST(StopRequestDeathTest, EachSignalHasItsExitCode) {
  EXPECT_EXIT(exit_code_after(SIGUSR1, false), testing::ExitedWithCode(143), "");
  EXPECT_EXIT(exit_code_after(SIGUSR1, true), testing::ExitedWithCode(143), "");
  EXPECT_EXIT(exit_code_after(SIGTERM, true), testing::ExitedWithCode(143), "");
  EXPECT_EXIT(exit_code_after(SIGINT, true), testing::ExitedWithCode(130), "");
}

TEST(StopRequestDeathTest, RanksOfAJobLeaveTheLaunchersSignalsAlone) {
  EXPECT_EXIT(exit_code_after(SIGTERM, false), testing::KilledBySignal(SIGTERM), "");
  EXPECT_EXIT(exit_code_after(SIGINT, false), testing::KilledBySignal(SIGINT), "");
}

TEST(StopRequestDeathTest, ASecondSignalEndsTheProcess) {
  EXPECT_EXIT(
      {
        install_stop_request(true);
        std::raise(SIGINT);
        std::raise(SIGINT);
        std::_Exit(0);
      },
      testing::KilledBySignal(SIGINT), "");
}

}  // namespace
}  // namespace lockstep
