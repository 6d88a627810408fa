#include "observe/progress.h"

#include <gtest/gtest.h>

#include <map>

#include "lockstep/error.h"

namespace lockstep::observe {
namespace {

using std::chrono::milliseconds;

/// A screen that records what is written, and a clock that moves when told.
class Progress : public ::testing::Test {
 protected:
  ProgressOutput terminal() {
    auto output = plain();
    output.is_terminal = true;
    return output;
  }
  ProgressOutput relayed() {
    auto output = terminal();
    output.relayed = true;
    return output;
  }
  ProgressOutput plain() {
    return {false,
            false,
            false,
            false,
            [this] { return columns_; },
            [this](std::string_view text) { written_ += text; },
            [this] { return now_; }};
  }
  std::string written() { return std::exchange(written_, ""); }
  void pass(int64_t time_ms) { now_ += milliseconds(time_ms); }

  Clock::time_point now_{};
  int columns_ = 80;  // one stays free
  std::string written_;
};

TEST_F(Progress, IsRedrawnInPlaceTenTimesASecondAtMost) {
  ProgressLine line({.total = 100}, terminal());
  EXPECT_EQ(written(), "");
  line.update(0);
  EXPECT_EQ(written(), "\rtrain:   0%|" + std::string(40, ' ') + "| 0/100 [00:00<?, ?]\x1b[K");
  pass(99);
  EXPECT_FALSE(line.due());
  line.update(9);
  EXPECT_EQ(written(), "");
  pass(1);
  EXPECT_TRUE(line.due());
  line.update(10);  // 10 in 0.1 s: the other 90 in 0.9 s
  EXPECT_EQ(written(),
            "\rtrain:  10%|###" + std::string(30, ' ') + "| 10/100 [00:00<00:00, 100 step/s]\x1b[K");
  for (int i = 0; i < 1000; ++i) line.update(10);
  EXPECT_EQ(written(), "");
}

TEST_F(Progress, EndsWithTheLastStateAndTheMeanRate) {
  columns_ = 120;
  ProgressLine line({.total = 40}, terminal());
  line.update(0);
  pass(10'000);
  line.update(10);
  pass(10);
  written();
  line.update(40, "loss 0.5");
  EXPECT_EQ(written(), "");
  pass(9'990);
  line.finish();
  EXPECT_EQ(written(),
            "\rtrain: 100%|" + std::string(40, '#') + "| 40/40 [00:20<00:00, 2.00 step/s] loss 0.5\x1b[K\n");
  line.finish();
  line.clear();
  line.update(40);
  EXPECT_EQ(written(), "");
}

TEST_F(Progress, IsErasedBeforeOtherMessagesAndComesBack) {
  ProgressLine line({.total = 100}, terminal());
  line.clear();
  EXPECT_EQ(written(), "") << "nothing was there";
  line.update(0);
  written();
  line.clear();
  EXPECT_EQ(written(), "\r\x1b[K");
  line.clear();
  EXPECT_EQ(written(), "");
  pass(100);
  line.update(1);
  EXPECT_EQ(written().substr(0, 12), "\rtrain:   1%");
}

TEST_F(Progress, LeavesACleanLineWhenItIsNotFinished) {
  {
    ProgressLine line({.total = 100}, terminal());
    line.update(0);
    written();
  }
  EXPECT_EQ(written(), "\n");
  {
    ProgressLine line({.total = 100}, terminal());
    line.update(0);
    line.clear();
    written();
  }
  EXPECT_EQ(written(), "");
}

TEST_F(Progress, SendsDrawingsToALauncherWithATerminal) {
  {
    ProgressLine line({.total = 100}, relayed());
    line.update(0);
    const std::string first = "train:   0%|" + std::string(40, ' ') + "| 0/100 [00:00<?, ?]";
    EXPECT_EQ(written(), "\r\x1b[K" + first + "\x1b[K");
    line.clear();
    EXPECT_EQ(written(), "\r\x1b[K\x1b[K");
    pass(100);
    line.update(0);
    EXPECT_EQ(written().substr(0, 15), "\r\x1b[Ktrain:   0%");
  }
  EXPECT_EQ(written(), "\r\x1b[K\x1b[Ktrain:   0%|" + std::string(40, ' ') + "| 0/100 [00:00<?, ?]\n");

  ProgressLine line({.total = 100}, relayed());
  pass(100);
  line.update(100);
  written();
  line.finish();
  const std::string drawn = "train: 100%|" + std::string(30, '#') + "| 100/100 [00:00<00:00, 1.00k step/s]";
  EXPECT_EQ(written(), "\r\x1b[K" + drawn + "\x1b[K\r\x1b[K\x1b[K" + drawn + "\n");
}

TEST(RelayedTerminal, IsWhatTheLauncherSaysOfIt) {
  const auto all = relayed_terminal("120,color,unicode");
  EXPECT_TRUE(all.is_terminal && all.color && all.unicode);
  EXPECT_EQ(all.columns, 120);
  const auto plain = relayed_terminal("40");
  EXPECT_TRUE(plain.is_terminal && !plain.color && !plain.unicode);
  EXPECT_EQ(plain.columns, 40);
  EXPECT_TRUE(relayed_terminal("80,sixel,color").color);
  for (const char* text : {"", "0", "-1", "color", "80 columns", "99999999999"})
    EXPECT_FALSE(relayed_terminal(text).is_terminal) << text;
}

TEST_F(Progress, WritesPlainLinesEveryFiveSecondsWhereThereIsNoTerminal) {
  ProgressLine line({.description = "data", .unit = "file", .total = 4}, plain());
  line.update(0);
  pass(4999);
  line.update(1);
  EXPECT_EQ(written(), "");
  pass(1);
  line.update(1, "loss 2");
  EXPECT_EQ(written(), "data:  25% 1/4 [00:05<00:15, 5.00 s/file] loss 2\n");
  line.clear();
  pass(4999);
  line.update(3);
  EXPECT_EQ(written(), "");
  pass(1);
  line.update(4);
  EXPECT_EQ(written().substr(0, 26), "data: 100% 4/4 [00:10<00:0");
}

TEST_F(Progress, WritesTheLastPlainLineOnce) {
  ProgressLine quick({.total = 4}, plain());
  quick.update(4, "loss 1");
  pass(2000);
  quick.finish();
  EXPECT_EQ(written(), "train: 100% 4/4 [00:02<00:00, 2.00 step/s] loss 1\n");

  ProgressLine slow({.total = 4}, plain());
  pass(8000);
  slow.update(4);
  written();
  slow.finish();
  EXPECT_EQ(written(), "");
}

TEST_F(Progress, RatesForgetSlowBeginnings) {
  ProgressLine line({.total = 1'000'000}, plain());
  pass(64'000);
  line.update(8);
  EXPECT_EQ(written(), "train:   0% 8/1000000 [01:04<2222:12:16, 8.00 s/step]\n");
  for (int i = 1; i <= 60; ++i) {
    pass(5'000);
    line.update(8 + i * 500);  // then 100 a second for five minutes
  }
  const std::string text = written();
  EXPECT_EQ(text.substr(text.rfind(", ")), ", 100 step/s]\n");
}

TEST_F(Progress, ARateCountsOnlyWhatThisProcessDid) {
  ProgressLine line({.total = 200, .first = 100}, plain());
  pass(10'000);
  line.update(110);
  EXPECT_EQ(written(), "train:  55% 110/200 [00:10<01:30, 1.00 step/s]\n");
  pass(10'000);
  line.update(150);
  pass(5'000);
  written();
  line.update(200);
  written();
  line.update(200, "x");
  line.finish();
  EXPECT_EQ(written(), "train: 100% 200/200 [00:25<00:00, 4.00 step/s] x\n");
}

TEST_F(Progress, SaysNothingWhereItIsNotWanted) {
  {
    ProgressLine line({.total = 4, .enabled = false}, terminal());
    EXPECT_FALSE(line.due());
    line.update(1);
    line.clear();
    line.finish();
  }
  EXPECT_EQ(written(), "");
}

TEST_F(Progress, FollowsTheWindow) {
  ProgressLine line({.total = 4}, terminal());
  columns_ = 12;
  line.update(1);
  EXPECT_EQ(written(), "\rtrain:  25%\x1b[K");
  columns_ = 0;
  pass(100);
  line.update(1);
  EXPECT_EQ(written(), "\rt\x1b[K");
}

TEST_F(Progress, ATotalIsNeeded) { EXPECT_THROW(ProgressLine({.total = 0}, plain()), ConfigError); }

TEST(TerminalTraits, FollowTheEnvironment) {
  using Environment = std::map<std::string, std::string>;
  const auto traits = [](bool is_tty, Environment environment) {
    return terminal_traits(is_tty, [&](const char* name) { return environment[name]; });
  };
  EXPECT_TRUE(traits(true, {{"TERM", "xterm"}}).is_terminal);
  EXPECT_TRUE(traits(true, {{"TERM", "xterm"}}).color);
  EXPECT_FALSE(traits(true, {{"TERM", "xterm"}, {"NO_COLOR", "1"}}).color);
  EXPECT_TRUE(traits(true, {{"TERM", "xterm"}, {"NO_COLOR", "1"}}).is_terminal);
  EXPECT_FALSE(traits(true, {{"TERM", "dumb"}}).is_terminal);
  EXPECT_FALSE(traits(true, {}).is_terminal);
  EXPECT_FALSE(traits(false, {{"TERM", "xterm"}}).is_terminal);
  EXPECT_FALSE(traits(false, {{"TERM", "xterm"}}).color);
  EXPECT_TRUE(traits(true, {{"LANG", "en_US.UTF-8"}}).unicode);
  EXPECT_TRUE(traits(true, {{"LC_ALL", "C.utf8"}, {"LANG", "C"}}).unicode);
  EXPECT_FALSE(traits(true, {{"LC_ALL", "C"}, {"LANG", "en_US.UTF-8"}}).unicode);
  EXPECT_FALSE(traits(true, {}).unicode);
}

}  // namespace
}  // namespace lockstep::observe
