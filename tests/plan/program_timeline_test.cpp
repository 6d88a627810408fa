#include "plan/program_timeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "lockstep/error.h"
#include "mentions.h"

namespace lockstep::plan {
namespace {

using program::InstructionKind;
using program::LaneKind;
using program::Program;
using program::Role;
using testing::ElementsAre;
using testing::HasSubstr;

/// Two ranks with a compute lane (0), a lane for what rank 0 sends (1), and one for what it receives (2).
Program make_program(int rank) {
  Program program{.name = "step", .rank = rank, .world_size = 2};
  program.add_lane("compute", LaneKind::compute);
  program.add_lane("there", LaneKind::comm);
  program.add_lane("back", LaneKind::comm);
  program.groups = {{"there", {0, 1}}, {"back", {0, 1}}};
  program.add_buffer("x", program::Space::arena, program::Category::activations, 4);
  return program;
}

/// `segment` is how long it takes.
int compute(Program& program, int time, std::vector<program::Dependency> after = {}) {
  program.instructions.push_back(
      {.kind = InstructionKind::forward, .lane = 0, .segment = time, .after = std::move(after)});
  return static_cast<int>(program.instructions.size()) - 1;
}

int pass(Program& program, Role role, int lane, std::vector<program::Dependency> after = {}) {
  program::Instruction exchange{.kind = InstructionKind::exchange, .lane = lane, .group = lane - 1};
  exchange.operands.push_back({.role = role, .range = program.whole(0), .peer = 1 - program.rank});
  exchange.after = std::move(after);
  program.instructions.push_back(exchange);
  return static_cast<int>(program.instructions.size()) - 1;
}

double by_segment(int, const program::Instruction& instruction) { return instruction.segment; }

std::vector<double> starts_of(const ProgramTimeline& timeline, int rank) {
  std::vector<double> starts;
  for (const auto& timed : timeline.ranks[static_cast<size_t>(rank)]) starts.push_back(timed.start);
  return starts;
}

TEST(ProgramTimeline, MessagesTakeTheirTimeFromWhenBothEndsArePosted) {
  Program sender = make_program(0), receiver = make_program(1);
  const int made = compute(sender, 3);
  pass(sender, Role::send, 1, {{made}});
  compute(sender, 2);
  const int arrives = pass(receiver, Role::receive, 1);
  compute(receiver, 1);
  compute(receiver, 4, {{arrives}});
  const auto timelines =
      replay(std::vector{sender, receiver}, {.compute = by_segment, .communication = {.latency = 0.5}});
  ASSERT_EQ(timelines.size(), 1u);
  EXPECT_THAT(starts_of(timelines[0], 0), ElementsAre(0, 3, 3));
  EXPECT_THAT(starts_of(timelines[0], 1), ElementsAre(0, 0, 3.5));
  EXPECT_EQ(timelines[0].ranks[0][1].end, 3.5) << "the sender's lane is free when it is there";
  EXPECT_EQ(timelines[0].duration(), 7.5);
  EXPECT_THAT(timelines[0].busy, ElementsAre(5, 5));
}

/// The sender's second message has all that it needs, but stands after one that has not.
TEST(ProgramTimeline, CommunicationsOfARankStartInProgramOrderUnlessTheirLanesDo) {
  Program sender = make_program(0), receiver = make_program(1);
  const int made = compute(sender, 3);
  pass(sender, Role::send, 1, {{made}});
  pass(sender, Role::send, 2);
  pass(receiver, Role::receive, 1);
  pass(receiver, Role::receive, 2);
  const std::vector<Program> programs{sender, receiver};
  InstructionTimes times{.compute = by_segment, .communication = {.latency = 1}};
  EXPECT_THAT(starts_of(replay(programs, times)[0], 0), ElementsAre(0, 3, 3));
  times.communicates_in_order = false;
  EXPECT_THAT(starts_of(replay(programs, times)[0], 0), ElementsAre(0, 3, 0));
}

TEST(ProgramTimeline, IterationsWaitForReportsAndForWhatTheyDependOn) {
  Program program = make_program(0);
  program.world_size = 1;
  program.add_lane("other", LaneKind::compute);
  program.add_buffer("verdict", program::Space::scalars, program::Category::workspace, 4);
  compute(program, 1, {{2, 1}});  // what the one before has left
  compute(program, 2);
  program.instructions.push_back({.kind = InstructionKind::forward, .lane = 3, .segment = 10});
  program.instructions[1].operands.push_back(
      {.role = Role::verdict, .access = program::Access::write, .range = program.whole(1)});
  const auto timelines = replay(std::vector{program}, {.compute = by_segment}, 3);
  EXPECT_THAT(starts_of(timelines[0], 0), ElementsAre(0, 1, 0));
  EXPECT_THAT(starts_of(timelines[1], 0), ElementsAre(10, 11, 10)) << "the report was there at 3";
  EXPECT_THAT(starts_of(timelines[2], 0), ElementsAre(20, 21, 20));
  program.instructions[0].after.clear();
  EXPECT_THAT(starts_of(replay(std::vector{program}, {.compute = by_segment}, 2)[1], 0),
              ElementsAre(3, 4, 10));
}

/// A sender on one host with a receiver on the other: every piece is handed over, passes and is taken.
TEST(ProgramTimeline, MessagesBetweenHostsPassInPieces) {
  Program sender = make_program(0), receiver = make_program(1);
  for (Program* program : {&sender, &receiver}) program->buffer(0).size_bytes = 4 * kMessagePieceBytes;
  pass(sender, Role::send, 1);
  pass(receiver, Role::receive, 1);
  const double piece = static_cast<double>(kMessagePieceBytes);
  InstructionTimes times{.compute = by_segment,
                         .communication = {.link_per_byte = 1 / piece, .handling_per_byte = 0.25 / piece},
                         .hosts = {0, 1}};
  // The link has the first piece at 0.25, and is never idle after it; the last is taken when it is there.
  EXPECT_EQ(replay(std::vector{sender, receiver}, times)[0].duration(), 0.25 + 4 + 0.25);
  times.communication.handling_per_byte = 2 / piece;
  EXPECT_EQ(replay(std::vector{sender, receiver}, times)[0].duration(), 4 * 2 + 1 + 2)
      << "the senders' thread decides";
  times.hosts = {0, 0};
  EXPECT_EQ(replay(std::vector{sender, receiver}, times)[0].duration(), 0) << "within a host";
  times.communication.local_handling_per_byte = 0.5 / piece;
  EXPECT_EQ(replay(std::vector{sender, receiver}, times)[0].duration(), 4 * 0.5 + 0.5);
}

/// Two messages leave a host at the same time, by lanes of their own, and share its link.
TEST(ProgramTimeline, MessagesOfAHostShareItsLink) {
  Program sender = make_program(0), receiver = make_program(1);
  for (Program* program : {&sender, &receiver}) program->buffer(0).size_bytes = 4 * kMessagePieceBytes;
  for (const int lane : {1, 2}) pass(sender, Role::send, lane), pass(receiver, Role::receive, lane);
  const InstructionTimes times{
      .compute = by_segment,
      .communication = {.link_per_byte = 1.0 / static_cast<double>(kMessagePieceBytes)},
      .hosts = {0, 1}};
  const auto step = replay(std::vector{sender, receiver}, times)[0];
  EXPECT_EQ(step.ranks[1][0].end, 7) << "pieces take turns";
  EXPECT_EQ(step.ranks[1][1].end, 8);
}

/// A message of four pieces, after a link was idle: two pass at once. Then it is as slow as ever.
TEST(ProgramTimeline, IdleLinksOfTokenBucketsHaveABurst) {
  Program sender = make_program(0), receiver = make_program(1);
  for (Program* program : {&sender, &receiver}) program->buffer(0).size_bytes = 4 * kMessagePieceBytes;
  const int made = compute(sender, 10);
  pass(sender, Role::send, 1, {{made}});
  pass(receiver, Role::receive, 1);
  pass(sender, Role::send, 1);
  pass(receiver, Role::receive, 1);
  const auto piece = static_cast<double>(kMessagePieceBytes);
  const InstructionTimes times{.compute = by_segment,
                               .communication = {.link_per_byte = 1 / piece, .link_burst_bytes = 2 * piece},
                               .hosts = {0, 1}};
  const auto step = replay(std::vector{sender, receiver}, times)[0];
  EXPECT_EQ(step.ranks[1][0].end, 12);
  EXPECT_EQ(step.ranks[1][1].end, 16);
}

/// What a rank computes ends later by what its thread does for messages meanwhile.
TEST(ProgramTimeline, OneThreadComputesAndHandlesMessages) {
  Program sender = make_program(0), receiver = make_program(1);
  for (Program* program : {&sender, &receiver}) program->buffer(0).size_bytes = 2 * kMessagePieceBytes;
  for (Program* program : {&sender, &receiver}) program->buffer(0).offset = 0;
  pass(sender, Role::send, 1);
  compute(sender, 10);
  pass(receiver, Role::receive, 1);
  const InstructionTimes times{
      .compute = by_segment,
      .communication = {.handling_per_byte = 1.0 / static_cast<double>(kMessagePieceBytes)},
      .hosts = {0, 1},
      .one_thread = true};
  EXPECT_EQ(replay(std::vector{sender, receiver}, times)[0].ranks[0][1].end, 12);
}

TEST(ProgramTimeline, NamesWhatRanksWaitForThatCannotProceed) {
  Program one = make_program(0), other = make_program(1);
  const int first = pass(one, Role::receive, 2);
  pass(one, Role::send, 1, {{first}});
  const int second = pass(other, Role::receive, 1);
  pass(other, Role::send, 2, {{second}});
  try {
    replay(std::vector{one, other}, {.compute = by_segment});
    FAIL() << "it came to an end";
  } catch (const InternalError& error) {
    EXPECT_THAT(error.what(), Mentions("rank 0 ... step instruction 0 (exchange from rank 1, lane back"));
    EXPECT_THAT(error.what(), Mentions("rank 1 ... step instruction 1 (exchange to rank 0, lane back"));
  }
}

}  // namespace
}  // namespace lockstep::plan
