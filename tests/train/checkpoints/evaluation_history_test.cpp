#include "train/checkpoints/evaluation_history.h"

#include <gtest/gtest.h>

#include <limits>

namespace lockstep::train {
namespace {

TEST(EvaluationHistory, KnowsTheBestAndHowLongAgoItWas) {
  EvaluationHistory history;
  EXPECT_TRUE(history.add(10, 2.0));
  EXPECT_TRUE(history.add(20, 1.0));
  EXPECT_FALSE(history.add(30, 1.0)) << "equal is no better";
  EXPECT_FALSE(history.add(40, std::numeric_limits<double>::quiet_NaN()));
  EXPECT_EQ(history,
            (EvaluationHistory{.best_step = 20, .best_loss = 1.0, .since_best = 2, .last_step = 40}));
  EXPECT_FALSE(history.add(40, 0.1)) << "the same evaluation, after a resume";
  EXPECT_EQ(history.since_best, 2);
  EXPECT_TRUE(history.add(50, 0.5));
  EXPECT_EQ(history.since_best, 0);
  EXPECT_FALSE(history.add(50, 0.5)) << "the best one again";
  EXPECT_EQ(history.since_best, 0);
}

TEST(EvaluationHistory, WhatIsNotFiniteIsNeverTheBestAndCounts) {
  EvaluationHistory history;
  EXPECT_FALSE(history.add(10, std::numeric_limits<double>::quiet_NaN()));
  EXPECT_FALSE(history.add(20, std::numeric_limits<double>::infinity()));
  EXPECT_FALSE(history.add(30, -std::numeric_limits<double>::infinity()));
  EXPECT_EQ(history.best_step, -1);
  EXPECT_EQ(history.since_best, 3);
  EXPECT_TRUE(history.add(40, 7));
}

}  // namespace
}  // namespace lockstep::train
