#include "program/memory/lifetimes.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/index.h"
#include "program/happens_before.h"

namespace lockstep::program {
namespace {

constexpr int kNever = std::numeric_limits<int>::max();

/// By node and lane, the place of the first instruction of the lane that happens after the node, or kNever:
/// the mirror image of HappensBefore's clocks, for one iteration.
std::vector<int> first_after(const Program& program, const HappensBefore& order) {
  const size_t lanes = program.lanes.size();
  std::vector<int> first(program.instructions.size() * lanes, kNever);
  std::vector<int> next(lanes, -1);  // on each lane
  const auto precede = [&](int earlier, int later) {
    int* into = &first[static_cast<size_t>(earlier) * lanes];
    const int* from = &first[static_cast<size_t>(later) * lanes];
    for (size_t lane = 0; lane < lanes; ++lane) into[lane] = std::min(into[lane], from[lane]);
    int& own = into[order.lane_of(later)];
    own = std::min(own, order.sequence_of(later));
  };
  // Descending: all that comes after a node has told it so before it tells its own predecessors.
  for (int node = order.node_count() - 1; node >= 0; --node) {
    int& on_lane = nth(next, order.lane_of(node));
    if (on_lane >= 0) precede(node, on_lane);
    on_lane = node;
    for (const Dependency& dependency : program.instruction(node).after)
      if (dependency.distance == 0) precede(dependency.instruction, node);
  }
  return first;
}

}  // namespace

Lifetimes::Lifetimes(const Program& program)
    : lanes_(program.lanes.size()),
      buffers_(program.buffers.size()),
      uses_(buffers_ * lanes_, Use{.first = kNever, .last = 0, .unordered_from = kNever, .unordered_to = 0}),
      by_program_(0, {}),
      found_by_(buffers_, 0) {
  for (size_t b = 0; b < buffers_; ++b) in_order_.push_back({static_cast<int>(b), kNever, -1});
  collect(program);
  build_indices();
}

void Lifetimes::collect(const Program& program) {
  HappensBefore order(program, 1);
  order.visit_all();
  const std::vector<int> after = first_after(program, order);
  for (int node = 0; node < order.node_count(); ++node) {
    for (const Operand& operand : program.instruction(node).operands) {
      const int buffer = operand.range.buffer;
      if (program.buffer(buffer).space != Space::arena) continue;
      auto& place = nth(in_order_, buffer);
      place.first = std::min(place.first, node);
      place.last = std::max(place.last, node);
      Use& own = use(buffer, static_cast<size_t>(order.lane_of(node)));
      own.first = std::min(own.first, order.sequence_of(node));
      own.last = std::max(own.last, order.sequence_of(node));
      for (size_t lane = 0; lane < lanes_; ++lane) {
        Use& each = use(buffer, lane);
        each.unordered_from = std::min(each.unordered_from, order.clock(node)[lane] + 1);
        const int follows = after[static_cast<size_t>(node) * lanes_ + lane];
        each.unordered_to = std::max(each.unordered_to, follows == kNever ? kNever : follows - 1);
      }
    }
  }
}

void Lifetimes::build_indices() {
  std::vector<IntervalIndex::Item> items;
  for (size_t lane = 0; lane < lanes_; ++lane) {
    items.clear();
    for (int b = 0; b < static_cast<int>(buffers_); ++b)
      if (const Use& own = use(b, lane); own.last > 0) items.push_back({b, own.first, own.last});
    by_lane_.emplace_back(buffers_, items);
  }
  items.clear();
  for (const auto& place : in_order_)
    if (place.last >= 0) items.push_back(place);
  by_program_ = IntervalIndex(buffers_, items);
}

void Lifetimes::enter(int buffer) {
  if (nth(in_order_, buffer).last < 0) return;
  by_program_.enter(buffer);
  for (size_t lane = 0; lane < lanes_; ++lane)
    if (use(buffer, lane).last > 0) by_lane_[lane].enter(buffer);
}

const std::vector<int>& Lifetimes::in_use_with(int buffer) {
  found_.clear();
  const auto& place = nth(in_order_, buffer);
  if (place.last < 0) return found_;
  ++queries_;
  const auto add = [&](int other) {
    if (std::exchange(nth(found_by_, other), queries_) != queries_ && other != buffer)
      found_.push_back(other);
  };
  by_program_.visit(place.first, place.last, add);
  for (size_t lane = 0; lane < lanes_; ++lane) {
    const Use& own = use(buffer, lane);
    by_lane_[lane].visit(own.unordered_from, own.unordered_to, add);
  }
  return found_;
}

}  // namespace lockstep::program
