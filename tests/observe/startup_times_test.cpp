#include "observe/startup_times.h"

#include <gtest/gtest.h>

#include <set>

namespace lockstep::observe {
namespace {

using std::chrono::milliseconds;

const Clock::time_point kStart{std::chrono::hours(1)};

TEST(StartupTimes, PartsAddUpToTheTimeFromTheStartToTheEndOfTheFirstStep) {
  StartupTimes times(kStart);
  times.end(StartupPart::launch, kStart + milliseconds(40));
  times.end(StartupPart::config, kStart + milliseconds(43));
  times.end(StartupPart::other, kStart + milliseconds(50));
  times.end(StartupPart::memory, kStart + milliseconds(70));
  times.end(StartupPart::other, kStart + milliseconds(72));
  EXPECT_FALSE(times.complete());
  times.end(StartupPart::first_step, kStart + milliseconds(100));
  EXPECT_TRUE(times.complete());
  const StartupMilliseconds& parts = times.milliseconds();
  EXPECT_EQ(parts[StartupPart::launch], 40);
  EXPECT_EQ(parts[StartupPart::config], 3);
  EXPECT_EQ(parts[StartupPart::memory], 20);
  EXPECT_EQ(parts[StartupPart::other], 9);
  EXPECT_EQ(parts[StartupPart::first_step], 28);
  EXPECT_EQ(parts[StartupPart::data], 0);
  EXPECT_EQ(parts.total(), 100);
}

TEST(StartupTimes, WhatComesBehindTheFirstStepDoesNotCount) {
  StartupTimes times(kStart);
  times.end(StartupPart::first_step, kStart + milliseconds(10));
  times.end(StartupPart::first_step, kStart + milliseconds(20));
  times.end(StartupPart::other, kStart + milliseconds(30));
  EXPECT_EQ(times.milliseconds().total(), 10);
}

TEST(StartupTimes, EveryPartHasANameOfItsOwn) {
  std::set<std::string_view> names;
  for (size_t part = 0; part < kStartupParts; ++part) names.insert(name_of(static_cast<StartupPart>(part)));
  EXPECT_EQ(names.size(), kStartupParts);
  EXPECT_EQ(name_of(StartupPart::other), "other");
  EXPECT_EQ(names.count(""), 0u);
}

TEST(StartupTimes, FindsTheStartBehindANameOfAnyKind) {
  EXPECT_EQ(start_ticks("7 (a) b (c)) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 987654 20 21\n"),
            987654);
  EXPECT_LE(process_start(), Clock::now());
}

}  // namespace
}  // namespace lockstep::observe
