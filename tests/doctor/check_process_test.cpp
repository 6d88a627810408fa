#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>

#include "doctor/check.h"

namespace lockstep::doctor {
namespace {

using testing::HasSubstr;

std::vector<Finding> look_well(const Request&) { return {{Level::ok, "one"}, {Level::warn, "two", "do it"}}; }
std::vector<Finding> look_forever(const Request&) {
  while (true) ::pause();
}
/// Starts a process that writes its number to the file that the request names, and waits for it.
std::vector<Finding> look_with_child(const Request& request) {
  const std::string command = "echo $$ >" + request.output_directory + "; exec sleep 1000";
  return {{std::system(command.c_str()) == 0 ? Level::ok : Level::fail, "it ended"}};
}
std::vector<Finding> look_and_crash(const Request&) {
  ::signal(SIGSEGV, SIG_DFL);  // sanitizers have a handler
  ::raise(SIGSEGV);
  return {};
}
std::vector<Finding> look_and_leave(const Request&) { ::_exit(3); }
std::vector<Finding> look_and_throw(const Request&) { throw std::runtime_error("no such thing"); }
std::vector<Finding> look_at_much(const Request&) { return {{Level::ok, std::string(1 << 20, 'x')}}; }
std::vector<Finding> look_and_talk(const Request&) {
  const bool said = ::write(STDOUT_FILENO, "noise", 5) == 5 && ::write(STDERR_FILENO, "noise", 5) == 5;
  return {{said ? Level::ok : Level::fail, "talked"}};
}

std::vector<Finding> run(const Check& check, const Request& request = {}) {
  return run_checks(std::array{check}, request, [](const Finding&) {});
}

TEST(CheckProcess, FindingsCarryTheNameOfTheirCheckAndComeInTheTablesOrder) {
  const std::array checks{Check{"a", "", "", 60, look_at_much}, Check{"b", "", "", 60, look_well}};
  std::vector<std::string> told;
  const auto findings = run_checks(
      checks, {}, [&](const Finding& each) { told.push_back(each.check + each.found.substr(0, 3)); });
  EXPECT_EQ(told, (std::vector<std::string>{"axxx", "bone", "btwo"}));
  ASSERT_EQ(findings.size(), 3u);
  EXPECT_EQ(findings[0].found.size(), size_t{1} << 20);
  EXPECT_EQ(findings[2], (Finding{Level::warn, "two", "do it", "b"}));
}

TEST(CheckProcess, OneThatHangsFailsAndKeepsNoOther) {
  const std::array checks{Check{"stuck", "", "look there", 1, look_forever},
                          Check{"b", "", "", 60, look_well}};
  const auto findings = run_checks(checks, {}, [](const Finding&) {});
  ASSERT_EQ(findings.size(), 3u);
  EXPECT_EQ(findings[0], (Finding{Level::fail, "took longer than 1 s", "look there", "stuck"}));
  EXPECT_EQ(findings[1].level, Level::ok);
}

TEST(CheckProcess, WhatAHangingCheckStartedEndsWithIt) {
  const std::string path = testing::TempDir() + "/doctor-child-" + std::to_string(::getpid());
  EXPECT_EQ(run({"stuck", "", "", 1, look_with_child}, {.output_directory = path})[0].found,
            "took longer than 1 s");
  pid_t child = 0;
  std::ifstream(path) >> child;
  std::remove(path.c_str());
  ASSERT_GT(child, 1);
  // Gone, or waiting for whoever adopted it, as soon as the kernel comes to it.
  const auto state = [&child] {
    std::ifstream status("/proc/" + std::to_string(child) + "/stat");
    return std::string((std::istreambuf_iterator<char>(status)), {});
  };
  const auto ended = [](const std::string& text) {
    return text.empty() || text.find(") Z ") != std::string::npos || text.find(") X ") != std::string::npos;
  };
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!ended(state()) && std::chrono::steady_clock::now() < give_up)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_TRUE(ended(state())) << state();
}

TEST(CheckProcess, OneThatEndsBadlyHasFailed) {
  EXPECT_THAT(run({"crash", "", "by hand", 60, look_and_crash})[0].found, HasSubstr("signal 11"));
  EXPECT_EQ(run({"crash", "", "by hand", 60, look_and_crash})[0].fix, "by hand");
  EXPECT_EQ(run({"leave", "", "", 60, look_and_leave})[0].found, "the check ended with code 3");
  EXPECT_EQ(run({"throw", "", "h", 60, look_and_throw})[0],
            (Finding{Level::fail, "no such thing", "h", "throw"}));
}

TEST(CheckProcess, WhatChecksPrintIsNotTheCommands) {
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  EXPECT_EQ(run({"talk", "", "", 60, look_and_talk})[0].level, Level::ok);
  EXPECT_EQ(testing::internal::GetCapturedStdout() + testing::internal::GetCapturedStderr(), "");
}

TEST(CheckProcess, LeavesNoProcess) {
  run({"stuck", "", "", 1, look_forever});
  run({"b", "", "", 60, look_well});
  EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1);
  EXPECT_EQ(errno, ECHILD);
}

TEST(HostChecks, HaveNamesOfTheirOwnAndLimitsBelowFifteenSeconds) {
  std::set<std::string_view> names;
  for (const Check& check : host_checks()) {
    EXPECT_TRUE(names.insert(check.name).second) << check.name;
    EXPECT_LT(check.limit_seconds, 15) << check.name;
    EXPECT_FALSE(check.looks_at.empty() || check.by_hand.empty()) << check.name;
  }
}

TEST(HostChecks, EachSaysSomethingHereAndHowToMendWhatIsWrong) {
  for (const Check& check : host_checks()) {
    const auto findings = check.look({});
    EXPECT_FALSE(findings.empty()) << check.name;
    for (const auto& each : findings) {
      EXPECT_NE(each.found, "") << check.name;
      EXPECT_EQ(each.fix.empty(), each.level == Level::ok || each.level == Level::skip) << check.name;
    }
  }
}

}  // namespace
}  // namespace lockstep::doctor
