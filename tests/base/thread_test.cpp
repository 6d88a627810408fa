#include "base/thread.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

sigset_t mask() {
  sigset_t current;
  pthread_sigmask(SIG_SETMASK, nullptr, &current);
  return current;
}
bool blocks(const sigset_t& mask, int signal) { return sigismember(&mask, signal) == 1; }

TEST(Thread, WithoutSignalsLeavesItsStartersSignalsAsTheyAre) {
  sigset_t before = mask(), inside{};
  ASSERT_FALSE(blocks(before, SIGTERM));
  start_thread_without_signals("a name", [&] { inside = mask(); }).join();
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1, SIGPIPE, SIGCHLD}) {
    EXPECT_TRUE(blocks(inside, signal)) << signal;
    EXPECT_EQ(blocks(mask(), signal), blocks(before, signal)) << signal;
  }
}

}  // namespace
}  // namespace lockstep
