#include "program/memory/memory_plan.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <string>

#include "program/golden_programs.h"
#include "program/random_programs.h"

namespace lockstep::program {
namespace {

int64_t bytes(const MemoryPlan& plan, Category category) {
  return plan.category_bytes[static_cast<size_t>(category)];
}
int64_t bytes(const MemoryPlan& plan, Space space) { return plan.space_bytes[static_cast<size_t>(space)]; }

Instruction instruction(int lane, std::vector<Operand> operands) {
  Instruction i;
  i.kind = InstructionKind::add;
  i.lane = lane;
  i.operands = std::move(operands);
  return i;
}
Operand reads(const Program& p, int buffer) { return {Role::source, 0, Access::read, p.whole(buffer)}; }
Operand writes(const Program& p, int buffer) {
  return {Role::destination, 0, Access::write, p.whole(buffer)};
}

/// Layers that hand one activation on: at any time two buffers of 1024 bytes are alive.
Program chain(int layers) {
  Program p;
  p.name = "step";
  p.add_lane("main", LaneKind::compute);
  int previous = p.add_buffer("act0", Space::arena, Category::activations, 1024);
  p.instructions.push_back(instruction(0, {writes(p, previous)}));
  for (int l = 1; l < layers; ++l) {
    const int next = p.add_buffer(fmt::format("act{}", l), Space::arena, Category::activations, 1024);
    p.instructions.push_back(instruction(0, {reads(p, previous), writes(p, next)}));
    previous = next;
  }
  return p;
}

TEST(MemoryPlan, ReusesBytesAlongAChain) {
  Program p = chain(50);
  derive_dependencies(p);
  const MemoryPlan plan = plan_memory(p);
  EXPECT_EQ(bytes(plan, Space::arena), 2048);
  EXPECT_EQ(plan.total_bytes, 2048);
}

TEST(MemoryPlan, SharesNothingBetweenLanesWithoutAnOrder) {
  Program p;
  p.add_lane("a", LaneKind::compute);
  p.add_lane("b", LaneKind::compute);
  const int x = p.add_buffer("x", Space::arena, Category::workspace, 512);
  const int y = p.add_buffer("y", Space::arena, Category::workspace, 512);
  p.instructions = {instruction(0, {writes(p, x)}), instruction(1, {writes(p, y)})};
  Program ordered = p;
  EXPECT_EQ(plan_memory(p).total_bytes, 1024);
  ordered.instructions[1].after = {{0, 0}};
  EXPECT_EQ(plan_memory(ordered).total_bytes, 512);
}

TEST(MemoryPlan, AddsTheDependencyThatReuseNeedsInTheNextIteration) {
  // y lies where x did; the next iteration's write of x must wait for this one's use of y.
  Program p;
  p.add_lane("a", LaneKind::compute);
  p.add_lane("b", LaneKind::compute);
  const int x = p.add_buffer("x", Space::arena, Category::workspace, 512);
  const int y = p.add_buffer("y", Space::arena, Category::workspace, 512);
  p.instructions = {instruction(0, {writes(p, x)}), instruction(1, {writes(p, y)})};
  p.instructions[1].after = {{0, 0}};
  plan_memory(p);
  EXPECT_EQ(p.buffers[0].offset, p.buffers[1].offset);
  EXPECT_THAT(p.instructions[0].after, testing::ElementsAre(Dependency{1, 1}));
}

TEST(MemoryPlan, CountsEveryByteInOneCategory) {
  Program p;
  p.add_lane("main", LaneKind::compute);
  const int act = p.add_buffer("act", Space::arena, Category::activations, 1000);  // rounded to 1024
  const int tmp = p.add_buffer("tmp", Space::arena, Category::workspace, 512);
  const int reused = p.add_buffer("reused", Space::arena, Category::workspace, 256);  // where act was
  p.add_buffer("w", Space::parameters, Category::parameters, 300);                    // rounded to 512
  p.add_buffer("s", Space::optimizer, Category::optimizer_state, 600);                // rounded to 768
  p.add_buffer("x", Space::staging, Category::staging, 64);                           // rounded to 256
  p.instructions = {instruction(0, {writes(p, act), writes(p, tmp)}), instruction(0, {writes(p, reused)})};
  derive_dependencies(p);
  const MemoryPlan plan = plan_memory(p);
  EXPECT_EQ(bytes(plan, Category::activations), 1024);
  EXPECT_EQ(bytes(plan, Category::workspace), 512);
  EXPECT_EQ(bytes(plan, Category::parameters), 512);
  EXPECT_EQ(bytes(plan, Category::optimizer_state), 768);
  EXPECT_EQ(bytes(plan, Category::staging), 256);
  EXPECT_EQ(bytes(plan, Space::arena), 1536);
  EXPECT_EQ(plan.total_bytes, 3072);
}

TEST(MemoryPlan, PrintsATable) {
  Program p = chain(3);
  const std::string table = describe(plan_memory(p));
  EXPECT_THAT(table, testing::HasSubstr("activations         2.00 KiB"));
  EXPECT_THAT(table, testing::HasSubstr("total               2.00 KiB"));
}

/// With its dependencies derived.
Program complete_random_program(std::mt19937& random) {
  Program p = random_program(random, {.buffers = 5 + static_cast<int>(random() % 20), .dependency = 0.1});
  derive_dependencies(p);
  return p;
}

/// How the arena is placed, without any help to find what is in the way: largest first, each into the
/// smallest gap that fits between all the buffers placed before of which neither is finished before the other
/// begins.
void place_plainly(Program& p) {
  const auto before = plain_order(p, 1);
  std::vector<std::vector<size_t>> users(p.buffers.size());
  for (size_t i = 0; i < p.instructions.size(); ++i)
    for (const Operand& o : p.instructions[i].operands)
      users[static_cast<size_t>(o.range.buffer)].push_back(i);
  const auto ends_before = [&](size_t a, size_t b) {
    for (size_t i : users[a])
      for (size_t j : users[b])
        if (!before[i][j]) return false;
    return true;
  };
  const auto rounded = [](int64_t size) {
    return (size + kBufferAlignment - 1) / kBufferAlignment * kBufferAlignment;
  };
  std::vector<size_t> order, placed;  // placed: by offset
  for (size_t b = 0; b < p.buffers.size(); ++b)
    if (p.buffers[b].space == Space::arena) order.push_back(b);
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return p.buffers[a].size_bytes > p.buffers[b].size_bytes; });
  for (size_t b : order) {
    const int64_t size = rounded(p.buffers[b].size_bytes);
    int64_t free_from = 0, best = -1, best_gap = 0;
    for (size_t other : placed) {
      if (ends_before(b, other) || ends_before(other, b)) continue;
      const int64_t gap = p.buffers[other].offset - free_from;
      if (gap >= size && (best < 0 || gap < best_gap)) best = free_from, best_gap = gap;
      free_from = std::max(free_from, p.buffers[other].offset + rounded(p.buffers[other].size_bytes));
    }
    p.buffers[b].offset = best >= 0 ? best : free_from;
    placed.insert(
        std::upper_bound(placed.begin(), placed.end(), b,
                         [&](size_t x, size_t y) { return p.buffers[x].offset < p.buffers[y].offset; }),
        b);
  }
}

TEST(MemoryPlan, PlacesRandomProgramsAsThePlainSearchDoes) {
  std::mt19937 random(14);
  int shared = 0;  // programs in which buffers share bytes
  for (int round = 0; round < 150; ++round) {
    Program p = random_program(random, {.most_lanes = 5, .instructions = 60, .buffers = 24});
    if (round % 2 == 0) derive_dependencies(p);
    Program plain = p;
    plan_memory(p);
    place_plainly(plain);
    int64_t sum = 0, end = 0;
    for (size_t b = 0; b < p.buffers.size(); ++b) {
      if (p.buffers[b].space != Space::arena) continue;
      ASSERT_EQ(p.buffers[b].offset, plain.buffers[b].offset)
          << "round " << round << ", " << p.buffers[b].name;
      sum += p.buffers[b].size_bytes;
      end = std::max(end, p.buffers[b].offset + p.buffers[b].size_bytes);
    }
    shared += end < sum ? 1 : 0;
  }
  EXPECT_GT(shared, 100);
}

TEST(MemoryPlan, NeverLetsLiveBuffersOverlapInRandomPrograms) {
  std::mt19937 random(11);
  int shared = 0;
  for (int round = 0; round < 80; ++round) {
    Program p = complete_random_program(random);
    const auto before = plain_order(p, 1);  // of the program as it was planned
    std::vector<std::vector<size_t>> users(p.buffers.size());
    for (size_t i = 0; i < p.instructions.size(); ++i)
      for (const Operand& o : p.instructions[i].operands)
        users[static_cast<size_t>(o.range.buffer)].push_back(i);
    plan_memory(p);
    for (size_t a = 0; a < p.buffers.size(); ++a)
      for (size_t b = a + 1; b < p.buffers.size(); ++b) {
        const ProgramBuffer &x = p.buffers[a], &y = p.buffers[b];
        if (x.space != y.space || x.offset >= y.offset + y.size_bytes || y.offset >= x.offset + x.size_bytes)
          continue;
        ++shared;
        ASSERT_EQ(x.space, Space::arena) << round;
        bool a_first = true, b_first = true;
        for (size_t i : users[a])
          for (size_t j : users[b]) {
            a_first = a_first && before[i][j];
            b_first = b_first && before[j][i];
          }
        ASSERT_TRUE(a_first || b_first) << "round " << round << ": " << x.name << " and " << y.name;
      }
  }
  EXPECT_GT(shared, 50);
}

TEST(MemoryPlan, IsDeterministicAndNoLargerThanTheSum) {
  std::mt19937 random(12);
  for (int round = 0; round < 40; ++round) {
    Program p = complete_random_program(random);
    Program q = p;
    const MemoryPlan plan = plan_memory(p);
    const MemoryPlan again = plan_memory(q);
    EXPECT_TRUE(p == q);
    EXPECT_EQ(plan.total_bytes, again.total_bytes);
    int64_t sum = 0;
    for (const ProgramBuffer& buffer : p.buffers) {
      EXPECT_EQ(buffer.offset % kBufferAlignment, 0);
      sum += (buffer.size_bytes + kBufferAlignment - 1) / kBufferAlignment * kBufferAlignment;
    }
    EXPECT_LE(plan.total_bytes, sum);
    EXPECT_EQ(std::accumulate(plan.category_bytes.begin(), plan.category_bytes.end(), int64_t{0}),
              plan.total_bytes);
    EXPECT_EQ(std::accumulate(plan.space_bytes.begin(), plan.space_bytes.end(), int64_t{0}),
              plan.total_bytes);
  }
}

TEST(MemoryPlan, StaysNearTheLowerBoundOnChainsWithSkips) {
  // A network's shape: activations of random size, kept from forward until backward, plus scratch at every
  // step.
  std::mt19937 random(13);
  for (int round = 0; round < 30; ++round) {
    Program p;
    p.add_lane("main", LaneKind::compute);
    const int layers = 20;
    std::vector<int> kept;
    for (int l = 0; l < layers; ++l) {
      kept.push_back(p.add_buffer(fmt::format("act{}", l), Space::arena, Category::activations,
                                  256 * static_cast<int64_t>(1 + random() % 40)));
      const int tmp = p.add_buffer(fmt::format("f{}", l), Space::arena, Category::workspace,
                                   256 * static_cast<int64_t>(1 + random() % 20));
      p.instructions.push_back(instruction(0, {writes(p, kept.back()), writes(p, tmp)}));
    }
    for (int l = layers; l-- > 0;) {
      const int tmp = p.add_buffer(fmt::format("b{}", l), Space::arena, Category::workspace,
                                   256 * static_cast<int64_t>(1 + random() % 20));
      p.instructions.push_back(instruction(0, {reads(p, kept[static_cast<size_t>(l)]), writes(p, tmp)}));
    }
    // The most bytes that are alive at one instruction: no plan can be smaller.
    int64_t bound = 0;
    for (size_t at = 0; at < p.instructions.size(); ++at) {
      int64_t live = 0;
      for (int b = 0; b < static_cast<int>(p.buffers.size()); ++b) {
        size_t first = p.instructions.size(), last = 0;
        for (size_t i = 0; i < p.instructions.size(); ++i)
          for (const Operand& o : p.instructions[i].operands)
            if (o.range.buffer == b) {
              first = std::min(first, i);
              last = i;
            }
        if (first <= at && at <= last) live += p.buffers[static_cast<size_t>(b)].size_bytes;
      }
      bound = std::max(bound, live);
    }
    const MemoryPlan plan = plan_memory(p);
    EXPECT_GE(plan.total_bytes, bound);
    EXPECT_LE(static_cast<double>(plan.total_bytes), 1.15 * static_cast<double>(bound)) << round;
  }
}

TEST(MemoryPlan, PlanningAgainChangesNothing) {
  Program p = load_golden("pp2_1f1b")[0];
  const MemoryPlan first = plan_memory(p);
  const Program placed = p;
  const MemoryPlan second = plan_memory(p);
  EXPECT_TRUE(p == placed);
  EXPECT_EQ(first.total_bytes, second.total_bytes);
}

}  // namespace
}  // namespace lockstep::program
