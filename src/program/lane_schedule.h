#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <vector>

#include "program/program.h"

namespace lockstep::program {

/// An instruction of an iteration. Steps compare in program order, iteration after iteration.
struct Step {
  int64_t iteration = 0;
  int instruction = 0;
  auto operator<=>(const Step&) const = default;
};

/// The instructions of each lane, in program order.
std::vector<std::vector<int>> instructions_by_lane(const Program& program);

/// Rules that depend on how lanes are carried out.
struct StartRules {
  /// A rank's communications start in program order over all its lanes, as from one thread. Otherwise each
  /// starts as soon as its lane reaches it, as on streams. Pushes and pulls have no order: they wait for
  /// servers alone.
  bool communicates_in_order = true;
  /// An exchange starts while those before it in its lane are under way (independent_predecessors()).
  /// REQUIRES: buffers are placed.
  bool overlaps_exchanges = true;
};

/// When the instructions of one rank may start: a state machine without time, told of what starts and of what
/// is complete. The inline executor and replays (plan/program_timeline.h) start what it allows, and
/// LanePositions follows a device with it. Its rules:
///
/// - A lane runs its instructions in program order, iteration after iteration. They complete in this order,
///   and one starts when all before it are complete, except for exchanges by StartRules.
/// - An instruction starts when everything that it depends on is complete.
/// - An iteration begins when the report of the preceding one is known (report_instructions()) and the one
///   before that is complete.
///
/// `program` must outlive it. Not thread-safe.
class LaneSchedule {
 public:
  LaneSchedule(const Program& program, const StartRules& rules);

  int64_t begun() const { return begun_; }  ///< iterations
  bool may_begin() const { return is_reported() && nth(left_, begun_ % 2) == 0; }
  /// REQUIRES: may_begin() or, for who looks on, that nothing is left of the iteration before the last.
  void begin();
  bool is_reported() const { return reports_left_ == 0; }  ///< the report of the last iteration is complete
  bool is_complete() const { return left_[0] + left_[1] == 0; }  ///< everything that has begun is complete

  int lane_count() const { return static_cast<int>(lanes_.size()); }
  LaneKind kind(int lane) const { return program_.lane(lane).kind; }
  /// Everything of the lane is complete, in the iterations that have begun.
  bool at_end(int lane) const { return nth(lanes_, lane).complete == end_of(nth(lanes_, lane), begun_); }
  /// The first instruction of the lane that is not complete. REQUIRES: !at_end(lane).
  Step current(int lane) const { return step_at(nth(lanes_, lane), nth(lanes_, lane).complete); }
  int under_way(int lane) const { return nth(lanes_, lane).under_way; }  ///< so many, from the current one on
  /// Whether the lane's next instruction, behind those under way, may start.
  bool may_start(int lane) const;
  /// If all lanes but those of communication share one thread: the one of them that may start the first
  /// instruction in program order; -1: none may start any.
  int first_on_thread() const;

  Step start(int lane);     ///< The next instruction starts. REQUIRES: may_start(lane).
  void complete(int lane);  ///< The current instruction is complete. REQUIRES: under_way(lane) > 0.
  /// For who looks on from outside: the current instruction has started and is complete, unseen. REQUIRES:
  /// !at_end(lane).
  void pass(int lane);
  /// Likewise everything of the first `iterations` iterations.
  void pass_all(int64_t iterations);

 private:
  struct Lane {
    std::vector<int> instructions;  // in program order
    int64_t complete = 0;           // so many, over all iterations
    int under_way = 0;
  };

  static int64_t end_of(const Lane& lane, int64_t iterations) {
    return iterations * std::ssize(lane.instructions);
  }
  static Step step_at(const Lane& lane, int64_t place) {
    const auto count = std::ssize(lane.instructions);
    return {place / count, nth(lane.instructions, place % count)};
  }
  bool is_complete(int instruction, int64_t iteration) const;

  const Program& program_;
  std::vector<Lane> lanes_;
  std::vector<int> places_;         // by instruction: in its lane
  std::vector<int> independent_;    // by instruction: of so many before it in its lane
  std::vector<int> issue_order_;    // communications, if they start in order
  std::vector<bool> has_turn_;      // by instruction: it is one of them
  std::vector<bool> reports_;       // by instruction
  int64_t reports_each_ = 0;        // of an iteration
  int64_t begun_ = 0, issued_ = 0;  // iterations; communications over all of them
  int64_t reports_left_ = 0;        // of the last iteration
  // Two iterations at most are under way: the last, and what is left of the one before.
  std::array<int64_t, 2> left_{};  // by the iteration's parity: instructions that are not complete
};

}  // namespace lockstep::program
