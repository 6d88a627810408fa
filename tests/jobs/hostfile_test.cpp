#include "jobs/hostfile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/error.h"
#include "mentions.h"

namespace lockstep::jobs {
namespace {

using ::testing::ElementsAre;

std::string refusal(const std::string& text) {
  try {
    hosts_of(text, "hosts.txt");
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(Hostfile, NamesHostsInItsOrder) {
  EXPECT_THAT(hosts_of("b slots=4\n# none\n\n\ta max_slots=2 # one\nfe80::1", "h"),
              ElementsAre("b", "a", "fe80::1"));
  EXPECT_TRUE(hosts_of("", "h").empty());
}

TEST(Hostfile, RefusesWhatMpirunDoesNotRead) {
  EXPECT_THAT(refusal("a\nb:4\n"), Mentions("hosts.txt:2 ... b slots=4"));
  EXPECT_THAT(refusal("a\r\n"), Mentions("hosts.txt:1"));
  EXPECT_THAT(refusal("\xef\xbb\xbf"
                      "a\n"),
              Mentions("hosts.txt:1"));
  for (const char* fine : {"a:\n", ":4\n", "a:4b\n", "a:4:5\n"}) EXPECT_EQ(refusal(fine), "") << fine;
}

/// A regular expression would need a stack frame for each character.
TEST(Hostfile, MayHaveALongLine) {
  const std::string name(1 << 22, 'x');
  EXPECT_THAT(hosts_of(name, "h"), ElementsAre(name));
  EXPECT_NE(refusal(name + ":12"), "");
}

}  // namespace
}  // namespace lockstep::jobs
