#include "observe/json_text.h"

#include <gtest/gtest.h>

#include <limits>

namespace lockstep::observe {
namespace {

TEST(JsonText, NumbersHaveTheShortestDigitsThatReadBackAsTheSame) {
  EXPECT_EQ(json_number(0.1), "0.1");
  EXPECT_EQ(json_number(0.1 + 0.2), "0.30000000000000004");
  EXPECT_EQ(json_number(1.0 / 3.0), "0.3333333333333333");
  EXPECT_EQ(json_number(double{0.1f}), "0.10000000149011612");
  EXPECT_EQ(json_number(5), "5");
  EXPECT_EQ(json_number(std::numeric_limits<double>::denorm_min()), "5e-324");
  EXPECT_EQ(json_number(std::numeric_limits<double>::max()), "1.7976931348623157e+308");
}

TEST(JsonText, ZeroKeepsItsSign) {
  EXPECT_EQ(json_number(0.0), "0");
  EXPECT_EQ(json_number(-0.0), "-0.0");
}

TEST(JsonText, WhatIsNotFiniteIsAText) {
  EXPECT_EQ(json_number(std::numeric_limits<double>::quiet_NaN()), "\"nan\"");
  EXPECT_EQ(json_number(-std::numeric_limits<double>::quiet_NaN()), "\"nan\"");
  EXPECT_EQ(json_number(std::numeric_limits<double>::infinity()), "\"inf\"");
  EXPECT_EQ(json_number(-std::numeric_limits<double>::infinity()), "\"-inf\"");
}

TEST(JsonText, TextsAreEscaped) {
  EXPECT_EQ(json_string("dp=2,pp=2"), "\"dp=2,pp=2\"");
  EXPECT_EQ(json_string("a\"b\\c\nd\x01"), "\"a\\\"b\\\\c\\nd\\u0001\"");
  EXPECT_EQ(json_string("\xff!"), "\"\xEF\xBF\xBD!\"");
}

}  // namespace
}  // namespace lockstep::observe
