#include "layout/pipeline_timeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/index.h"
#include "layout/pipeline_drawing.h"
#include "lockstep/error.h"
#include "mentions.h"
#include "pipeline_shapes.h"

namespace lockstep::layout {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using UnitKind = PipelineUnit::Kind;

std::vector<double> starts_of(const PipelineTimeline& timeline, int stage) {
  std::vector<double> starts;
  for (const TimedUnit& timed : nth(timeline.stages, stage).units) starts.push_back(timed.start);
  return starts;
}

std::vector<int> peaks_of(const PipelineShape& shape, int ActivationPeak::*peak = &ActivationPeak::pairs) {
  std::vector<int> peaks;
  for (int stage = 0; stage < shape.stages; ++stage)
    peaks.push_back(activation_peak(pipeline_schedule(shape, stage)).*peak);
  return peaks;
}

/// How long the stage that computes longest computes nothing.
double least_bubble(const PipelineTimeline& timeline) {
  double least = timeline.step;
  for (const StageTimeline& stage : timeline.stages) least = std::min(least, timeline.step - stage.busy);
  return least;
}

TEST(PipelineTimeline, UnitsStartOnceTheirStageIsFreeAndTheirInputsAreThere) {
  const PipelineTimeline timeline = replay(PipelineShape{.stages = 2, .micro_batches = 2}, {});
  EXPECT_THAT(starts_of(timeline, 0), ElementsAre(0, 1, 4, 7));  // F0 F1 B0 B1
  EXPECT_THAT(starts_of(timeline, 1), ElementsAre(1, 2, 4, 5));  // F0 B0 F1 B1
  EXPECT_EQ(timeline.step, 9);
  EXPECT_EQ(nth(timeline.stages, 0).busy, 6);
  EXPECT_EQ(timeline.bubble(0), 3);
  EXPECT_EQ(timeline.bubble(1), 3);
  EXPECT_DOUBLE_EQ(timeline.bubble_fraction(), 1.0 / 3);
}

TEST(PipelineTimeline, HalvesOfBackwardPassGradientsOnBeforeWeights) {
  const PipelineTimeline timeline =
      replay(PipelineShape{.schedule = PipelineSchedule::zero_bubble, .stages = 2, .micro_batches = 2}, {});
  EXPECT_THAT(starts_of(timeline, 0), ElementsAre(0, 1, 3, 4, 5, 6));  // F0 F1 I0 W0 I1 W1
  EXPECT_THAT(starts_of(timeline, 1), ElementsAre(1, 2, 3, 4, 5, 6));  // F0 I0 F1 I1 W0 W1
  EXPECT_EQ(timeline.step, 7);
}

TEST(PipelineTimeline, TransfersDelayTheReceiverAlone) {
  const PipelineShape shape{.schedule = PipelineSchedule::gpipe, .stages = 2, .micro_batches = 2};
  const PipelineTimeline timeline = replay(shape, {.transfer = 0.5});
  EXPECT_THAT(starts_of(timeline, 0), ElementsAre(0, 1, 6, 8));  // F0 F1 B0 B1
  EXPECT_THAT(starts_of(timeline, 1), ElementsAre(1.5, 2.5, 3.5, 5.5));
  EXPECT_EQ(replay(PipelineShape{.micro_batches = 2}, {.transfer = 0.5}).step, 6)
      << "one stage sends nothing";
}

TEST(PipelineTimeline, RecomputingFillsTimeInWhichAStageWouldWait) {
  const PipelineShape shape{
      .schedule = PipelineSchedule::gpipe, .stages = 2, .micro_batches = 2, .recomputes = true};
  const PipelineTimeline timeline = replay(shape, {});
  EXPECT_THAT(starts_of(timeline, 0), ElementsAre(0, 1, 2, 6, 8, 9));  // F0 F1 R0 B0 R1 B1
  EXPECT_THAT(starts_of(timeline, 1), ElementsAre(1, 2, 3, 4, 6, 7));
}

/// A step, in forwards of a stage, and its peaks.
struct Figures {
  PipelineSchedule schedule;
  int chunks;
  double step;
  std::vector<int> peaks;
};

void expect_figures(int stages, int micro_batches, const std::vector<Figures>& table) {
  for (const Figures& line : table) {
    const PipelineShape shape{line.schedule, stages, micro_batches, line.chunks, false};
    EXPECT_EQ(replay(shape, {}).step / line.chunks, line.step) << static_cast<int>(line.schedule);
    EXPECT_EQ(peaks_of(shape), line.peaks) << static_cast<int>(line.schedule);
  }
}

TEST(PipelineTimeline, StepsAndPeaksOfTwoPipelinesInFull) {
  expect_figures(4, 8,  // 24 without bubbles
                 {{PipelineSchedule::gpipe, 1, 33, {8, 8, 8, 8}},
                  {PipelineSchedule::one_f_one_b, 1, 33, {4, 3, 2, 1}},
                  {PipelineSchedule::interleaved, 2, 28.5, {11, 9, 7, 5}},
                  {PipelineSchedule::interleaved, 4, 26.25, {19, 17, 15, 13}},
                  {PipelineSchedule::zero_bubble, 1, 27, {4, 4, 4, 4}}});
  expect_figures(8, 16,  // 48 without bubbles
                 {{PipelineSchedule::gpipe, 1, 69, {16, 16, 16, 16, 16, 16, 16, 16}},
                  {PipelineSchedule::one_f_one_b, 1, 69, {8, 7, 6, 5, 4, 3, 2, 1}},
                  {PipelineSchedule::interleaved, 2, 58.5, {23, 21, 19, 17, 15, 13, 11, 9}},
                  {PipelineSchedule::interleaved, 4, 53.25, {39, 37, 35, 33, 31, 29, 27, 25}},
                  {PipelineSchedule::zero_bubble, 1, 55, {8, 8, 8, 8, 8, 8, 8, 8}}});
}

// Whole numbers, so that sums of them are exact.
constexpr UnitTimes kTimes[] = {
    {1, 1, 1, 1, 0}, {10, 11, 9, 10, 0}, {10, 9, 11, 10, 0}, {1, 5, 2, 1, 0},  {5, 1, 1, 5, 0},
    {2, 3, 1, 2, 0}, {3, 3, 0, 3, 0},    {1, 1, 7, 1, 0},    {9, 10, 3, 2, 0}, {4, 12, 9, 12, 0},
};

TEST(TheoreticalBubble, IsThatOfReplaysWithoutRecomputation) {
  for_each_shape([](const PipelineShape& shape) {
    if (shape.recomputes) return;
    for (const UnitTimes& times : kTimes) {
      const PipelineTimeline timeline = replay(shape, times);
      const double busy =
          shape.micro_batches * shape.chunks * (times.forward + times.backward_input + times.backward_weight);
      ASSERT_EQ(timeline.step, busy + theoretical_bubble(shape, times))
          << times.forward << " " << times.backward_input << " " << times.backward_weight;
    }
  });
}

TEST(TheoreticalBubble, IsTheMostWithRecomputationAndExactForGpipe) {
  for_each_shape([](const PipelineShape& shape) {
    if (!shape.recomputes) return;
    for (const UnitTimes& times : kTimes) {
      const double bubble = least_bubble(replay(shape, times)), theory = theoretical_bubble(shape, times);
      ASSERT_LE(bubble, theory);
      if (shape.schedule == PipelineSchedule::gpipe) {
        ASSERT_EQ(bubble, theory);
      }
    }
  });
}

TEST(TheoreticalBubble, OfZeroBubbleHasTheShortestOfThreeUnitsToFillItWith) {
  PipelineShape shape{.schedule = PipelineSchedule::zero_bubble, .stages = 4, .micro_batches = 8};
  EXPECT_EQ(theoretical_bubble(shape, {1, 1, 1}), 3);
  EXPECT_EQ(theoretical_bubble(shape, {10, 11, 9}), 3 * (10 + 11 - 9));
  EXPECT_EQ(theoretical_bubble(shape, {10, 9, 11}), 3 * 10) << "not 3 (10 + 9 - 11)";
  EXPECT_EQ(theoretical_bubble(shape, {1, 5, 2}), 3 * 5) << "not 3 (1 + 5 - 2)";
  shape.micro_batches = 2;
  EXPECT_EQ(theoretical_bubble(shape, {1, 1, 1}), 5) << "one lag to fill it with, not three";
}

int expected_peak(const PipelineShape& shape, int stage) {
  const int others = shape.stages - stage - 1, pairs = shape.micro_batches * shape.chunks;
  switch (shape.schedule) {
    case PipelineSchedule::gpipe:
      return pairs;
    case PipelineSchedule::one_f_one_b:
      return std::min(pairs, others + 1);
    case PipelineSchedule::interleaved:
      return std::min(pairs, 2 * others + (shape.chunks - 1) * shape.stages + 1);
    case PipelineSchedule::zero_bubble:
      return std::min(pairs, shape.stages);
  }
  return -1;
}

TEST(ActivationPeak, IsAsFormulasSay) {
  for_each_shape([](const PipelineShape& shape) {
    for (int stage = 0; stage < shape.stages; ++stage) {
      const ActivationPeak peak = activation_peak(pipeline_schedule(shape, stage));
      ASSERT_EQ(peak.pairs, expected_peak(shape, stage)) << "stage " << stage;
      if (!shape.recomputes) {
        ASSERT_EQ(peak.whole, peak.pairs) << "stage " << stage;
      }
    }
  });
}

TEST(ActivationPeak, RecomputationKeepsOnePairWholeSaveWhereWeightsLag) {
  for_each_shape([](const PipelineShape& shape) {
    if (!shape.recomputes) return;
    const bool lags = shape.schedule == PipelineSchedule::zero_bubble;
    for (int stage = 0; stage < shape.stages; ++stage)
      ASSERT_EQ(activation_peak(pipeline_schedule(shape, stage)).whole,
                lags ? std::min(shape.micro_batches, stage + 1) : 1)
          << "stage " << stage;
  });
}

std::string failure_of(const std::vector<std::vector<PipelineUnit>>& stages) {
  try {
    replay(stages, {});
  } catch (const InternalError& error) {
    return error.what();
  }
  return "none";
}

TEST(PipelineTimeline, NamesWhatStagesWaitForThatCannotProceed) {
  const std::vector<PipelineUnit> eager{{UnitKind::forward, 0, 0},
                                        {UnitKind::backward, 0, 0},
                                        {UnitKind::forward, 1, 0},
                                        {UnitKind::backward, 1, 0}};
  const std::vector<PipelineUnit> late{{UnitKind::forward, 0, 0},
                                       {UnitKind::forward, 1, 0},
                                       {UnitKind::backward, 0, 0},
                                       {UnitKind::backward, 1, 0}};
  EXPECT_EQ(failure_of({late, eager}), "none");
  const std::string failure = failure_of({eager, late});
  EXPECT_THAT(failure, Mentions("stage 0 ... micro-batch 0 ... chunk 0"));
  EXPECT_THAT(failure, Mentions("stage 1 ... micro-batch 1 ... chunk 0"));
  EXPECT_THAT(failure_of({{{UnitKind::backward, 0, 0}}}), HasSubstr("stage 0 waits"));
  EXPECT_THAT(failure_of({{{UnitKind::forward, 0, 0}, {UnitKind::backward_weight, 0, 0}}}),
              Mentions("backward_weight ... micro-batch 0"));
}

TEST(ScheduleDrawing, HasALineOfMicroBatchesOverOneOfKinds) {
  EXPECT_EQ(draw_schedule({.stages = 2, .micro_batches = 3}),
            "stage 0   01..00211.22\n"
            "          FF  BBFBB BB\n"
            "stage 1   .000111222..\n"
            "           FBBFBBFBB\n"
            "micro-batch 0-9a-zA-Z; . nothing; F forward; B backward, two columns\n");
  EXPECT_EQ(
      draw_schedule(
          {.schedule = PipelineSchedule::zero_bubble, .stages = 2, .micro_batches = 2, .recomputes = true}),
      "stage 0   01000111\n"
      "          FFRIWRIW\n"
      "stage 1   .001101.\n"
      "           FIFIWW\n"
      "micro-batch 0-9a-zA-Z; . nothing; F forward; R recompute; I backward of inputs; W backward of "
      "weights\n");
}

TEST(ScheduleDrawing, ShowsChunksBelow) {
  EXPECT_EQ(draw_schedule({.schedule = PipelineSchedule::interleaved, .micro_batches = 1, .chunks = 2}),
            "stage 0   000000\n"
            "          FFBBBB\n"
            "          011100\n"
            "micro-batch 0-9a-zA-Z; . nothing; F forward; B backward, two columns; third line: chunk\n");
}

TEST(ScheduleDrawing, LeavesOutTheMiddleOfALongStep) {
  const std::string text = draw_schedule({.stages = 1, .micro_batches = 100});
  EXPECT_THAT(text, HasSubstr("stage 0   000111222"));
  EXPECT_THAT(text, HasSubstr(" ... "));
  EXPECT_THAT(text, HasSubstr("FBBFB     BBF"));
  EXPECT_EQ(text.find('\n'), 10u + 80 + 5 + 80);
}

TEST(ScheduleComparison, HasALineForEachScheduleThatCanTakeTheShape) {
  PipelineShape shape{.stages = 4, .micro_batches = 8};
  const std::string text = compare_schedules(shape);
  EXPECT_THAT(text, HasSubstr("\n  gpipe                          33    27.3 %         34.5   8 8 8 8\n"));
  EXPECT_THAT(text, HasSubstr("\n* 1f1b                           33    27.3 %           37   4 3 2 1\n"));
  EXPECT_THAT(text,
              HasSubstr("\n  interleaved, chunks=2        28.5    15.8 %           32   5.5 4.5 3.5 2.5\n"));
  EXPECT_THAT(text, HasSubstr("\n  zero_bubble                    27    11.1 %           30   4 4 4 4\n"));
  shape.micro_batches = 6;
  EXPECT_THAT(compare_schedules(shape), Not(HasSubstr("interleaved")));
  shape.recomputes = true;
  EXPECT_THAT(compare_schedules(shape), HasSubstr("4 4 4 4 (1 2 3 4)"));
}

}  // namespace
}  // namespace lockstep::layout
