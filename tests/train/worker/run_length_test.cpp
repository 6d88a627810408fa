#include "train/worker/run_length.h"

#include <gtest/gtest.h>

namespace lockstep::train {
namespace {

config::TrainerOptions epochs(double count, int64_t batch) {
  config::TrainerOptions trainer;
  trainer.global_batch = batch;
  trainer.epochs = count;
  return trainer;
}

config::TrainerOptions steps(int64_t count, int64_t batch) {
  config::TrainerOptions trainer;
  trainer.global_batch = batch;
  trainer.steps = count;
  return trainer;
}

TEST(RunLength, OfEpochsIsAsManyStepsAsTheirSamplesTake) {
  EXPECT_EQ(RunLength(epochs(2, 49), 784).total_steps(), 32);
  EXPECT_EQ(RunLength(epochs(1, 100), 784).total_steps(), 8);
  EXPECT_EQ(RunLength(epochs(8.3, 10), 100).total_steps(), 83);
  EXPECT_EQ(RunLength(epochs(0.001, 10), 100).total_steps(), 1);
}

TEST(RunLength, GoesOnAtTheSamplesTakenByAnotherBatch) {
  const RunLength length(epochs(2, 98), 784, {.step = 8, .samples = 392});
  EXPECT_EQ(length.total_steps(), 20);
  EXPECT_EQ(length.samples_after(8), 392);
  EXPECT_EQ(length.samples_after(20), 1568);
  EXPECT_EQ(length.epochs_after(20), 2);
  EXPECT_EQ(length.schedule_span().shift, -4);
  EXPECT_EQ(RunLength(epochs(2.5, 98), 784, {.step = 8, .samples = 392}).total_steps(), 24);
}

TEST(RunLength, OfSameBatchesIsTheSameWhereverItGoesOn) {
  for (const double count : {0.3, 1.0, 8.3, 1000.7})
    for (const int64_t step : {1, 7, 100}) {
      const RunLength whole(epochs(count, 49), 784),
          rest(epochs(count, 49), 784, {.step = step, .samples = 49 * step});
      EXPECT_EQ(rest.total_steps(), whole.total_steps());
      EXPECT_EQ(rest.schedule_span().shift, 0);
    }
}

TEST(RunLength, OfStepsIsWhatIsStated) {
  const RunLength length(steps(32, 98), 784, {.step = 8, .samples = 392});
  EXPECT_EQ(length.total_steps(), 32);
  EXPECT_EQ(length.samples_after(9), 490);
  EXPECT_EQ(length.schedule_span().shift, 0);
}

TEST(RunLength, WhoseSamplesAreTakenHasNoStepsLeft) {
  EXPECT_EQ(RunLength(epochs(2, 98), 784, {.step = 32, .samples = 1568}).total_steps(), 32);
  EXPECT_LT(RunLength(epochs(1, 98), 784, {.step = 32, .samples = 1568}).total_steps(), 32);
}

}  // namespace
}  // namespace lockstep::train
