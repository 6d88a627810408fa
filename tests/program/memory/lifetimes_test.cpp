#include "program/memory/lifetimes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "program/random_programs.h"

namespace lockstep::program {
namespace {

using testing::IsEmpty;
using testing::UnorderedElementsAre;
using testing::UnorderedElementsAreArray;

/// Buffers of 256 bytes, all in the arena, and instructions that write some of them.
class LifetimeMaker {
 public:
  LifetimeMaker(int lanes, int buffers) {
    for (int l = 0; l < lanes; ++l) program.add_lane("lane" + std::to_string(l), LaneKind::compute);
    for (int b = 0; b < buffers; ++b)
      program.add_buffer("b" + std::to_string(b), Space::arena, Category::workspace, 256);
  }
  void add(int lane, const std::vector<int>& buffers, std::vector<Dependency> after = {}) {
    Instruction instruction;
    instruction.kind = InstructionKind::add;
    instruction.lane = lane;
    for (const int buffer : buffers)
      instruction.operands.push_back({Role::destination, 0, Access::write, program.whole(buffer)});
    instruction.after = std::move(after);
    program.instructions.push_back(std::move(instruction));
  }
  Program program;
};

std::vector<int> in_use_with(const Program& program, int buffer) {
  Lifetimes lifetimes(program);
  for (int other = 0; other < static_cast<int>(program.buffers.size()); ++other) lifetimes.enter(other);
  return lifetimes.in_use_with(buffer);
}

TEST(Lifetimes, EndWithTheLastAccess) {
  LifetimeMaker m(1, 3);
  m.add(0, {0});
  m.add(0, {0, 1});
  m.add(0, {2});
  EXPECT_THAT(in_use_with(m.program, 0), UnorderedElementsAre(1));
  EXPECT_THAT(in_use_with(m.program, 1), UnorderedElementsAre(0));
  EXPECT_THAT(in_use_with(m.program, 2), IsEmpty());
}

TEST(Lifetimes, MeetOnLanesWithoutAnOrder) {
  LifetimeMaker m(2, 2);
  m.add(0, {0});
  m.add(1, {1});
  EXPECT_THAT(in_use_with(m.program, 0), UnorderedElementsAre(1));
  m.program.instructions[1].after = {{0, 0}};
  EXPECT_THAT(in_use_with(m.program, 0), IsEmpty());
}

TEST(Lifetimes, StretchAroundWhatHappensOnOtherLanesInBetween) {
  // Buffer 0 is used on lane 0 before, and on lane 2 after, what uses buffer 1 on lane 1: on no lane do both
  // stand.
  LifetimeMaker m(3, 2);
  m.add(0, {0});
  m.add(1, {1}, {{0, 0}});
  m.add(2, {0}, {{1, 0}});
  EXPECT_THAT(in_use_with(m.program, 0), UnorderedElementsAre(1));
  EXPECT_THAT(in_use_with(m.program, 1), UnorderedElementsAre(0));
}

TEST(Lifetimes, CountOnlyWithinAnIteration) {
  LifetimeMaker m(2, 2);
  m.add(0, {0});
  m.add(1, {1});
  m.program.instructions[1].after = {{0, 1}};
  EXPECT_THAT(in_use_with(m.program, 0), UnorderedElementsAre(1));
}

TEST(Lifetimes, AreOfEnteredBuffersThatSomethingUses) {
  LifetimeMaker m(1, 3);
  m.add(0, {0, 1});
  Lifetimes lifetimes(m.program);
  EXPECT_THAT(lifetimes.in_use_with(0), IsEmpty());
  lifetimes.enter(1);
  lifetimes.enter(2);  // which nothing uses
  EXPECT_THAT(lifetimes.in_use_with(0), UnorderedElementsAre(1));
  EXPECT_THAT(lifetimes.in_use_with(0), UnorderedElementsAre(1));
  EXPECT_THAT(lifetimes.in_use_with(2), IsEmpty());
}

TEST(Lifetimes, AreThoseOfPlainSearchInRandomPrograms) {
  std::mt19937 random(9);
  int apart = 0, together = 0;
  for (int round = 0; round < 120; ++round) {
    const Program program = random_program(random, {.most_lanes = 5, .instructions = 50, .buffers = 20});
    const auto before = plain_order(program, 1);
    std::vector<std::vector<size_t>> users(program.buffers.size());
    for (size_t i = 0; i < program.instructions.size(); ++i)
      for (const Operand& operand : program.instructions[i].operands)
        if (program.buffers[static_cast<size_t>(operand.range.buffer)].space == Space::arena)
          users[static_cast<size_t>(operand.range.buffer)].push_back(i);
    const auto ends_before = [&](size_t a, size_t b) {
      for (size_t i : users[a])
        for (size_t j : users[b])
          if (!before[i][j]) return false;
      return true;
    };
    for (size_t a = 0; a < program.buffers.size(); ++a) {
      std::vector<int> expected;
      for (size_t b = 0; b < program.buffers.size(); ++b) {
        if (a == b) continue;
        const bool meet = !ends_before(a, b) && !ends_before(b, a);
        if (meet) expected.push_back(static_cast<int>(b));
        ++(meet ? together : apart);
      }
      ASSERT_THAT(in_use_with(program, static_cast<int>(a)), UnorderedElementsAreArray(expected))
          << "round " << round << ", buffer " << a;
    }
  }
  EXPECT_GT(apart, 5000);
  EXPECT_GT(together, 5000);
}

}  // namespace
}  // namespace lockstep::program
