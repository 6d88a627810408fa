#include "step/memory_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "base/text.h"
#include "lockstep/error.h"
#include "step/happens_before.h"
#include "step/range_map.h"

namespace lockstep {
namespace {

int64_t align_up(int64_t bytes) {
  return (bytes + kBufferAlignment - 1) / kBufferAlignment * kBufferAlignment;
}

/// For every buffer and lane: the last access on the lane, and how much of the lane precedes each of its
/// accesses. Buffer a is finished before b begins exactly where, on every lane, a's last access precedes all
/// of b's.
class Lifetimes {
 public:
  explicit Lifetimes(const Program& program) : lanes_(program.lanes.size()) {
    last_.assign(program.buffers.size() * lanes_, 0);
    preceding_.assign(program.buffers.size() * lanes_, std::numeric_limits<int>::max());
    HappensBefore order(program, 1);
    order.visit_all();
    for (int node = 0; node < order.node_count(); ++node) {
      for (const Operand& operand : program.instructions[static_cast<size_t>(node)].operands) {
        const size_t row = static_cast<size_t>(operand.range.buffer) * lanes_;
        int& last = last_[row + static_cast<size_t>(order.lane_of(node))];
        last = std::max(last, order.sequence_of(node));
        for (size_t lane = 0; lane < lanes_; ++lane)
          preceding_[row + lane] = std::min(preceding_[row + lane], order.clock(node)[lane]);
      }
    }
  }

  bool disjoint(size_t a, size_t b) const { return ends_before(a, b) || ends_before(b, a); }

 private:
  bool ends_before(size_t a, size_t b) const {
    for (size_t lane = 0; lane < lanes_; ++lane)
      if (last_[a * lanes_ + lane] > preceding_[b * lanes_ + lane]) return false;
    return true;
  }

  size_t lanes_;
  std::vector<int> last_, preceding_;
};

/// Largest first, each into the smallest gap that fits between the buffers it must not touch.
int64_t place_arena(Program& program) {
  const Lifetimes lifetimes(program);
  std::vector<size_t> order;
  for (size_t b = 0; b < program.buffers.size(); ++b)
    if (program.buffers[b].space == Space::arena) order.push_back(b);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return program.buffers[a].size_bytes > program.buffers[b].size_bytes;
  });

  int64_t arena_bytes = 0;
  std::vector<size_t> placed;  // by offset
  for (size_t b : order) {
    ProgramBuffer& buffer = program.buffers[b];
    const int64_t size = align_up(buffer.size_bytes);
    int64_t free_from = 0, best_offset = -1, best_gap = std::numeric_limits<int64_t>::max();
    for (size_t other : placed) {
      if (lifetimes.disjoint(b, other)) continue;
      const int64_t gap = program.buffers[other].offset - free_from;
      if (gap >= size && gap < best_gap) {
        best_gap = gap;
        best_offset = free_from;
      }
      free_from =
          std::max(free_from, program.buffers[other].offset + align_up(program.buffers[other].size_bytes));
    }
    buffer.offset = best_offset >= 0 ? best_offset : free_from;
    arena_bytes = std::max(arena_bytes, buffer.offset + size);
    placed.insert(std::upper_bound(placed.begin(), placed.end(), b,
                                   [&](size_t x, size_t y) {
                                     return program.buffers[x].offset < program.buffers[y].offset;
                                   }),
                  b);
  }
  return arena_bytes;
}

void attribute_arena(const Program& program, int64_t arena_bytes, MemoryPlan& plan) {
  RangeMap<Category> owner;
  owner.assign(0, arena_bytes, Category::workspace);
  for (Category category : {Category::staging, Category::parameters, Category::optimizer_state,
                            Category::gradients, Category::activations})  // the last one wins
    for (const ProgramBuffer& buffer : program.buffers)
      if (buffer.space == Space::arena && buffer.category == category)
        owner.assign(buffer.offset, buffer.offset + align_up(buffer.size_bytes), category);
  for (const auto& [begin, entry] : owner.entries())
    plan.category_bytes[static_cast<size_t>(entry.value)] += entry.end - begin;
}

}  // namespace

MemoryPlan plan_memory(Program& program) {
  MemoryPlan plan;
  for (ProgramBuffer& buffer : program.buffers) {
    ensure(buffer.size_bytes >= 0, fmt::format("buffer {} has {} bytes", buffer.name, buffer.size_bytes));
    if (buffer.space == Space::arena) continue;
    int64_t& end = plan.space_bytes[static_cast<size_t>(buffer.space)];
    const int64_t size = align_up(buffer.size_bytes);
    buffer.offset = end;
    end += size;
    plan.category_bytes[static_cast<size_t>(buffer.category)] += size;
  }
  const int64_t arena_bytes = place_arena(program);
  plan.space_bytes[static_cast<size_t>(Space::arena)] = arena_bytes;
  attribute_arena(program, arena_bytes, plan);
  plan.total_bytes = std::accumulate(plan.space_bytes.begin(), plan.space_bytes.end(), int64_t{0});
  derive_dependencies(program);
  return plan;
}

std::string describe(const MemoryPlan& plan) {
  std::string text;
  for (size_t c = 0; c < plan.category_bytes.size(); ++c)
    text += fmt::format("  {:<16}{:>12}\n", name_of(static_cast<Category>(c)),
                        human_bytes(plan.category_bytes[c]));
  return text + fmt::format("  {:<16}{:>12}\n", "total", human_bytes(plan.total_bytes));
}

}  // namespace lockstep
