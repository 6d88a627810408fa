#include "exchange/tensor_names.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::exchange {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

TEST(TensorNames, MatchExactly) {
  const NameMatch match = match_names({"a.weight", "a.bias"}, {"a.bias", "a.weight"});
  EXPECT_THAT(match.found, ElementsAre(Pair("a.bias", "a.bias"), Pair("a.weight", "a.weight")));
  EXPECT_THAT(match.missing, IsEmpty());
  EXPECT_THAT(match.left_over, IsEmpty());
  EXPECT_EQ(match.prefix, "");
}

TEST(TensorNames, MatchBehindPrefixesOfWrappers) {
  const NameMatch match =
      match_names({"transformer.wte.weight", "lm_head.weight"},
                  {"module._orig_mod.transformer.wte.weight", "module._orig_mod.lm_head.weight"});
  EXPECT_THAT(match.missing, IsEmpty());
  EXPECT_EQ(match.prefix, "module._orig_mod.");
}

TEST(TensorNames, MatchWithoutAnExpectedPrefix) {
  const NameMatch match = match_names({"transformer.wte.weight"}, {"wte.weight"});
  EXPECT_THAT(match.found, ElementsAre(Pair("transformer.wte.weight", "wte.weight")));
  EXPECT_EQ(match.prefix, "-transformer.");
}

TEST(TensorNames, RecogniseAnyPrefixThatAllHave) {
  const NameMatch match =
      match_names({"fc1.weight", "fc2.weight"}, {"my.net.fc1.weight", "my.net.fc2.weight"});
  EXPECT_THAT(match.missing, IsEmpty());
  EXPECT_EQ(match.prefix, "my.net.");
}

TEST(TensorNames, TellWhatIsMissingAndLeftOver) {
  const NameMatch match = match_names({"fc1.weight", "fc2.weight"}, {"fc1.weight", "fc3.weight"});
  EXPECT_THAT(match.missing, ElementsAre("fc2.weight"));
  EXPECT_THAT(match.left_over, ElementsAre("fc3.weight"));
}

TEST(TensorNames, BeginAtDots) {
  EXPECT_TRUE(begins_with_name("head.weight", "head"));
  EXPECT_TRUE(begins_with_name("head.weight", "head.weight"));
  EXPECT_FALSE(begins_with_name("header.weight", "head"));
}

}  // namespace
}  // namespace lockstep::exchange
