#include "plan/program_timeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <queue>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "base/index.h"
#include "lockstep/error.h"
#include "program/lane_schedule.h"
#include "program/matching.h"
#include "program/program_traffic.h"
#include "program/ring_schedule.h"

namespace lockstep::plan {
namespace {

using program::Instruction;
using program::InstructionKind;
using program::LaneKind;
using program::Program;
using program::Role;

/// What happens at its time; of two at the same time, what was planned first.
struct Event {
  double time;
  int64_t number;
  std::function<void()> happens;
  bool operator>(const Event& other) const {
    return std::pair(time, number) > std::pair(other.time, other.number);
  }
};

/// One instruction of an iteration, under way.
struct Operation {
  int rank = 0, lane = 0;
  program::Step step;
  int messages_left = 0;  // of an exchange, or of a ring's round
  int round = 0;
  bool arrived = false;  // all of it, though what is before it in its lane may not be complete
};

/// Bytes from one rank to another, of which each end is known once it is posted.
struct Message {
  int64_t bytes = 0;
  Operation *sender, *receiver;
  int64_t handed_over = 0, arrived = 0;
};

class Replay {
 public:
  Replay(std::span<const Program> programs, const InstructionTimes& times, int iterations)
      : programs_(programs), times_(times), costs_(times.communication), iterations_(iterations) {
    int hosts = 1;
    for (const int host : times.hosts) hosts = std::max(hosts, host + 1);
    leaves_host_free_.assign(static_cast<size_t>(hosts), 0);
    reaches_host_free_ = leaves_host_free_;
    for (const Program& program : programs) add(program);
  }

  std::vector<ProgramTimeline> run() {
    for (int rank = 0; rank < rank_count(); ++rank) changed_.insert(rank);
    while (true) {
      while (!changed_.empty()) {
        const int rank = *changed_.begin();
        changed_.erase(changed_.begin());
        proceed(rank);
      }
      if (events_.empty()) break;
      const Event event = events_.top();
      events_.pop();
      now_ = event.time;
      event.happens();
    }
    require_complete();
    std::vector<ProgramTimeline> timelines;
    for (int k = 0; k < iterations_; ++k) timelines.push_back(timeline_of(k));
    return timelines;
  }

 private:
  struct Rank {
    program::LaneSchedule schedule;
    std::vector<std::deque<Operation*>> under_way;  // by lane, from its current one on
    // The one thread, or, if lanes have their own, what handles messages.
    bool computes = false;
    double handles_until = 0;
    double compute_end = 0;
    std::vector<std::vector<TimedInstruction>> timed;  // by iteration and instruction
    std::vector<double> busy;                          // by iteration
  };
  using Way = std::tuple<int, int, int>;  // group, sender and receiver

  void add(const Program& program) {
    for (const Instruction& instruction : program.instructions)
      require(instruction.kind != InstructionKind::push && instruction.kind != InstructionKind::pull &&
                  instruction.kind != InstructionKind::serve,
              "replay takes no programs of sessions: they do not say in which order servers are met");
    const auto iterations = static_cast<size_t>(iterations_);
    ranks_.push_back(
        {.schedule = {program,
                      {.communicates_in_order = times_.communicates_in_order,
                       .overlaps_exchanges = times_.one_thread}},
         .under_way = std::vector<std::deque<Operation*>>(program.lanes.size()),
         .timed = std::vector(iterations, std::vector<TimedInstruction>(program.instructions.size())),
         .busy = std::vector<double>(iterations)});
  }

  int rank_count() const { return static_cast<int>(ranks_.size()); }
  int host_of(int rank) const { return times_.hosts.empty() ? 0 : nth(times_.hosts, rank); }
  const Instruction& instruction_of(const Operation& operation) const {
    return nth(programs_, operation.rank).instruction(operation.step.instruction);
  }

  void at(double time, std::function<void()> happens) {
    events_.push({std::max(time, now_), next_event_++, std::move(happens)});
  }

  /// Starts whatever the rank can start now.
  void proceed(int number) {
    Rank& rank = nth(ranks_, number);
    program::LaneSchedule& schedule = rank.schedule;
    for (bool moves = true; moves;) {
      moves = false;
      while (schedule.begun() < iterations_ && schedule.may_begin()) schedule.begin();
      for (int lane = 0; lane < schedule.lane_count(); ++lane) {
        if (shares_thread(schedule.kind(lane)) || !schedule.may_start(lane)) continue;
        start(number, lane);
        moves = true;
      }
      if (moves || !times_.one_thread || rank.computes) continue;
      if (const int first = schedule.first_on_thread(); first >= 0) {
        start(number, first);
        moves = true;
      }
    }
  }

  bool shares_thread(LaneKind kind) const { return times_.one_thread && kind != LaneKind::comm; }

  void start(int number, int lane) {
    Rank& rank = nth(ranks_, number);
    const program::Step step = rank.schedule.start(lane);
    const Instruction& instruction = nth(programs_, number).instruction(step.instruction);
    const LaneKind kind = rank.schedule.kind(lane);
    Operation& operation = operations_.emplace_back(Operation{.rank = number, .lane = lane, .step = step});
    nth(rank.under_way, lane).push_back(&operation);
    TimedInstruction& timed = nth(nth(rank.timed, step.iteration), step.instruction);
    timed.start = now_;
    if (program::communicates(instruction.kind)) return communicate(operation);
    const double time = times_.compute(number, instruction);
    nth(rank.busy, step.iteration) += kind == LaneKind::compute ? time : 0;
    if (shares_thread(kind)) {
      rank.computes = true;
      timed.start = std::max(now_, rank.handles_until);
      rank.compute_end = timed.start + time;
      expect_compute_end(operation);
    } else {
      const double end = times_.one_thread ? handle(number, time) : now_ + time;
      at(end, [this, &operation] { complete(operation); });
    }
  }

  /// What it computes ends later if messages are handled meanwhile.
  void expect_compute_end(Operation& operation) {
    Rank& rank = nth(ranks_, operation.rank);
    at(rank.compute_end, [this, &operation] {
      Rank& rank = nth(ranks_, operation.rank);
      if (rank.compute_end > now_) return expect_compute_end(operation);
      rank.computes = false;
      complete(operation);
    });
  }

  /// The rank's thread is busy with messages for so long, as soon as those that came before are handled.
  double handle(int number, double time) {
    Rank& rank = nth(ranks_, number);
    rank.handles_until = std::max(now_, rank.handles_until) + time;
    if (rank.computes) rank.compute_end += time;
    return rank.handles_until;
  }

  void communicate(Operation& operation) {
    const Instruction& instruction = instruction_of(operation);
    const program::Members& members = nth(programs_, operation.rank).group(instruction.group).members;
    if (instruction.kind == InstructionKind::exchange) {
      for (const program::Operand& operand : instruction.operands)
        operation.messages_left += operand.role == Role::send || operand.role == Role::receive;
      if (operation.messages_left == 0) return at(now_, [this, &operation] { complete(operation); });
      for (const program::Operand& operand : instruction.operands) {
        const int peer = members[static_cast<size_t>(std::max(operand.peer, 0))];
        if (operand.role == Role::send) post(operation, peer, true, operand.range.size_bytes);
        if (operand.role == Role::receive) post(operation, peer, false, operand.range.size_bytes);
      }
    } else if (program::ring_pass_of(instruction.kind) && members.size() > 1) {
      begin_round(operation);
    } else {
      meet(operation);
    }
  }

  void begin_round(Operation& operation) {
    const Instruction& instruction = instruction_of(operation);
    const program::Members& members = nth(programs_, operation.rank).group(instruction.group).members;
    const int count = static_cast<int>(members.size()), own = members.index_of(operation.rank);
    const program::RingRound round =
        program::ring_round(*program::ring_pass_of(instruction.kind), own, count, operation.round);
    operation.messages_left = 2;
    const int64_t sent = program::block_bytes(instruction.blocks, round.send, count);
    const int64_t received = program::block_bytes(instruction.blocks, round.receive, count);
    post(operation, members[static_cast<size_t>((own + 1) % count)], true, sent);
    post(operation, members[static_cast<size_t>((own + count - 1) % count)], false, received);
  }

  /// One end of the next message between two ranks of a group.
  void post(Operation& operation, int peer, bool sends, int64_t bytes) {
    const Instruction& instruction = instruction_of(operation);
    const Way way = {instruction.group, sends ? operation.rank : peer, sends ? peer : operation.rank};
    const auto other = ends_[way].match(sends, &operation);
    if (!other) return;
    Message& message = messages_.emplace_back(Message{
        .bytes = bytes, .sender = sends ? &operation : *other, .receiver = sends ? *other : &operation});
    const double latency = program::ring_pass_of(instruction.kind) ? costs_.meeting : costs_.latency;
    at(now_ + latency, [this, &message] { hand_over(message); });
  }

  bool crosses(const Message& message) const {
    return host_of(message.sender->rank) != host_of(message.receiver->rank);
  }

  /// The sender's thread passes on the next piece, and the link takes it.
  void hand_over(Message& message) {
    const double handling = crosses(message) ? costs_.handling_per_byte : costs_.local_handling_per_byte;
    const bool whole = handling == 0 && costs_.link_per_byte == 0;
    const int64_t left = message.bytes - message.handed_over;
    const int64_t piece = whole ? left : std::min(left, kMessagePieceBytes);
    message.handed_over += piece;
    const auto bytes = static_cast<double>(piece);
    const double handed = handling > 0 ? handle(message.sender->rank, bytes * handling) : now_;
    at(handed, [this, &message, piece, handling] {
      double there = now_;
      if (crosses(message)) {
        double& leaves = nth(leaves_host_free_, host_of(message.sender->rank));
        double& reaches = nth(reaches_host_free_, host_of(message.receiver->rank));
        // A bucket that has filled up lets go of what it holds at once.
        const double filled = now_ - costs_.link_burst_bytes * costs_.link_per_byte;
        leaves = reaches =
            std::max({filled, leaves, reaches}) + static_cast<double>(piece) * costs_.link_per_byte;
        there = std::max(now_, leaves);
      }
      if (message.handed_over < message.bytes) hand_over(message);
      at(there, [this, &message, piece, handling] {
        const double taken =
            handling > 0 ? handle(message.receiver->rank, static_cast<double>(piece) * handling) : now_;
        at(taken, [this, &message, piece] { arrive(message, piece); });
      });
    });
  }

  void arrive(Message& message, int64_t piece) {
    message.arrived += piece;
    if (message.arrived < message.bytes) return;
    finish_message(*message.sender);
    finish_message(*message.receiver);
  }

  void finish_message(Operation& operation) {
    if (--operation.messages_left > 0) return;
    const Instruction& instruction = instruction_of(operation);
    if (!program::ring_pass_of(instruction.kind)) return complete(operation);
    const program::Members& members = nth(programs_, operation.rank).group(instruction.group).members;
    const int count = static_cast<int>(members.size()), own = members.index_of(operation.rank);
    double summed = now_;
    if (instruction.kind == InstructionKind::ring_reduce_scatter && costs_.sum_per_byte > 0) {
      const int block =
          program::ring_round(program::RingPass::reduce_scatter, own, count, operation.round).receive;
      const auto bytes = static_cast<double>(program::block_bytes(instruction.blocks, block, count));
      summed = handle(operation.rank, bytes * costs_.sum_per_byte);
    }
    if (++operation.round == count - 1)
      at(summed, [this, &operation] { complete(operation); });
    else
      at(summed, [this, &operation] { begin_round(operation); });
  }

  /// Collectives that are one operation of a library, or of memory that ranks share.
  void meet(Operation& operation) {
    const Instruction& instruction = instruction_of(operation);
    const program::Group& group = nth(programs_, operation.rank).group(instruction.group);
    const auto members = meetings_[instruction.group].come(&operation, group.members.size());
    if (members.empty()) return;
    const double end = now_ + duration_of_meeting(instruction, group);
    for (Operation* member : members) at(end, [this, member] { complete(*member); });
  }

  double duration_of_meeting(const Instruction& instruction, const program::Group& group) {
    if (group.members.size() < 2) return 0;
    double time = costs_.meeting * static_cast<double>(std::bit_width(group.members.size() - 1));
    if (group.transport == program::Transport::shared_memory) {
      for (const program::Operand& operand : instruction.operands)
        if (operand.role == Role::data)
          time += static_cast<double>(operand.range.size_bytes) * costs_.shared_sum_per_byte;
      return time;
    }
    // Members differ in nothing that counts here.
    const auto bytes =
        static_cast<double>(program::traffic_of(nth(programs_, group.members[0]), instruction).sent_bytes);
    std::map<int, int> leave;  // by host: neighbours on another one
    for (size_t i = 0; i < group.members.size(); ++i) {
      const int host = host_of(group.members[i]);
      leave[host] += host != host_of(group.members[(i + 1) % group.members.size()]);
    }
    int most = 0;
    for (const auto& [host, count] : leave) most = std::max(most, count);
    const double handling = most > 0 ? costs_.handling_per_byte : costs_.local_handling_per_byte;
    return time + bytes * std::max(most * costs_.link_per_byte, 2 * handling);
  }

  /// An operation has all that it waits for; lanes complete theirs in order.
  void complete(Operation& operation) {
    operation.arrived = true;
    Rank& rank = nth(ranks_, operation.rank);
    auto& under_way = nth(rank.under_way, operation.lane);
    while (!under_way.empty() && under_way.front()->arrived) {
      const program::Step step = under_way.front()->step;
      nth(nth(rank.timed, step.iteration), step.instruction).end = now_;
      rank.schedule.complete(operation.lane);
      under_way.pop_front();
    }
    changed_.insert(operation.rank);
  }

  ProgramTimeline timeline_of(int iteration) {
    ProgramTimeline timeline{.begin = std::numeric_limits<double>::infinity()};
    for (const Rank& rank : ranks_) {
      timeline.ranks.push_back(nth(rank.timed, iteration));
      timeline.busy.push_back(nth(rank.busy, iteration));
      for (const TimedInstruction& timed : timeline.ranks.back()) {
        timeline.begin = std::min(timeline.begin, timed.start);
        timeline.end = std::max(timeline.end, timed.end);
      }
    }
    return timeline;
  }

  void require_complete() const {
    std::string waiting;
    for (int rank = 0; rank < rank_count(); ++rank)
      for (int lane = 0; lane < nth(ranks_, rank).schedule.lane_count(); ++lane) {
        const program::LaneSchedule& schedule = nth(ranks_, rank).schedule;
        if (schedule.at_end(lane)) continue;
        waiting += fmt::format("{}rank {} {} {}", waiting.empty() ? "" : "; ", rank,
                               schedule.under_way(lane) > 0 ? "waits for peers in" : "cannot start",
                               program::describe(nth(programs_, rank), schedule.current(lane).instruction));
      }
    if (!waiting.empty()) throw InternalError(fmt::format("programs cannot proceed: {}", waiting));
  }

  std::span<const Program> programs_;
  const InstructionTimes& times_;
  const CommunicationTimes& costs_;
  int iterations_;
  double now_ = 0;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  int64_t next_event_ = 0;
  std::vector<Rank> ranks_;
  std::set<int> changed_;
  // Both keep what they hold where it is.
  std::deque<Operation> operations_;
  std::deque<Message> messages_;
  std::map<Way, program::MessageEnds<Operation*>> ends_;
  std::map<int, program::Meeting<Operation*>> meetings_;      // by group
  std::vector<double> leaves_host_free_, reaches_host_free_;  // by host: when its link is, in a direction
};

}  // namespace

std::vector<ProgramTimeline> replay(std::span<const Program> programs, const InstructionTimes& times,
                                    int iterations) {
  return Replay(programs, times, iterations).run();
}

}  // namespace lockstep::plan
