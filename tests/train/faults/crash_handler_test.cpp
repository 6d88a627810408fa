#include "train/faults/crash_handler.h"

#include <gtest/gtest.h>

#include <csignal>

namespace lockstep::train {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

[[gnu::noinline]] int overflow_the_stack(int depth) {
  if (depth < 0) return 0;
  volatile char block[4096];
  block[0] = static_cast<char>(depth);
  return overflow_the_stack(depth + 1) + block[0];
}

TEST(CrashHandlerDeathTest, NamesRankAndSignalAndLeavesByTheSignal) {
  if (kSanitized) GTEST_SKIP() << "sanitizers report crashes themselves";
  EXPECT_EXIT(
      {
        install_crash_handler();
        set_crash_rank(13);
        std::raise(SIGSEGV);
      },
      testing::KilledBySignal(SIGSEGV),
      "lockstep: error: rank 13 \\(pid [0-9]+\\) crashed by SIGSEGV .*it was at:\n.*train_test");
  EXPECT_EXIT(
      {
        install_crash_handler();
        std::abort();
      },
      testing::KilledBySignal(SIGABRT), "rank 0 \\(pid [0-9]+\\) crashed by SIGABRT");
}

TEST(CrashHandlerDeathTest, SpeaksUpWhenTheStackIsFull) {
  if (kSanitized) GTEST_SKIP() << "sanitizers report crashes themselves";
  EXPECT_EXIT(
      {
        install_crash_handler();
        std::exit(overflow_the_stack(0));
      },
      testing::KilledBySignal(SIGSEGV), "crashed by SIGSEGV");
}

}  // namespace
}  // namespace lockstep::train
