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

}  // namespace
}  // namespace lockstep::optim
