#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "lockstep/error.h"
#include "optim/optimizer.h"

namespace lockstep::optim {
namespace {

using ::testing::HasSubstr;

template <class Options>
std::string refusal_of(const Options& options) {
  try {
    validate(options);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

const double kNan = std::nan("");
const double kInfinity = std::numeric_limits<double>::infinity();

TEST(OptimizerOptions, DefaultsOfEveryKindAreValid) {
  for (const auto kind : {OptimizerKind::sgd, OptimizerKind::adam, OptimizerKind::adamw})
    EXPECT_EQ(refusal_of(OptimizerOptions{.kind = kind}), "accepted");
  EXPECT_EQ(refusal_of(OptimizerOptions{.learning_rate = 0}), "accepted");
  EXPECT_EQ(refusal_of(OptimizerOptions{.momentum = 0.9, .nesterov = true}), "accepted");
}

TEST(OptimizerOptions, RefusalsNameTheField) {
  for (const double value : {-0.1, kNan, kInfinity}) {
    EXPECT_THAT(refusal_of(OptimizerOptions{.learning_rate = value}), HasSubstr("optimizer.learning_rate"));
    EXPECT_THAT(refusal_of(OptimizerOptions{.weight_decay = value}), HasSubstr("optimizer.weight_decay"));
  }
  for (const double value : {-0.1, 1.0, kNan}) {
    EXPECT_THAT(refusal_of(OptimizerOptions{.momentum = value}), HasSubstr("optimizer.momentum"));
    EXPECT_THAT(refusal_of(OptimizerOptions{.kind = OptimizerKind::adam, .beta1 = value}),
                HasSubstr("optimizer.beta1"));
    EXPECT_THAT(refusal_of(OptimizerOptions{.kind = OptimizerKind::adamw, .beta2 = value}),
                HasSubstr("optimizer.beta2"));
  }
  for (const double value : {0.0, -1e-8, kNan, kInfinity})
    EXPECT_THAT(refusal_of(OptimizerOptions{.kind = OptimizerKind::adam, .epsilon = value}),
                HasSubstr("optimizer.epsilon"));
}

TEST(OptimizerOptions, WhatWouldBeIgnoredIsRefused) {
  EXPECT_THAT(refusal_of(OptimizerOptions{.nesterov = true}),
              HasSubstr("optimizer.nesterov needs optimizer.momentum"));
  EXPECT_THAT(refusal_of(OptimizerOptions{.kind = OptimizerKind::adam, .momentum = 0.9}),
              HasSubstr("optimizer.momentum"));
  EXPECT_THAT(refusal_of(OptimizerOptions{.kind = OptimizerKind::adamw, .nesterov = true}),
              HasSubstr("optimizer.nesterov"));
  EXPECT_THAT(refusal_of(ScheduleOptions{.minimum = 0.1}), HasSubstr("schedule.minimum"));
}

TEST(ScheduleOptions, RefusalsNameTheField) {
  EXPECT_EQ(refusal_of(ScheduleOptions{}), "accepted");
  EXPECT_EQ(refusal_of(ScheduleOptions{.kind = ScheduleKind::cosine, .warmup_steps = 5, .minimum = 0.1}),
            "accepted");
  EXPECT_THAT(refusal_of(ScheduleOptions{.warmup_steps = -1}), HasSubstr("schedule.warmup_steps"));
  for (const double value : {-0.1, kNan, kInfinity})
    EXPECT_THAT(refusal_of(ScheduleOptions{.kind = ScheduleKind::cosine, .minimum = value}),
                HasSubstr("schedule.minimum"));
}

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
