#include "plan/program_timeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "base/index.h"
#include "lockstep/error.h"

namespace lockstep::plan {
namespace {

using program::Instruction;
using program::InstructionKind;
using program::Program;
using program::Role;

/// An instruction of a rank.
struct Place {
  int rank, instruction;
};

/// For each rank and instruction, those of other ranks that it meets.
using Partners = std::vector<std::vector<std::vector<Place>>>;

/// The n-th message of a pair of ranks meets the n-th on the other end, the n-th collective of a group the
/// n-th of all members.
Partners partners_of(std::span<const Program> programs) {
  std::map<std::tuple<int, int, int>, std::vector<Place>> sends, receives;  // by group, sender and receiver
  std::map<int, std::vector<std::vector<Place>>> collectives;               // by group; the n-th of all
  Partners partners(programs.size());
  for (int rank = 0; rank < static_cast<int>(programs.size()); ++rank) {
    const Program& program = nth(programs, rank);
    std::map<int, size_t> counts;  // of collectives, by group
    nth(partners, rank).resize(program.instructions.size());
    for (int i = 0; i < static_cast<int>(program.instructions.size()); ++i) {
      const Instruction& instruction = program.instruction(i);
      if (!program::communicates(instruction.kind)) continue;
      if (instruction.kind != InstructionKind::exchange) {
        auto& list = collectives[instruction.group];
        const size_t n = counts[instruction.group]++;
        if (list.size() <= n) list.resize(n + 1);
        list[n].push_back({rank, i});
        continue;
      }
      const program::Members& members = program.group(instruction.group).members;
      for (const program::Operand& operand : instruction.operands) {
        const int peer = members[static_cast<size_t>(operand.peer)];
        if (operand.role == Role::send) sends[{instruction.group, rank, peer}].push_back({rank, i});
        if (operand.role == Role::receive) receives[{instruction.group, peer, rank}].push_back({rank, i});
      }
    }
  }
  const auto meet = [&](const Place& one, const Place& other) {
    nth(nth(partners, one.rank), one.instruction).push_back(other);
  };
  for (const auto& [way, list] : sends) {
    const auto& others = receives[way];
    for (size_t n = 0; n < std::min(list.size(), others.size()); ++n) {
      meet(list[n], others[n]);
      meet(others[n], list[n]);
    }
  }
  for (const auto& [group, list] : collectives)
    for (const auto& members : list)
      for (const Place& one : members)
        for (const Place& other : members)
          if (one.rank != other.rank) meet(one, other);
  return partners;
}

/// When an instruction of an iteration starts and ends, as far as it is known.
struct Moments {
  std::optional<double> start, end;
};

class Replay {
 public:
  Replay(std::span<const Program> programs, const InstructionTimes& times, int iterations)
      : programs_(programs), times_(times), iterations_(iterations), partners_(partners_of(programs)) {
    for (const Program& program : programs) {
      Rank& rank = ranks_.emplace_back();
      rank.reports = program::report_instructions(program);
      rank.lanes.resize(program.lanes.size());
      for (int i = 0; i < static_cast<int>(program.instructions.size()); ++i) {
        const Instruction& instruction = program.instruction(i);
        require(instruction.kind != InstructionKind::push && instruction.kind != InstructionKind::pull &&
                    instruction.kind != InstructionKind::serve,
                "replay takes no programs of sessions: they do not say in which order servers are met");
        nth(rank.lanes, instruction.lane).instructions.push_back(i);
        rank.communication_before.push_back(rank.last_communication);
        if (program::communicates(instruction.kind)) rank.last_communication = i;
      }
      rank.moments.assign(static_cast<size_t>(iterations), std::vector<Moments>(program.instructions.size()));
      rank.begins.resize(static_cast<size_t>(iterations));
    }
  }

  std::vector<ProgramTimeline> run() {
    for (bool proceeds = true; proceeds;) {
      proceeds = false;
      for (int rank = 0; rank < static_cast<int>(ranks_.size()); ++rank)
        for (Lane& lane : nth(ranks_, rank).lanes)
          while (advance(rank, lane)) proceeds = true;
    }
    require_complete();
    std::vector<ProgramTimeline> timelines;
    for (int k = 0; k < iterations_; ++k) timelines.push_back(timeline_of(k));
    return timelines;
  }

 private:
  struct Lane {
    std::vector<int> instructions;
    int iteration = 0;
    size_t next = 0;
    double free = 0;
  };
  struct Rank {
    std::vector<Lane> lanes;
    std::vector<int> reports;
    std::vector<int> communication_before;      // by instruction; -1: none in this iteration
    int last_communication = -1;                // of an iteration
    std::vector<std::vector<Moments>> moments;  // by iteration and instruction
    std::vector<std::optional<double>> begins;  // by iteration
  };

  Moments& moments(int rank, int iteration, int instruction) {
    return nth(nth(nth(ranks_, rank).moments, iteration), instruction);
  }

  bool is_done(const Lane& lane) const { return lane.instructions.empty() || lane.iteration == iterations_; }

  /// Finds out when the lane's next instruction starts, or when it ends.
  bool advance(int rank, Lane& lane) {
    if (is_done(lane)) return false;
    const int i = nth(lane.instructions, lane.next);
    Moments& own = moments(rank, lane.iteration, i);
    if (!own.start) {
      own.start = start_of(rank, lane, i);
      return own.start.has_value();
    }
    own.end = end_of(rank, lane.iteration, i, *own.start);
    if (!own.end) return false;
    lane.free = *own.end;
    if (++lane.next == lane.instructions.size()) {
      lane.next = 0;
      ++lane.iteration;
    }
    return true;
  }

  /// Nothing while it is not known.
  std::optional<double> start_of(int rank, const Lane& lane, int i) {
    const std::optional<double> begin = begin_of(rank, lane.iteration);
    if (!begin) return {};
    double start = std::max(*begin, lane.free);
    for (const program::Dependency& needed : nth(programs_, rank).instruction(i).after) {
      if (needed.distance > lane.iteration) continue;
      const std::optional<double> end =
          moments(rank, lane.iteration - needed.distance, needed.instruction).end;
      if (!end) return {};
      start = std::max(start, *end);
    }
    if (!times_.communicates_in_order || !program::communicates(nth(programs_, rank).instruction(i).kind))
      return start;
    const Rank& line = nth(ranks_, rank);
    int before = nth(line.communication_before, i), iteration = lane.iteration;
    if (before < 0) before = line.last_communication, --iteration;
    if (iteration < 0) return start;
    const std::optional<double> started = moments(rank, iteration, before).start;
    return started ? std::max(start, *started) : started;
  }

  std::optional<double> end_of(int rank, int iteration, int i, double start) {
    const Instruction& instruction = nth(programs_, rank).instruction(i);
    if (!program::communicates(instruction.kind)) return start + times_.compute(rank, instruction);
    for (const Place& partner : nth(nth(partners_, rank), i)) {
      const std::optional<double> posted = moments(partner.rank, iteration, partner.instruction).start;
      if (!posted) return {};
      start = std::max(start, *posted);
    }
    return instruction.kind == InstructionKind::exchange ? start + times_.transfer : start;
  }

  std::optional<double> begin_of(int rank, int iteration) {
    Rank& line = nth(ranks_, rank);
    std::optional<double>& begin = nth(line.begins, iteration);
    if (begin) return begin;
    double latest = 0;
    for (const int report : iteration > 0 ? line.reports : std::vector<int>{}) {
      const std::optional<double> end = moments(rank, iteration - 1, report).end;
      if (!end) return {};
      latest = std::max(latest, *end);
    }
    if (iteration > 1)
      for (const Moments& one : nth(line.moments, iteration - 2)) {
        if (!one.end) return {};
        latest = std::max(latest, *one.end);
      }
    return begin = latest;
  }

  ProgramTimeline timeline_of(int iteration) {
    ProgramTimeline timeline{.begin = std::numeric_limits<double>::infinity()};
    for (int rank = 0; rank < static_cast<int>(ranks_.size()); ++rank) {
      const Program& program = nth(programs_, rank);
      auto& instructions = timeline.ranks.emplace_back();
      double& busy = timeline.busy.emplace_back(0);
      for (int i = 0; i < static_cast<int>(program.instructions.size()); ++i) {
        const Moments& known = moments(rank, iteration, i);
        const TimedInstruction timed = instructions.emplace_back(TimedInstruction{*known.start, *known.end});
        timeline.begin = std::min(timeline.begin, timed.start);
        timeline.end = std::max(timeline.end, timed.end);
        if (program.lane(program.instruction(i).lane).kind == program::LaneKind::compute)
          busy += timed.end - timed.start;
      }
    }
    return timeline;
  }

  void require_complete() {
    std::string waiting;
    for (int rank = 0; rank < static_cast<int>(ranks_.size()); ++rank)
      for (const Lane& lane : nth(ranks_, rank).lanes) {
        if (is_done(lane)) continue;
        const int i = nth(lane.instructions, lane.next);
        waiting += fmt::format("{}rank {} {} {}", waiting.empty() ? "" : "; ", rank,
                               moments(rank, lane.iteration, i).start ? "waits for peers in" : "cannot start",
                               program::describe(nth(programs_, rank), i));
      }
    if (!waiting.empty()) throw InternalError(fmt::format("programs cannot proceed: {}", waiting));
  }

  std::span<const Program> programs_;
  const InstructionTimes& times_;
  int iterations_;
  Partners partners_;
  std::vector<Rank> ranks_;
};

}  // namespace

std::vector<ProgramTimeline> replay(std::span<const Program> programs, const InstructionTimes& times,
                                    int iterations) {
  return Replay(programs, times, iterations).run();
}

}  // namespace lockstep::plan
