#include "layout/pipeline_events.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <string>
#include <tuple>

namespace lockstep::layout {
namespace {

using EventKind = PipelineEvent::Kind;

/// "F0", "B1"; of a message ">F0" where it leaves, "<F0" where it arrives.
std::string events_text(const std::vector<PipelineEvent>& events) {
  std::string text;
  for (const auto& event : events) {
    const char* mark = event.kind == EventKind::unit ? "" : event.kind == EventKind::send ? ">" : "<";
    const char* unit = event.unit.kind == PipelineUnit::Kind::forward ? "F" : "B";
    text += std::string(text.empty() ? "" : " ") + mark + unit + std::to_string(event.unit.micro_batch);
  }
  return text;
}

// Two stages, one forward and one backward in turn. The second one waits for an input while it computes with
// the one before.
//
//     time      0  1  2  3  4  5  6  7  8  9  10 11
//     stage 0   F0 F1       B0 B0 F2 B1 B1    B2 B2
//     stage 1      F0 B0 B0 F1 B1 B1 F2 B2 B2
TEST(PipelineEvents, StandAsTheTableSays) {
  const PipelineShape shape{.schedule = PipelineSchedule::one_f_one_b, .stages = 2, .micro_batches = 3};
  EXPECT_EQ(events_text(pipeline_events(shape, 0)), "F0 >F0 F1 >F1 <B0 B0 <B1 F2 >F2 B1 <B2 B2");
  EXPECT_EQ(events_text(pipeline_events(shape, 1)), "<F0 <F1 F0 B0 >B0 F1 B1 >B1 <F2 F2 B2 >B2");
}

TEST(PipelineEvents, OfOneStageAreItsUnits) {
  EXPECT_EQ(events_text(pipeline_events({.stages = 1, .micro_batches = 2}, 0)), "F0 B0 F1 B1");
}

TEST(PipelineEvents, OfAnEvaluationGoForward) {
  EXPECT_EQ(events_text(evaluation_events({.stages = 2, .micro_batches = 3}, 0)), "F0 >F0 F1 >F1 F2 >F2");
  EXPECT_EQ(events_text(evaluation_events({.stages = 2, .micro_batches = 3}, 1)), "<F0 <F1 F0 <F2 F1 F2");
}

using Message = std::tuple<int, int, int>;  // from piece, to piece, micro-batch
Message message_of(const PipelineEvent& event) {
  return {event.piece, event.receiver, event.unit.micro_batch};
}

/// Each rank does one event after the other, and a message passes where both of its ends stand at it.
void expect_no_deadlock(const std::vector<std::vector<PipelineEvent>>& stages, const std::string& name) {
  std::vector<size_t> at(stages.size(), 0);
  const auto standing = [&](size_t stage) -> const PipelineEvent* {
    return at[stage] < stages[stage].size() ? &stages[stage][at[stage]] : nullptr;
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t stage = 0; stage < stages.size(); ++stage) {
      const PipelineEvent* own = standing(stage);
      if (own == nullptr) continue;
      if (own->kind == EventKind::unit) {
        ++at[stage], moved = true;
        continue;
      }
      for (size_t other = 0; other < stages.size(); ++other) {
        const PipelineEvent* theirs = standing(other);
        if (other == stage || theirs == nullptr || theirs->kind == EventKind::unit ||
            theirs->kind == own->kind || message_of(*theirs) != message_of(*own))
          continue;
        ++at[stage], ++at[other], moved = true;
        break;
      }
    }
  }
  for (size_t stage = 0; stage < stages.size(); ++stage)
    EXPECT_EQ(at[stage], stages[stage].size()) << name << ", stage " << stage << " of " << stages.size();
}

/// What a unit reads has come before, and what it makes goes after.
void expect_order(const std::vector<PipelineEvent>& events, int pieces, const std::string& name) {
  std::map<Message, int> come;
  std::map<std::pair<int, int>, int> forward, backward;
  for (const auto& event : events) {
    const bool goes_forward = event.unit.kind == PipelineUnit::Kind::forward;
    if (event.kind == EventKind::receive) ++come[message_of(event)];
    const std::pair made{event.piece, event.unit.micro_batch};
    if (event.kind == EventKind::send) {
      EXPECT_EQ((goes_forward ? forward : backward)[made], 1) << name;
    }
    if (event.kind != EventKind::unit || event.unit.kind == PipelineUnit::Kind::backward_weight) continue;
    const int giver = goes_forward ? event.piece - 1 : event.piece + 1;
    if (giver >= 0 && giver < pieces) {
      const int count = come[{giver, event.piece, event.unit.micro_batch}];
      EXPECT_EQ(count, 1) << name;
    }
    ++(goes_forward ? forward : backward)[made];
  }
}

TEST(PipelineEvents, NeverWaitForEachOtherWhereNothingIsBuffered) {
  for (const auto schedule : {PipelineSchedule::gpipe, PipelineSchedule::one_f_one_b,
                              PipelineSchedule::interleaved, PipelineSchedule::zero_bubble})
    for (int stages = 1; stages <= 8; ++stages)
      for (int micro_batches = 1; micro_batches <= 24; ++micro_batches)
        for (int chunks = 1; chunks <= 3; ++chunks) {
          const bool interleaved = schedule == PipelineSchedule::interleaved;
          if (interleaved != (chunks > 1) || (interleaved && (stages == 1 || micro_batches % stages != 0)))
            continue;
          const PipelineShape shape{
              .schedule = schedule, .stages = stages, .micro_batches = micro_batches, .chunks = chunks};
          const std::string name = std::to_string(static_cast<int>(schedule)) + ": " +
                                   std::to_string(stages) + " stages, " + std::to_string(micro_batches) +
                                   " micro-batches, " + std::to_string(chunks) + " chunks";
          std::vector<std::vector<PipelineEvent>> step, evaluation;
          for (int stage = 0; stage < stages; ++stage) {
            step.push_back(pipeline_events(shape, stage));
            evaluation.push_back(evaluation_events(shape, stage));
            expect_order(step.back(), stages * chunks, name);
            expect_order(evaluation.back(), stages * chunks, name);
          }
          expect_no_deadlock(step, name);
          expect_no_deadlock(evaluation, name);
        }
}

}  // namespace
}  // namespace lockstep::layout
