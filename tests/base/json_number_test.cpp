#include "base/json_number.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

namespace lockstep {
namespace {

using Json = nlohmann::json;

TEST(JsonNumber, IsWhatTheTypeHolds) {
  EXPECT_EQ(whole_number<int64_t>(Json::parse("-9223372036854775808")), INT64_MIN);
  EXPECT_EQ(whole_number<int64_t>(Json::parse("12.0")), 12);
  EXPECT_EQ(whole_number<int>(Json::parse("2147483647")), INT32_MAX);
  EXPECT_EQ(demand_whole_number<int>(Json(-3)), -3);
}

TEST(JsonNumber, IsNoOtherValue) {
  for (const char* text :
       {"9223372036854775808", "1e19", "4e108", "-1e300", "1.5", "true", "null", "\"1\"", "[1]"}) {
    EXPECT_EQ(whole_number<int64_t>(Json::parse(text)), std::nullopt) << text;
    EXPECT_THROW(demand_whole_number<int64_t>(Json::parse(text)), DataError) << text;
  }
  EXPECT_EQ(whole_number<int>(Json::parse("2147483648")), std::nullopt);
}

}  // namespace
}  // namespace lockstep
