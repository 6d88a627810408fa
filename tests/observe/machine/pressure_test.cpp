#include "observe/machine/pressure.h"

#include <gtest/gtest.h>

namespace lockstep::observe {
namespace {

TEST(Pressure, IsTheTotalInSeconds) {
  const StalledSeconds seconds = stalled_seconds(
      "some avg10=1.00 avg60=2.00 avg300=3.00 total=2500000\nfull avg10=0.00 avg60=0.00 avg300=0.00 "
      "total=500000\n");
  EXPECT_DOUBLE_EQ(seconds.some.value(), 2.5);
  EXPECT_DOUBLE_EQ(seconds.full.value(), 0.5);
}

TEST(Pressure, IsAbsentIfTheKernelDoesNotMeasureIt) {
  EXPECT_FALSE(stalled_seconds("").some);
  const StalledSeconds seconds = stalled_seconds("some avg10=0.00 avg60=0.00 avg300=0.00 total=1\n");
  EXPECT_TRUE(seconds.some);
  EXPECT_FALSE(seconds.full);
}

}  // namespace
}  // namespace lockstep::observe
