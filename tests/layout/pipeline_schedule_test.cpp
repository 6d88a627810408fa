#include "layout/pipeline_schedule.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "base/index.h"
#include "base/text.h"
#include "lockstep/error.h"
#include "mentions.h"
#include "pipeline_shapes.h"

namespace lockstep::layout {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using UnitKind = PipelineUnit::Kind;
using Units = std::vector<PipelineUnit>;

/// "F0 F1 B0 B1"; of several chunks "F0a F0b": a letter for each.
std::string schedule_text(const PipelineShape& shape, int stage) {
  std::vector<std::string> parts;
  for (const PipelineUnit& unit : pipeline_schedule(shape, stage)) {
    const std::string chunk = shape.chunks > 1 ? std::string(1, static_cast<char>('a' + unit.chunk)) : "";
    parts.push_back(fmt::format("{}{}{}", nth("FRBIW", unit.kind), unit.micro_batch, chunk));
  }
  return join(parts, " ");
}

std::vector<std::string> texts_of(const PipelineShape& shape) {
  std::vector<std::string> texts;
  for (int stage = 0; stage < shape.stages; ++stage) texts.push_back(schedule_text(shape, stage));
  return texts;
}

TEST(GpipeSchedule, RunsAllForwardsThenAllBackwardsInAscendingOrder) {
  PipelineShape shape{.schedule = PipelineSchedule::gpipe, .stages = 2, .micro_batches = 3};
  EXPECT_THAT(texts_of(shape), ElementsAre("F0 F1 F2 B0 B1 B2",  //
                                           "F0 F1 F2 B0 B1 B2"));
  shape.stages = 3;
  shape.micro_batches = 2;
  EXPECT_THAT(texts_of(shape), ElementsAre("F0 F1 B0 B1",  //
                                           "F0 F1 B0 B1",  //
                                           "F0 F1 B0 B1"));
}

TEST(OneFOneBSchedule, TakesTurnsOnceTheFirstMicroBatchIsBack) {
  PipelineShape shape{.stages = 2, .micro_batches = 4};
  EXPECT_THAT(texts_of(shape), ElementsAre("F0 F1 B0 F2 B1 F3 B2 B3",  //
                                           "F0 B0 F1 B1 F2 B2 F3 B3"));
  shape.stages = 3;
  EXPECT_THAT(texts_of(shape), ElementsAre("F0 F1 F2 B0 F3 B1 B2 B3",  //
                                           "F0 F1 B0 F2 B1 F3 B2 B3",  //
                                           "F0 B0 F1 B1 F2 B2 F3 B3"));
  shape.stages = 4;
  shape.micro_batches = 5;
  EXPECT_THAT(texts_of(shape), ElementsAre("F0 F1 F2 F3 B0 F4 B1 B2 B3 B4",  //
                                           "F0 F1 F2 B0 F3 B1 F4 B2 B3 B4",  //
                                           "F0 F1 B0 F2 B1 F3 B2 F4 B3 B4",  //
                                           "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4"));
}

TEST(OneFOneBSchedule, TakesFewerMicroBatchesThanStages) {
  const PipelineShape shape{.stages = 4, .micro_batches = 2};
  EXPECT_THAT(texts_of(shape), ElementsAre("F0 F1 B0 B1",  //
                                           "F0 F1 B0 B1",  //
                                           "F0 F1 B0 B1",  //
                                           "F0 B0 F1 B1"));
}

TEST(InterleavedSchedule, TakesMicroBatchesThroughChunksInGroupsOfStages) {
  const PipelineShape shape{
      .schedule = PipelineSchedule::interleaved, .stages = 2, .micro_batches = 4, .chunks = 2};
  EXPECT_THAT(texts_of(shape),
              ElementsAre("F0a F1a F0b F1b F2a B0b F3a B1b F2b B0a F3b B1a B2b B3b B2a B3a",
                          "F0a F1a F0b B0b F1b B1b F2a B0a F3a B1a F2b B2b F3b B3b B2a B3a"));
}

TEST(ZeroBubbleSchedule, LagsWithWeightsByTheNumberOfTheStage) {
  PipelineShape shape{.schedule = PipelineSchedule::zero_bubble, .stages = 3, .micro_batches = 4};
  EXPECT_THAT(texts_of(shape),
              ElementsAre("F0 F1 F2 I0 W0 F3 I1 W1 I2 W2 I3 W3", "F0 F1 I0 F2 I1 W0 F3 I2 W1 I3 W2 W3",
                          "F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3"));
  shape.stages = 4;
  shape.micro_batches = 5;
  EXPECT_THAT(texts_of(shape), ElementsAre("F0 F1 F2 F3 I0 W0 F4 I1 W1 I2 W2 I3 W3 I4 W4",
                                           "F0 F1 F2 I0 F3 I1 W0 F4 I2 W1 I3 W2 I4 W3 W4",
                                           "F0 F1 I0 F2 I1 F3 I2 W0 F4 I3 W1 I4 W2 W3 W4",
                                           "F0 I0 F1 I1 F2 I2 F3 I3 W0 F4 I4 W1 W2 W3 W4"));
}

TEST(PipelineSchedule, OneStageIsAPipelineToo) {
  EXPECT_EQ(schedule_text({.schedule = PipelineSchedule::gpipe, .micro_batches = 2}, 0), "F0 F1 B0 B1");
  EXPECT_EQ(schedule_text({.micro_batches = 2}, 0), "F0 B0 F1 B1");
  EXPECT_EQ(schedule_text({.schedule = PipelineSchedule::zero_bubble, .micro_batches = 2}, 0),
            "F0 I0 W0 F1 I1 W1");
  EXPECT_EQ(schedule_text({.schedule = PipelineSchedule::interleaved, .micro_batches = 2, .chunks = 2}, 0),
            "F0a F0b B0b F1a B0a F1b B1b B1a");
}

TEST(PipelineSchedule, RecomputesWhatDoesNotDirectlyFollowItsForward) {
  EXPECT_THAT(texts_of({.stages = 2, .micro_batches = 3, .recomputes = true}),
              ElementsAre("F0 F1 R0 B0 F2 R1 B1 R2 B2",  //
                          "F0 B0 F1 B1 F2 B2"));
  EXPECT_THAT(
      texts_of(
          {.schedule = PipelineSchedule::zero_bubble, .stages = 2, .micro_batches = 2, .recomputes = true}),
      ElementsAre("F0 F1 R0 I0 W0 R1 I1 W1",  //
                  "F0 I0 F1 I1 W0 W1"));
  EXPECT_EQ(schedule_text({.schedule = PipelineSchedule::gpipe, .micro_batches = 2, .recomputes = true}, 0),
            "F0 F1 R0 B0 R1 B1");
}

std::string schedule_refusal(const PipelineShape& shape) {
  try {
    pipeline_schedule(shape, 0);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(PipelineSchedule, InterleavedRefusesWhatStagesDoNotDivide) {
  PipelineShape shape{
      .schedule = PipelineSchedule::interleaved, .stages = 4, .micro_batches = 6, .chunks = 2};
  EXPECT_FALSE(takes(shape));
  EXPECT_THAT(schedule_refusal(shape),
              Mentions("6 = 1 x 4 stages ... 2 ... trainer.micro_batch ... 4 ... 8"));
  shape.micro_batches = 3;
  EXPECT_THAT(schedule_refusal(shape), Mentions("3 = 0 x 4 stages ... 3 ... trainer.micro_batch ... 4"));
  shape.micro_batches = 8;
  EXPECT_EQ(schedule_refusal(shape), "accepted");
  EXPECT_TRUE(takes(shape));
  shape.chunks = 65536;
  shape.micro_batches = 65536;
  EXPECT_THAT(schedule_refusal(shape), HasSubstr("4294967296"));
}

TEST(PipelineSchedule, ShapesFollowFromLayouts) {
  const PipelineShape plain = pipeline_shape(parse_layout("dp=2,pp=4"), 8);
  EXPECT_EQ(plain.schedule, PipelineSchedule::one_f_one_b);
  EXPECT_EQ(plain.stages, 4);
  EXPECT_EQ(plain.micro_batches, 8);
  EXPECT_EQ(plain.chunks, 1);
  EXPECT_FALSE(plain.recomputes);
  const PipelineShape pieces =
      pipeline_shape(parse_layout("pp=2,schedule=interleaved,chunks=3,recompute=full"), 2);
  EXPECT_EQ(pieces.schedule, PipelineSchedule::interleaved);
  EXPECT_EQ(pieces.chunks, 3);
  EXPECT_TRUE(pieces.recomputes);
  EXPECT_FALSE(pipeline_shape(parse_layout("pp=2,recompute=selective"), 2).recomputes);
}

bool is_backward(const PipelineUnit& unit) {
  return unit.kind == UnitKind::backward || unit.kind == UnitKind::backward_input;
}

Units of_kinds(const Units& units, std::initializer_list<UnitKind> kinds) {
  Units found;
  std::copy_if(units.begin(), units.end(), std::back_inserter(found), [&](const PipelineUnit& unit) {
    return std::find(kinds.begin(), kinds.end(), unit.kind) != kinds.end();
  });
  return found;
}

std::vector<int> micro_batches_of(const Units& units, int chunk) {
  std::vector<int> found;
  for (const PipelineUnit& unit : units)
    if (unit.chunk == chunk) found.push_back(unit.micro_batch);
  return found;
}

TEST(PipelineSchedule, EachKindTakesEachMicroBatchOnceInAscendingOrder) {
  for_each_shape([](const PipelineShape& shape) {
    const bool splits = shape.schedule == PipelineSchedule::zero_bubble;
    std::vector<int> ascending;
    for (int i = 0; i < shape.micro_batches; ++i) ascending.push_back(i);
    for (int stage = 0; stage < shape.stages; ++stage) {
      const Units units = pipeline_schedule(shape, stage);
      const auto pairs = static_cast<size_t>(shape.micro_batches * shape.chunks);
      ASSERT_EQ(of_kinds(units, {UnitKind::forward}).size(), pairs);
      ASSERT_EQ(of_kinds(units, {UnitKind::backward}).size(), splits ? 0 : pairs);
      ASSERT_EQ(of_kinds(units, {UnitKind::backward_input}).size(), splits ? pairs : 0);
      ASSERT_EQ(of_kinds(units, {UnitKind::backward_weight}).size(), splits ? pairs : 0);
      for (int chunk = 0; chunk < shape.chunks; ++chunk) {
        ASSERT_EQ(micro_batches_of(of_kinds(units, {UnitKind::forward}), chunk), ascending);
        ASSERT_EQ(micro_batches_of(of_kinds(units, {UnitKind::backward, UnitKind::backward_input}), chunk),
                  ascending);
        ASSERT_EQ(micro_batches_of(of_kinds(units, {UnitKind::backward, UnitKind::backward_weight}), chunk),
                  ascending);
      }
    }
  });
}

TEST(PipelineSchedule, BackwardsFollowTheirForwardsAndWeightsTheirInputs) {
  for_each_shape([](const PipelineShape& shape) {
    for (int stage = 0; stage < shape.stages; ++stage) {
      std::map<std::tuple<int, int>, UnitKind> last;
      for (const PipelineUnit& unit : pipeline_schedule(shape, stage)) {
        const auto [before, first] =
            last.try_emplace(std::tuple(unit.micro_batch, unit.chunk), UnitKind::forward);
        ASSERT_EQ(first, unit.kind == UnitKind::forward);
        if (unit.kind == UnitKind::backward_weight) {
          ASSERT_EQ(before->second, UnitKind::backward_input);
        }
        if (unit.kind == UnitKind::recompute) {
          ASSERT_EQ(before->second, UnitKind::forward);
        }
        if (is_backward(unit)) {
          ASSERT_TRUE(before->second == UnitKind::forward || before->second == UnitKind::recompute);
        }
        before->second = unit.kind;
      }
    }
  });
}

TEST(PipelineSchedule, ARecomputeStandsBeforeEachBackwardThatDoesNotFollowItsForward) {
  for_each_shape([](const PipelineShape& shape) {
    for (int stage = 0; stage < shape.stages; ++stage) {
      const Units units = pipeline_schedule(shape, stage);
      for (size_t i = 1; i < units.size(); ++i) {
        const PipelineUnit &unit = units[i], &before = units[i - 1];
        const PipelineUnit own_forward{UnitKind::forward, unit.micro_batch, unit.chunk};
        const PipelineUnit own_recompute{UnitKind::recompute, unit.micro_batch, unit.chunk};
        if (unit.kind == UnitKind::recompute) {
          ASSERT_TRUE(shape.recomputes && before != own_forward);
        }
        if (shape.recomputes && is_backward(unit)) {
          ASSERT_TRUE(before == own_forward || before == own_recompute);
        }
      }
    }
  });
}

/// What stage `from` sends to stage `to`, as the units of `to` that read it: as they are run, or as those
/// that make it are.
Units messages_taken(const PipelineShape& shape, int from, int to) {
  Units taken;
  for (const PipelineUnit& unit : pipeline_schedule(shape, to)) {
    const int piece = unit.chunk * shape.stages + to;
    const int source = unit.kind == UnitKind::forward ? piece - 1 : piece + 1;
    if (unit.kind != UnitKind::forward && !is_backward(unit)) continue;
    if (source >= 0 && source < shape.stages * shape.chunks && source % shape.stages == from)
      taken.push_back(unit);
  }
  return taken;
}
Units messages_sent(const PipelineShape& shape, int from, int to) {
  Units sent;
  for (const PipelineUnit& unit : pipeline_schedule(shape, from)) {
    const int piece = unit.chunk * shape.stages + from;
    const int target = unit.kind == UnitKind::forward ? piece + 1 : piece - 1;
    if (unit.kind != UnitKind::forward && !is_backward(unit)) continue;
    if (target >= 0 && target < shape.stages * shape.chunks && target % shape.stages == to)
      sent.push_back({unit.kind, unit.micro_batch, target / shape.stages});
  }
  return sent;
}

TEST(PipelineSchedule, MessagesAreTakenInTheOrderInWhichTheyAreSent) {
  for_each_shape([](const PipelineShape& shape) {
    for (int from = 0; from < shape.stages; ++from)
      for (const int to : {(from + 1) % shape.stages, (from + shape.stages - 1) % shape.stages}) {
        if (from == to) continue;
        ASSERT_EQ(messages_sent(shape, from, to), messages_taken(shape, from, to)) << from << " to " << to;
      }
  });
}

/// Stages that send each other activations and gradients. Messages of one kind between two stages arrive in
/// the order in which they were sent; a stage takes one when it has posted its receive, which it does for the
/// units that it runs now and `ahead` units later; and it cannot send the next while the one before is not
/// taken.
class MessageModel {
 public:
  MessageModel(const PipelineShape& shape, size_t ahead) : shape_(shape), ahead_(ahead) {
    for (int stage = 0; stage < shape.stages; ++stage) schedules_.push_back(pipeline_schedule(shape, stage));
    next_.resize(schedules_.size());
    posted_.resize(schedules_.size());
  }

  /// Whether all units run.
  bool proceeds() {
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t stage = 0; stage < schedules_.size(); ++stage) {
        post(stage);
        while (run_next(stage)) {
          moved = true;
          post(stage);
        }
      }
    }
    for (size_t stage = 0; stage < schedules_.size(); ++stage)
      if (next_[stage] < schedules_[stage].size()) return false;
    return true;
  }

 private:
  enum class What { activations, gradients };
  /// What piece `piece` reads or makes of a micro-batch, on its way to stage `to`.
  struct Message {
    int micro_batch, piece;
    bool operator==(const Message&) const = default;
  };
  struct Channel {
    std::vector<Message> sent, posted;
  };

  int piece_of(const PipelineUnit& unit, size_t stage) const {
    return unit.chunk * shape_.stages + static_cast<int>(stage);
  }
  bool exists(int piece) const { return piece >= 0 && piece < shape_.stages * shape_.chunks; }

  /// The channel and the message that a unit waits for, or that it sends; null where there is none.
  Channel* input_of(const PipelineUnit& unit, size_t stage, Message& message) {
    const int piece = piece_of(unit, stage);
    const bool forward = unit.kind == UnitKind::forward;
    const int from = forward ? piece - 1 : piece + 1;
    if ((!forward && !is_backward(unit)) || !exists(from)) return nullptr;
    message = {unit.micro_batch, piece};
    return &channels_[{forward ? What::activations : What::gradients, from % shape_.stages,
                       static_cast<int>(stage)}];
  }
  Channel* output_of(const PipelineUnit& unit, size_t stage, Message& message) {
    const int piece = piece_of(unit, stage);
    const bool forward = unit.kind == UnitKind::forward;
    const int to = forward ? piece + 1 : piece - 1;
    if ((!forward && !is_backward(unit)) || !exists(to)) return nullptr;
    message = {unit.micro_batch, to};
    return &channels_[{forward ? What::activations : What::gradients, static_cast<int>(stage),
                       to % shape_.stages}];
  }

  void post(size_t stage) {
    for (; posted_[stage] < std::min(schedules_[stage].size(), next_[stage] + 1 + ahead_); ++posted_[stage]) {
      Message message{};
      if (Channel* channel = input_of(schedules_[stage][posted_[stage]], stage, message))
        channel->posted.push_back(message);
    }
  }

  bool run_next(size_t stage) {
    if (next_[stage] == schedules_[stage].size()) return false;
    const PipelineUnit& unit = schedules_[stage][next_[stage]];
    Message message{};
    if (const Channel* input = input_of(unit, stage, message)) {
      const auto place =
          std::find(input->posted.begin(), input->posted.end(), message) - input->posted.begin();
      const auto index = static_cast<size_t>(place);
      if (index >= input->sent.size()) return false;
      EXPECT_EQ(input->sent[index], message) << "taken in another order than sent";
    }
    if (Channel* output = output_of(unit, stage, message)) {
      if (output->sent.size() > output->posted.size()) return false;
      output->sent.push_back(message);
    }
    ++next_[stage];
    return true;
  }

  PipelineShape shape_;
  size_t ahead_;
  std::vector<Units> schedules_;
  std::vector<size_t> next_, posted_;
  std::map<std::tuple<What, int, int>, Channel> channels_;
};

TEST(PipelineSchedule, ProceedsWithOneMessageUnderWayAndReceivesPostedAtMostOneUnitAhead) {
  for_each_shape([](const PipelineShape& shape) {
    for (const size_t ahead : {0u, 1u}) ASSERT_TRUE(MessageModel(shape, ahead).proceeds()) << ahead;
  });
}

}  // namespace
}  // namespace lockstep::layout
