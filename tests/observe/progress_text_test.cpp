#include "observe/progress_text.h"

#include <gtest/gtest.h>

namespace lockstep::observe {
namespace {

const ProgressState kState{"train", "step", 76, 100, 10.0, 7.6, "loss 1.234"};

TEST(ProgressText, PlainLinesHaveNoBar) {
  EXPECT_EQ(progress_text(kState, {}), "train:  76% 76/100 [00:10<00:03, 7.60 step/s] loss 1.234");
}

TEST(ProgressText, TheBarTakesTheRoomThatIsLeft) {
  // Without the bar 58 columns, counting its two borders: 11 cells at 69, of which 76 % are 8.36.
  EXPECT_EQ(progress_text(kState, {.columns = 69}),
            "train:  76%|########   | 76/100 [00:10<00:03, 7.60 step/s] loss 1.234");
  EXPECT_EQ(progress_text(kState, {.columns = 69, .unicode = true}),
            "train:  76%|████████▎  | 76/100 [00:10<00:03, 7.60 step/s] loss 1.234");
  EXPECT_EQ(progress_text(kState, {.columns = 69, .color = true}),
            "train:  76%|\x1b[32m########   \x1b[0m| 76/100 [00:10<00:03, 7.60 step/s] loss 1.234");
}

TEST(ProgressText, TheBarHasFortyCellsAtMost) {
  const std::string text = progress_text(kState, {.columns = 300});
  EXPECT_EQ(text, "train:  76%|" + std::string(30, '#') + std::string(10, ' ') +
                      "| 76/100 [00:10<00:03, 7.60 step/s] loss 1.234");
}

TEST(ProgressText, NarrowTerminalsLoseTheBarThenTheEnd) {
  EXPECT_EQ(progress_text(kState, {.columns = 62}),
            "train:  76%|### | 76/100 [00:10<00:03, 7.60 step/s] loss 1.234");
  EXPECT_EQ(progress_text(kState, {.columns = 61}),
            "train:  76% 76/100 [00:10<00:03, 7.60 step/s] loss 1.234");
  EXPECT_EQ(progress_text(kState, {.columns = 20}), "train:  76% 76/100 [");
  ProgressState state = kState;
  state.description = "größe";
  EXPECT_EQ(progress_text(state, {.columns = 4}), "größ");
  EXPECT_EQ(progress_text(state, {.columns = 3}), "grö");
}

TEST(ProgressText, KnowsNoRateAtFirst) {
  EXPECT_EQ(progress_text({"train", "step", 0, 8, 0, std::nullopt, ""}, {}), "train:   0% 0/8 [00:00<?, ?]");
  EXPECT_EQ(progress_text({"train", "step", 0, 8, 2, 0.0, ""}, {}), "train:   0% 0/8 [00:02<?, ?]");
}

TEST(ProgressText, OnlyTheEndIsAHundredPercent) {
  EXPECT_EQ(progress_text({"t", "step", 9999, 10000, 1, 9999.0, ""}, {}),
            "t:  99% 9999/10000 [00:01<00:00, 10.0k step/s]");
  EXPECT_EQ(progress_text({"t", "step", 8, 8, 4, 2.0, ""}, {.columns = 45, .unicode = true}),
            "t: 100%|█████| 8/8 [00:04<00:00, 2.00 step/s]");
}

TEST(ProgressText, Clocks) {
  EXPECT_EQ(clock_text(0.99), "00:00");
  EXPECT_EQ(clock_text(65), "01:05");
  EXPECT_EQ(clock_text(3599.9), "59:59");
  EXPECT_EQ(clock_text(7207), "2:00:07");
  EXPECT_EQ(clock_text(360000), "100:00:00");
}

TEST(ProgressText, Rates) {
  EXPECT_EQ(rate_text(0.4, "step"), "2.50 s/step");
  EXPECT_EQ(rate_text(0.01, "step"), "100 s/step");
  EXPECT_EQ(rate_text(1, "step"), "1.00 step/s");
  EXPECT_EQ(rate_text(9.994, "step"), "9.99 step/s");
  EXPECT_EQ(rate_text(9.996, "step"), "10.0 step/s");
  EXPECT_EQ(rate_text(99.96, "step"), "100 step/s");
  EXPECT_EQ(rate_text(999.4, "step"), "999 step/s");
  EXPECT_EQ(rate_text(999.6, "step"), "1.00k step/s");
  EXPECT_EQ(rate_text(12345, "step"), "12.3k step/s");
  EXPECT_EQ(rate_text(4.2e6, "token"), "4.20M token/s");
}

}  // namespace
}  // namespace lockstep::observe
