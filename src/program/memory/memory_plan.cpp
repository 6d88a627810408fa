#include "program/memory/memory_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "base/ensure.h"
#include "base/index.h"
#include "base/text.h"
#include "program/memory/lifetimes.h"
#include "program/range_map.h"

namespace lockstep::program {
namespace {

/// Where a placed buffer lies; `rank` is its number in the order of placing.
struct Place {
  int64_t begin, end;
  size_t rank;
};

/// The smallest gap of at least `size` bytes between the places to avoid, the lowest of several; the end of
/// the last one if none is large enough. Sorts `avoided`.
int64_t best_fit(std::vector<Place>& avoided, int64_t size) {
  std::sort(avoided.begin(), avoided.end(), [](const Place& a, const Place& b) {
    return std::pair(a.begin, a.rank) < std::pair(b.begin, b.rank);
  });
  int64_t free_from = 0, best_offset = -1, best_gap = std::numeric_limits<int64_t>::max();
  for (const Place& place : avoided) {
    const int64_t gap = place.begin - free_from;
    if (gap >= size && gap < best_gap) {
      best_gap = gap;
      best_offset = free_from;
    }
    free_from = std::max(free_from, place.end);
  }
  return best_offset >= 0 ? best_offset : free_from;
}

/// Largest first, each into the smallest gap that fits between the buffers that are in use at the same time.
/// Takes O(log n) for each of n instructions and buffers, and for every two buffers in use at the same time.
int64_t place_arena(Program& program) {
  Lifetimes lifetimes(program);
  std::vector<size_t> order;
  for (size_t b = 0; b < program.buffers.size(); ++b)
    if (program.buffers[b].space == Space::arena) order.push_back(b);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return program.buffers[a].size_bytes > program.buffers[b].size_bytes;
  });

  int64_t arena_bytes = 0;
  std::vector<Place> places(program.buffers.size()), avoided;
  for (size_t rank = 0; rank < order.size(); ++rank) {
    const size_t b = order[rank];
    const int64_t size = placed_bytes(program.buffers[b].size_bytes);
    avoided.clear();
    for (const int other : lifetimes.in_use_with(static_cast<int>(b))) avoided.push_back(nth(places, other));
    const int64_t offset = best_fit(avoided, size);
    places[b] = {offset, offset + size, rank};
    lifetimes.enter(static_cast<int>(b));
    program.buffers[b].offset = offset;
    arena_bytes = std::max(arena_bytes, offset + size);
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
        owner.assign(buffer.offset, buffer.offset + placed_bytes(buffer.size_bytes), category);
  for (const auto& [begin, entry] : owner.entries())
    nth(plan.category_bytes, entry.value) += entry.end - begin;
}

}  // namespace

MemoryPlan plan_memory(Program& program) {
  MemoryPlan plan;
  for (ProgramBuffer& buffer : program.buffers) {
    ensure(buffer.size_bytes >= 0, fmt::format("buffer {} has {} bytes", buffer.name, buffer.size_bytes));
    if (buffer.space == Space::arena) continue;
    int64_t& end = nth(plan.space_bytes, buffer.space);
    const int64_t size = placed_bytes(buffer.size_bytes);
    buffer.offset = end;
    end += size;
    nth(plan.category_bytes, buffer.category) += size;
  }
  const int64_t arena_bytes = place_arena(program);
  nth(plan.space_bytes, Space::arena) = arena_bytes;
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

MemoryPlan combine_plans(std::span<const MemoryPlan> plans) {
  MemoryPlan all;
  for (const auto& plan : plans) {
    // The arena's larger user decides how its bytes are shown, so that categories still add up.
    const auto arena = static_cast<size_t>(Space::arena);
    const bool larger_arena = plan.space_bytes[arena] > all.space_bytes[arena];
    for (const auto category : {Category::activations, Category::workspace})
      if (const auto c = static_cast<size_t>(category); larger_arena)
        all.category_bytes[c] = plan.category_bytes[c];
    for (const auto category : {Category::parameters, Category::gradients, Category::optimizer_state})
      if (const auto c = static_cast<size_t>(category); true)
        all.category_bytes[c] = std::max(all.category_bytes[c], plan.category_bytes[c]);
    for (size_t space = 0; space < all.space_bytes.size(); ++space)
      all.space_bytes[space] = std::max(all.space_bytes[space], plan.space_bytes[space]);
  }
  nth(all.category_bytes, Category::staging) = nth(all.space_bytes, Space::staging) +
                                               nth(all.space_bytes, Space::scalars) +
                                               nth(all.space_bytes, Space::host);
  all.total_bytes = std::accumulate(all.space_bytes.begin(), all.space_bytes.end(), int64_t{0});
  return all;
}

}  // namespace lockstep::program
