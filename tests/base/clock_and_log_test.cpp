#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/log.h"

namespace lockstep {
namespace {

TEST(Clock, MillisecondsBetween) {
  const Clock::time_point start{};
  EXPECT_EQ(milliseconds_between(start, start + std::chrono::microseconds(1500)), 1.5);
  EXPECT_EQ(milliseconds_between(start + std::chrono::seconds(2), start), -2000.0);
}

/// What `action` writes to stderr.
template <class Action>
std::string stderr_of(Action action) {
  testing::internal::CaptureStderr();
  action();
  return testing::internal::GetCapturedStderr();
}

class Log : public testing::Test {
 protected:
  void TearDown() override {
    set_log_level(LogLevel::info);
    set_log_rank(0, 1);
    set_before_log(nullptr);
  }
};

TEST_F(Log, WritesOneLineToStderr) {
  EXPECT_EQ(stderr_of([] { log_info("started"); }), "started\n");
  EXPECT_EQ(stderr_of([] { log_warning("slow disk"); }), "warning: slow disk\n");
  EXPECT_EQ(stderr_of([] { log_error("no disk"); }), "error: no disk\n");
}

TEST_F(Log, LeavesOutWhatIsBelowTheLevel) {
  EXPECT_EQ(stderr_of([] { log_debug("detail"); }), "");
  set_log_level(LogLevel::error);
  EXPECT_EQ(stderr_of([] { log_warning("slow disk"); }), "");
  EXPECT_EQ(stderr_of([] { log_error("no disk"); }), "error: no disk\n");
}

TEST_F(Log, NamesTheRankWhereThereAreSeveral) {
  set_log_rank(3, 4);
  EXPECT_EQ(stderr_of([] { log_info("started"); }), "[rank 3] started\n");
  set_log_rank(0, 1);
  EXPECT_EQ(stderr_of([] { log_info("started"); }), "started\n");
}

TEST_F(Log, CallsTheHookBeforeEachLineThatIsWritten) {
  int calls = 0;
  set_before_log([&] { ++calls; });
  stderr_of([] {
    log_info("one");
    log_debug("left out");
    log_error("two");
  });
  EXPECT_EQ(calls, 2);
  set_before_log(nullptr);
  stderr_of([] { log_info("three"); });
  EXPECT_EQ(calls, 2);
}

TEST_F(Log, KeepsLinesOfThreadsWhole) {
  const std::string text = stderr_of([] {
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t)
      threads.emplace_back([] {
        for (int i = 0; i < 50; ++i) log_info("0123456789");
      });
    for (auto& thread : threads) thread.join();
  });
  std::string expected;
  for (int i = 0; i < 200; ++i) expected += "0123456789\n";
  EXPECT_EQ(text, expected);
}

}  // namespace
}  // namespace lockstep
