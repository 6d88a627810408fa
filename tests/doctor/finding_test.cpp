#include "doctor/finding.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "lockstep/error.h"

namespace lockstep::doctor {
namespace {

const Finding kOk{Level::ok, "all is well", "", "memory"};
const Finding kSkip{Level::skip, "nothing here", "", "gpus"};
const Finding kWarn{Level::warn, "few files", "ulimit -n 4096", "open_files"};
const Finding kFail{Level::fail, "lo is down", "ip link set lo up", "loopback"};

TEST(Findings, AreOneLineEach) {
  EXPECT_EQ(line_of(kOk), "ok    memory: all is well\n");
  EXPECT_EQ(line_of(kWarn), "warn  open_files: few files; fix: ulimit -n 4096\n");
  EXPECT_EQ(line_of({Level::fail, "a\nb\x1b[2J", "c\nd", "x"}), "fail  x: a b [2J; fix: c d\n");
}

TEST(Findings, TheWorstDecidesTheExitCode) {
  EXPECT_EQ(exit_code_of({}), 0);
  EXPECT_EQ(exit_code_of({kOk, kSkip}), 0);
  EXPECT_EQ(exit_code_of({kOk, kWarn, kSkip}), 1);
  EXPECT_EQ(exit_code_of({kFail, kWarn}), 69);
  EXPECT_EQ(summary_of({kOk, kOk, kSkip, kWarn}), "2 ok, 1 skipped, 1 warning, 0 failures\n");
}

TEST(Findings, JsonHoldsWhatLinesSay) {
  const auto json = nlohmann::json::parse(json_of({kOk, kWarn, {Level::ok, "\xff", "", "x"}}));
  EXPECT_EQ(json["result"], "warn");
  ASSERT_EQ(json["checks"].size(), 3u);
  EXPECT_EQ(json["checks"][1]["check"], "open_files");
  EXPECT_EQ(json["checks"][1]["result"], "warn");
  EXPECT_EQ(json["checks"][1]["found"], "few files");
  EXPECT_EQ(json["checks"][1]["fix"], "ulimit -n 4096");
}

TEST(Findings, TravelUnchanged) {
  const std::vector<Finding> all{kOk, kSkip, kWarn, kFail};
  EXPECT_EQ(decode(encode(all)), all);
  EXPECT_TRUE(decode(encode({})).empty());
  for (const char* broken :
       {"", "[", "[1]", "[{}]", R"([{"check":"","finding":"good","found":"","fix":""}])"})
    EXPECT_THROW(decode(broken), InternalError) << broken;
}

}  // namespace
}  // namespace lockstep::doctor
