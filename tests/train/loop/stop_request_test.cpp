#include "train/loop/stop_request.h"

#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <thread>

namespace lockstep::train {
namespace {

/// Later than signals of one request come.
void pass_time() { std::this_thread::sleep_for(std::chrono::milliseconds(kOneRequestMs + 50)); }

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
  EXPECT_EXIT(exit_code_after(SIGHUP, true), testing::ExitedWithCode(143), "");
}

TEST(StopRequestDeathTest, RanksOfAJobTakeTheLaunchersSignalForNoRequest) {
  EXPECT_EXIT(exit_code_after(SIGTERM, false), testing::ExitedWithCode(98), "");
  EXPECT_EXIT(
      {
        install_stop_request(false);
        const bool before = termination_requested();
        std::raise(SIGTERM);
        std::_Exit(!before && termination_requested() && !stop_requested() ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
  EXPECT_EXIT(exit_code_after(SIGINT, false), testing::KilledBySignal(SIGINT), "");
}

TEST(StopRequestDeathTest, ASecondSignalEndsAProcessThatIsAloneAtOnce) {
  for (const int first : {SIGINT, SIGTERM, SIGHUP})
    for (const int second : {SIGINT, SIGTERM, SIGHUP})
      EXPECT_EXIT(
          {
            install_stop_request(true);
            std::raise(first);
            pass_time();
            std::raise(second);
            std::_Exit(0);
          },
          testing::ExitedWithCode(202), "");
}

// `timeout` tells its child and then its group; a closing terminal tells everybody.
TEST(StopRequestDeathTest, SignalsOfOneMomentAreOneRequest) {
  for (const int second : {SIGINT, SIGTERM, SIGHUP})
    EXPECT_EXIT(
        {
          install_stop_request(true);
          std::raise(SIGTERM);
          std::this_thread::sleep_for(std::chrono::milliseconds(5));
          std::raise(second);
          std::_Exit(static_cast<int>(stop_exit_code()));
        },
        testing::ExitedWithCode(143), "");
}

// `&` in a script ignores SIGINT, nohup SIGHUP.
TEST(StopRequestDeathTest, WhatWasIgnoredStaysIgnored) {
  for (const int ignored : {SIGINT, SIGTERM, SIGHUP})
    EXPECT_EXIT(
        {
          std::signal(ignored, SIG_IGN);
          install_stop_request(true);
          std::raise(ignored);
          std::_Exit(stop_requested() ? 1 : 0);
        },
        testing::ExitedWithCode(0), "");
}

// As where systemd tells the launcher, mpirun and all ranks at once.
TEST(StopRequestDeathTest, ARankThatIsAskedToStopTooSaves) {
  for (const bool asked_first : {true, false})
    EXPECT_EXIT(
        {
          install_stop_request(false);
          std::raise(asked_first ? SIGUSR1 : SIGTERM);
          std::raise(asked_first ? SIGTERM : SIGUSR1);
          std::_Exit(stop_requested() && !termination_requested() ? 0 : 1);
        },
        testing::ExitedWithCode(0), "");
}

TEST(StopRequestDeathTest, ARankWaitsForALauncherThatWillAsk) {
  EXPECT_EXIT(
      {
        install_stop_request(false, std::chrono::milliseconds(kOneRequestMs));
        std::raise(SIGTERM);
        const bool before = termination_requested();
        pass_time();
        std::_Exit(!before && termination_requested() ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

// As where a pod is taken away: its preStop asks, and then the container is told to end.
TEST(StopRequestDeathTest, WhoeverWasAskedByOthersEndsAtOnceWhenToldTwice) {
  EXPECT_EXIT(
      {
        install_stop_request(true);
        std::raise(SIGUSR1);
        std::raise(SIGTERM);
        std::_Exit(static_cast<int>(stop_exit_code()));
      },
      testing::ExitedWithCode(143), "");
  EXPECT_EXIT(
      {
        install_stop_request(true);
        for (const int signal : {SIGUSR1, SIGTERM, SIGUSR1}) std::raise(signal);
        pass_time();
        std::raise(SIGTERM);
        std::_Exit(0);
      },
      testing::ExitedWithCode(202), "");
}

TEST(StopRequestDeathTest, ARepeatedRequestChangesNothingWheneverItComes) {
  for (const bool alone : {true, false})
    for (const int first : {SIGUSR1, alone ? SIGTERM : SIGUSR1})
      EXPECT_EXIT(
          {
            install_stop_request(alone);
            std::raise(first);
            std::raise(SIGUSR1);
            // Longer than signals of one request may be apart.
            std::this_thread::sleep_for(std::chrono::milliseconds(2500));
            std::raise(SIGUSR1);
            std::_Exit(stop_requested() ? static_cast<int>(stop_exit_code()) : 98);
          },
          testing::ExitedWithCode(143), "");
}

}  // namespace
}  // namespace lockstep::train
