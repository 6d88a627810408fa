#include <gtest/gtest.h>

#include "lockstep/error.h"
#include "optim/optimizer.h"

namespace lockstep::optim {
namespace {

TEST(StateSlots, FollowTheKind) {
  EXPECT_EQ(state_slots({}), 0);
  const OptimizerOptions momentum{.momentum = 0.9};
  ASSERT_EQ(state_slots(momentum), 1);
  EXPECT_EQ(state_slot_name(momentum, 0), "momentum");
  for (const auto kind : {OptimizerKind::adam, OptimizerKind::adamw}) {
    ASSERT_EQ(state_slots({.kind = kind}), 2);
    EXPECT_EQ(state_slot_name({.kind = kind}, 0), "exp_avg");
    EXPECT_EQ(state_slot_name({.kind = kind}, 1), "exp_avg_sq");
  }
  EXPECT_THROW(state_slot_name(momentum, 1), InternalError);
}

TEST(StateSlots, HaveTheAverageLast) {
  const OptimizerOptions options{.kind = OptimizerKind::adamw, .average = {.enabled = true}};
  ASSERT_EQ(state_slots(options), kMostStateSlots);
  EXPECT_EQ(state_slot_name(options, 1), "exp_avg_sq");
  EXPECT_EQ(state_slot_name(options, 2), "ema");
}

TEST(AverageGain, IsOneUntilTheStart) {
  const AverageOptions options{.enabled = true, .decay = 0.75, .start_step = 3};
  EXPECT_EQ(average_gain(options, 3), 1);
  EXPECT_EQ(average_gain(options, 4), 0.25);
  EXPECT_EQ(average_gain({.enabled = true, .decay = 0.75}, 1), 1);
  EXPECT_EQ(average_gain({.enabled = true, .decay = 0.75}, 2), 0.25);
}

}  // namespace
}  // namespace lockstep::optim
