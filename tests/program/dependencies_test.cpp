#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <utility>
#include <vector>

#include "program/program.h"
#include "program/random_programs.h"

namespace lockstep::program {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

/// Instructions of no particular kind: only lanes and operands matter here.
class DependencyMaker {
 public:
  explicit DependencyMaker(int lanes, int buffers) {
    for (int l = 0; l < lanes; ++l) program.add_lane(fmt::format("lane{}", l), LaneKind::compute);
    for (int b = 0; b < buffers; ++b)
      program.add_buffer(fmt::format("b{}", b), Space::arena, Category::workspace, 64);
  }
  void add(int lane, std::vector<Operand> operands) {
    Instruction instruction;
    instruction.kind = InstructionKind::add;
    instruction.lane = lane;
    instruction.operands = std::move(operands);
    program.instructions.push_back(std::move(instruction));
  }
  Operand reads(int buffer, int64_t offset = 0, int64_t size = 64) const {
    return {Role::source, 0, Access::read, {buffer, offset, size}};
  }
  Operand writes(int buffer, int64_t offset = 0, int64_t size = 64) const {
    return {Role::destination, 0, Access::write, {buffer, offset, size}};
  }
  const std::vector<Dependency>& after(int instruction) const {
    return program.instructions[static_cast<size_t>(instruction)].after;
  }
  Program program;
};

TEST(Dependencies, OrderAReadBehindTheWriteAndTheNextWriteBehindTheRead) {
  DependencyMaker m(2, 1);
  m.add(0, {m.writes(0)});
  m.add(1, {m.reads(0)});
  derive_dependencies(m.program);
  EXPECT_THAT(m.after(0), ElementsAre(Dependency{1, 1}));
  EXPECT_THAT(m.after(1), ElementsAre(Dependency{0, 0}));
}

TEST(Dependencies, AreNotNeededWithinALane) {
  DependencyMaker m(1, 1);
  m.add(0, {m.writes(0)});
  m.add(0, {m.reads(0)});
  derive_dependencies(m.program);
  EXPECT_THAT(m.after(0), IsEmpty());
  EXPECT_THAT(m.after(1), IsEmpty());
}

TEST(Dependencies, AreNotNeededBetweenReads) {
  DependencyMaker m(2, 1);
  m.add(0, {m.reads(0)});
  m.add(1, {m.reads(0)});
  derive_dependencies(m.program);
  EXPECT_THAT(m.after(0), IsEmpty());
  EXPECT_THAT(m.after(1), IsEmpty());
}

TEST(Dependencies, CompareBytesNotBuffers) {
  DependencyMaker m(2, 1);
  m.add(0, {m.writes(0, 0, 32)});
  m.add(1, {m.writes(0, 32, 32)});
  derive_dependencies(m.program);
  EXPECT_THAT(m.after(0), IsEmpty());
  EXPECT_THAT(m.after(1), IsEmpty());
}

TEST(Dependencies, ComparePlacedBytesAcrossBuffers) {
  DependencyMaker m(2, 2);
  m.program.buffers[0].offset = 0;
  m.program.buffers[1].offset = 32;
  m.add(0, {m.writes(0)});
  m.add(1, {m.writes(1)});
  derive_dependencies(m.program);
  EXPECT_THAT(m.after(0), ElementsAre(Dependency{1, 1}));
  EXPECT_THAT(m.after(1), ElementsAre(Dependency{0, 0}));
}

TEST(Dependencies, LeaveOutWhatOthersImply) {
  // 2 needs 0's bytes, but also 1's, which already come after 0.
  DependencyMaker m(3, 2);
  m.add(0, {m.writes(0)});
  m.add(1, {m.reads(0), m.writes(1)});
  m.add(2, {m.reads(0), m.reads(1)});
  derive_dependencies(m.program);
  EXPECT_THAT(m.after(2), ElementsAre(Dependency{1, 0}));
  EXPECT_THAT(m.after(0), ElementsAre(Dependency{2, 1}));
}

TEST(Dependencies, KeepThoseThatStandAlready) {
  DependencyMaker m(2, 1);
  m.add(0, {m.writes(0)});
  m.add(1, {m.reads(0)});
  m.program.instructions[1].after = {{0, 0}};
  derive_dependencies(m.program);
  EXPECT_THAT(m.after(1), ElementsAre(Dependency{0, 0}));
}

bool conflict(const Instruction& a, const Instruction& b) {
  for (const Operand& x : a.operands)
    for (const Operand& y : b.operands)
      if (x.range.buffer == y.range.buffer && (x.access != Access::read || y.access != Access::read) &&
          std::max(x.range.offset, y.range.offset) <
              std::min(x.range.offset + x.range.size_bytes, y.range.offset + y.range.size_bytes))
        return true;
  return false;
}

/// Every pair of conflicting accesses is ordered, three iterations deep.
bool is_ordered(const Program& program) {
  constexpr int kIterations = 3;
  const int n = static_cast<int>(program.instructions.size());
  const auto reach = plain_order(program, kIterations);
  for (int a = 0; a < n * kIterations; ++a)
    for (int b = a + 1; b < n * kIterations; ++b)
      if (!reach[static_cast<size_t>(a)][static_cast<size_t>(b)] &&
          conflict(program.instructions[static_cast<size_t>(a % n)],
                   program.instructions[static_cast<size_t>(b % n)]))
        return false;
  return true;
}

TEST(Dependencies, OrderEveryConflictAndNoneIsSuperfluousInRandomPrograms) {
  std::mt19937 random(7);
  int removed = 0;
  for (int round = 0; round < 60; ++round) {
    DependencyMaker m(1 + static_cast<int>(random() % 4), 3);
    for (int i = 0; i < 8; ++i) {
      std::vector<Operand> operands;
      for (int o = 0; o < 2; ++o) {
        const int buffer = static_cast<int>(random() % 3);
        const auto offset = static_cast<int64_t>(random() % 4) * 16;
        operands.push_back(random() % 2 ? m.reads(buffer, offset, 64 - offset)
                                        : m.writes(buffer, offset, 64 - offset));
      }
      m.add(static_cast<int>(random() % m.program.lanes.size()), operands);
    }
    derive_dependencies(m.program);
    ASSERT_TRUE(is_ordered(m.program)) << round;
    for (size_t i = 0; i < m.program.instructions.size(); ++i) {
      for (size_t d = 0; d < m.program.instructions[i].after.size(); ++d) {
        Program less = m.program;
        auto& after = less.instructions[i].after;
        after.erase(after.begin() + static_cast<std::ptrdiff_t>(d));
        EXPECT_FALSE(is_ordered(less)) << "round " << round << ", instruction " << i << ", dependency " << d;
        ++removed;
      }
    }
  }
  EXPECT_GT(removed, 100);
}

/// What derive_dependencies promises, by comparing every instruction with every earlier one, of two
/// iterations.
void derive_plainly(Program& program) {
  constexpr int kIterations = 2;
  const int count = static_cast<int>(program.instructions.size());
  for (int node = 0; node < kIterations * count; ++node) {
    auto& instruction = program.instructions[static_cast<size_t>(node % count)];
    for (int earlier = node - 1; earlier >= 0; --earlier) {
      if (!conflict(program.instructions[static_cast<size_t>(earlier % count)], instruction)) continue;
      if (plain_order(program, kIterations)[static_cast<size_t>(earlier)][static_cast<size_t>(node)])
        continue;
      instruction.after.push_back({earlier % count, node / count - earlier / count});
    }
    std::sort(instruction.after.begin(), instruction.after.end(),
              [](const Dependency& a, const Dependency& b) {
                return std::pair(a.distance, a.instruction) < std::pair(b.distance, b.instruction);
              });
  }
}

TEST(Dependencies, AreThoseOfThePlainSearchInRandomPrograms) {
  std::mt19937 random(8);
  int added = 0;
  for (int round = 0; round < 60; ++round) {
    Program program = random_program(
        random, {.most_lanes = 4, .instructions = 14, .buffers = 4, .parts = true, .dependency = 0.2});
    Program plain = program;
    derive_dependencies(program);
    derive_plainly(plain);
    for (size_t i = 0; i < program.instructions.size(); ++i) {
      ASSERT_EQ(program.instructions[i].after, plain.instructions[i].after) << "round " << round << ", " << i;
      added += static_cast<int>(program.instructions[i].after.size());
    }
  }
  EXPECT_GT(added, 300);
}

}  // namespace
}  // namespace lockstep::program
