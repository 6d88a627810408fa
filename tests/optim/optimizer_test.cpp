#include <gtest/gtest.h>

#include "lockstep/error.h"
#include "optim/formulas.h"

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

TEST(StateSlots, OfLambAreThoseOfAdamAndOfLarsItsOwn) {
  ASSERT_EQ(state_slots({.kind = OptimizerKind::lars}), 1);  // also without momentum, which may come later
  EXPECT_EQ(state_slot_name({.kind = OptimizerKind::lars}, 0), "velocity") << "of other sign and unit";
  ASSERT_EQ(state_slots({.kind = OptimizerKind::muon}), 2);
  EXPECT_EQ(state_slot_name({.kind = OptimizerKind::muon}, 0), "exp_avg");
  // Of a matrix no square is kept, without which the mean is no state of Adam's.
  const MatrixSize matrix{.rows = 3, .columns = 5};
  const OptimizerOptions averaged{.kind = OptimizerKind::muon, .average = {.enabled = true}};
  EXPECT_EQ(state_slot_name(averaged, 0, matrix), "muon_mean");
  EXPECT_EQ(state_slot_name(averaged, 1, matrix), "muon_unused");
  EXPECT_EQ(state_slot_name(averaged, 2, matrix), "ema");
  EXPECT_EQ(state_slot_name(averaged, 1), "exp_avg_sq") << "of what is no matrix";
  ASSERT_EQ(state_slots({.kind = OptimizerKind::lamb}), 2);
  EXPECT_EQ(state_slot_name({.kind = OptimizerKind::lamb}, 0), "exp_avg");
  EXPECT_EQ(state_slot_name({.kind = OptimizerKind::lamb}, 1), "exp_avg_sq");
}

TEST(Scale, OfLarsWorkedOutByHand) {
  const OptimizerOptions lars{.kind = OptimizerKind::lars, .epsilon = 1, .trust = 0.5};
  const ParameterRates rates{.weight_decay = 0.25};
  // 0.5 * 8 / (1 + 0.25 * 8 + 1)
  EXPECT_EQ(scale_of(lars, rates, {.gradient = 1, .parameter = 8}), 1);
  EXPECT_EQ(scale_of(lars, rates, {.gradient = 5, .parameter = 8}), 0.5);
  EXPECT_EQ(scale_of(lars, rates, {.gradient = 0, .parameter = 8}), 1);
  EXPECT_EQ(scale_of(lars, rates, {.gradient = 5, .parameter = 0}), 1);
  EXPECT_TRUE(is_scaled(lars, rates, false));
  EXPECT_FALSE(is_scaled(lars, rates, true));
}

TEST(Scale, OfLambWorkedOutByHand) {
  const OptimizerOptions lamb{.kind = OptimizerKind::lamb};
  EXPECT_EQ(scale_of(lamb, {}, {.gradient = 3, .parameter = 8, .update = 2}), 4);
  EXPECT_EQ(scale_of(lamb, {}, {.gradient = 3, .parameter = 0, .update = 2}), 1);
  EXPECT_EQ(scale_of(lamb, {}, {.gradient = 3, .parameter = 8, .update = 0}), 1);
  EXPECT_FALSE(is_scaled(lamb, {}, false)) << "apex: without weight decay there is no ratio";
  EXPECT_TRUE(is_scaled(lamb, {.weight_decay = 0.1}, false));
  EXPECT_FALSE(is_scaled(lamb, {.weight_decay = 0.1}, true));
  EXPECT_TRUE(is_scaled({.kind = OptimizerKind::lamb, .adapts_without_decay = true}, {}, false));
}

TEST(Scale, OfAdaptiveClippingWorkedOutByHand) {
  const OptimizerOptions clipped{.adaptive_clip = {.limit = 0.25, .floor = 2}};
  EXPECT_EQ(scale_of(clipped, {}, {.gradient = 4, .parameter = 8}), 0.5);
  EXPECT_EQ(scale_of(clipped, {}, {.gradient = 2, .parameter = 8}), 1);
  EXPECT_EQ(scale_of(clipped, {}, {.gradient = 2, .parameter = 1}), 0.25) << "as if its norm were 2";
  EXPECT_TRUE(is_scaled(clipped, {}, true));
  EXPECT_FALSE(is_scaled(clipped, {.clips = false}, false));
  EXPECT_FALSE(is_scaled({}, {}, false));
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
