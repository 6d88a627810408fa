#include "run/exposed_time.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace lockstep::run {
namespace {

constexpr double kEver = std::numeric_limits<double>::infinity();

double exposed(int lanes, const std::vector<Stand>& stands) {
  return exposed_communication_ms(stands, lanes);
}

TEST(ExposedTime, OfOneLaneIsWhatItWaitsForCommunication) {
  EXPECT_EQ(exposed(1, {}), 0);
  EXPECT_EQ(exposed(1, {{10, 13, true}, {20, 24, false}, {30, 35, true}}), 8);
  EXPECT_EQ(exposed(1, {{10, 13, false}, {13, 15, true}}), 2);
  EXPECT_EQ(exposed(1, {{10, 10, true}, {-5, -1, true}}), 4);
}

//     time      0    10    20    30    40    50
//     compute   work |wait for norm  | work  |  nothing left
//     update    wait for sums  | work  | sums  | work
TEST(ExposedTime, OfTwoLanesIsWhereBothStandAndOneForCommunication) {
  EXPECT_EQ(exposed(2, {{10, 30, false}, {0, 20, true}}), 10);
  EXPECT_EQ(exposed(2, {{10, 30, false}, {0, 20, true}, {40, kEver, false}, {35, 45, true}}), 15);
  EXPECT_EQ(exposed(2, {{0, 20, true}, {5, 25, true}}), 15) << "which both wait for is counted once";
  EXPECT_EQ(exposed(2, {{0, 20, false}, {5, 25, false}}), 0);
}

TEST(ExposedTime, OfALaneBesideOneThatNeverStandsIsNone) {
  EXPECT_EQ(exposed(2, {{0, 20, true}, {30, kEver, false}}), 0);
  EXPECT_EQ(exposed(3, {{0, 20, true}, {0, 20, true}}), 0);
}

}  // namespace
}  // namespace lockstep::run
