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
#include "program/lane_overlap.h"
#include "program/program_traffic.h"
#include "program/ring_schedule.h"

namespace lockstep::plan {
namespace {

using program::Instruction;
using program::InstructionKind;
using program::LaneKind;
using program::Program;
using program::Role;

bool is_ring(const Instruction& instruction) {
  return instruction.kind == InstructionKind::ring_reduce_scatter ||
         instruction.kind == InstructionKind::ring_all_gather;
}

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
  int rank = 0, lane = 0, instruction = 0, iteration = 0;
  int messages_left = 0;  // of an exchange, or of a ring's round
  int round = 0;
  bool arrived = false;  // all of it, though what is before it in its lane may not be complete
};

/// Bytes from one rank to another, of which each end is known once it is posted.
struct Message {
  int from = 0, to = 0;
  int64_t bytes = 0, handed_over = 0, arrived = 0;
  Operation *sender = nullptr, *receiver = nullptr;
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
  struct Lane {
    std::vector<int> instructions;
    LaneKind kind = LaneKind::compute;
    int iteration = 0;
    size_t next = 0;                   // the first that is not complete
    std::deque<Operation*> under_way;  // `next`, and those behind it
  };
  struct Rank {
    std::vector<Lane> lanes;
    std::vector<bool> reports;            // by instruction
    std::vector<int> independent;         // by instruction, of so many before it in its lane
    std::vector<int> issue_order;         // communications
    int64_t issued = 0;                   // over all iterations
    std::vector<int> done;                // by instruction: in so many iterations
    std::vector<int> left, reports_left;  // by iteration
    int begun = 0;                        // iterations
    // The one thread, or, where lanes have their own, what handles messages.
    bool computes = false;
    double handles_until = 0;
    double compute_end = 0;
    std::vector<std::vector<TimedInstruction>> timed;  // by iteration and instruction
    std::vector<double> busy;                          // by iteration
  };
  using Way = std::tuple<int, int, int>;  // group, sender and receiver
  struct Queue {
    int64_t sent = 0, received = 0;  // ends posted
    int64_t first = 0;               // number of the front
    std::deque<Message*> waiting;
  };

  void add(const Program& program) {
    Rank& rank = ranks_.emplace_back();
    const auto count = program.instructions.size();
    rank.lanes.resize(program.lanes.size());
    for (size_t lane = 0; lane < rank.lanes.size(); ++lane) rank.lanes[lane].kind = program.lanes[lane].kind;
    rank.reports.assign(count, false);
    for (const int report : program::report_instructions(program)) nth(rank.reports, report) = true;
    for (int i = 0; i < static_cast<int>(count); ++i) {
      const Instruction& instruction = program.instruction(i);
      require(instruction.kind != InstructionKind::push && instruction.kind != InstructionKind::pull &&
                  instruction.kind != InstructionKind::serve,
              "replay takes no programs of sessions: they do not say in which order servers are met");
      nth(rank.lanes, instruction.lane).instructions.push_back(i);
      if (program::communicates(instruction.kind)) rank.issue_order.push_back(i);
    }
    if (times_.one_thread) rank.independent = program::independent_predecessors(program);
    rank.done.assign(count, 0);
    rank.left.assign(static_cast<size_t>(iterations_), static_cast<int>(count));
    rank.reports_left.assign(static_cast<size_t>(iterations_),
                             static_cast<int>(std::ranges::count(rank.reports, true)));
    rank.timed.assign(static_cast<size_t>(iterations_), std::vector<TimedInstruction>(count));
    rank.busy.assign(static_cast<size_t>(iterations_), 0);
  }

  int rank_count() const { return static_cast<int>(ranks_.size()); }
  int host_of(int rank) const { return times_.hosts.empty() ? 0 : nth(times_.hosts, rank); }
  const Instruction& instruction_of(const Operation& operation) const {
    return nth(programs_, operation.rank).instruction(operation.instruction);
  }
  bool is_done(const Lane& lane) const { return lane.instructions.empty() || lane.iteration == iterations_; }

  void at(double time, std::function<void()> happens) {
    events_.push({std::max(time, now_), next_event_++, std::move(happens)});
  }

  /// Whether an instruction may start as far as others of its rank are concerned.
  bool is_ready(const Rank& rank, const Program& program, int i, int iteration) const {
    if (iteration >= rank.begun) return false;
    for (const program::Dependency& needed : program.instruction(i).after)
      if (nth(rank.done, needed.instruction) + needed.distance <= iteration) return false;
    return !times_.communicates_in_order || !program::communicates(program.instruction(i).kind) ||
           nth(rank.issue_order,
               static_cast<int>(rank.issued % static_cast<int64_t>(rank.issue_order.size()))) == i;
  }

  void begin_iterations(Rank& rank) {
    while (rank.begun < iterations_ && (rank.begun < 1 || nth(rank.reports_left, rank.begun - 1) == 0) &&
           (rank.begun < 2 || nth(rank.left, rank.begun - 2) == 0))
      ++rank.begun;
  }

  /// Starts whatever the rank can start now.
  void proceed(int number) {
    Rank& rank = nth(ranks_, number);
    const Program& program = nth(programs_, number);
    for (bool moves = true; moves;) {
      moves = false;
      begin_iterations(rank);
      Lane* first = nullptr;  // of those that need the one thread
      for (Lane& lane : rank.lanes) {
        if (is_done(lane)) continue;
        const int i = nth(lane.instructions, lane.next);
        const bool shares_thread = times_.one_thread && lane.kind != LaneKind::comm;
        if (lane.under_way.empty() && is_ready(rank, program, i, lane.iteration)) {
          if (!shares_thread) {
            lane.under_way.push_back(start(number, lane, i, lane.iteration));
            moves = true;
          } else if (!rank.computes && (first == nullptr || precedes(lane, *first))) {
            first = &lane;
          }
        } else if (!lane.under_way.empty() && may_go_ahead(rank, program, lane)) {
          const int behind = nth(lane.instructions, lane.next + lane.under_way.size());
          lane.under_way.push_back(start(number, lane, behind, lane.iteration));
          moves = true;
        }
      }
      if (!moves && first != nullptr) {
        first->under_way.push_back(
            start(number, *first, nth(first->instructions, first->next), first->iteration));
        moves = true;
      }
    }
  }

  static bool precedes(const Lane& one, const Lane& other) {
    return std::pair(one.iteration, nth(one.instructions, one.next)) <
           std::pair(other.iteration, nth(other.instructions, other.next));
  }

  bool may_go_ahead(const Rank& rank, const Program& program, const Lane& lane) const {
    const size_t next = lane.next + lane.under_way.size();
    if (!times_.one_thread || next == lane.instructions.size()) return false;
    const int i = nth(lane.instructions, next);
    return nth(rank.independent, i) >= static_cast<int>(lane.under_way.size()) &&
           is_ready(rank, program, i, lane.iteration);
  }

  Operation* start(int number, const Lane& lane, int i, int iteration) {
    Rank& rank = nth(ranks_, number);
    const Instruction& instruction = nth(programs_, number).instruction(i);
    Operation& operation = operations_.emplace_back(
        Operation{.rank = number, .lane = instruction.lane, .instruction = i, .iteration = iteration});
    TimedInstruction& timed = nth(nth(rank.timed, iteration), i);
    timed.start = now_;
    if (program::communicates(instruction.kind)) {
      ++rank.issued;
      communicate(operation);
    } else if (times_.one_thread && lane.kind != LaneKind::comm) {
      const double time = times_.compute(number, instruction);
      rank.computes = true;
      timed.start = std::max(now_, rank.handles_until);
      rank.compute_end = timed.start + time;
      nth(rank.busy, iteration) += lane.kind == LaneKind::compute ? time : 0;
      expect_compute_end(operation);
    } else {
      const double time = times_.compute(number, instruction);
      nth(rank.busy, iteration) += lane.kind == LaneKind::compute ? time : 0;
      const double end = times_.one_thread ? handle(number, time) : now_ + time;
      at(end, [this, &operation] { complete(operation); });
    }
    return &operation;
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
    } else if (is_ring(instruction) && members.size() > 1) {
      begin_round(operation);
    } else {
      meet(operation);
    }
  }

  void begin_round(Operation& operation) {
    const Instruction& instruction = instruction_of(operation);
    const program::Members& members = nth(programs_, operation.rank).group(instruction.group).members;
    const int count = static_cast<int>(members.size()), own = members.index_of(operation.rank);
    const program::RingPass pass = instruction.kind == InstructionKind::ring_reduce_scatter
                                       ? program::RingPass::reduce_scatter
                                       : program::RingPass::all_gather;
    const program::RingRound round = program::ring_round(pass, own, count, operation.round);
    operation.messages_left = 2;
    const int64_t sent = program::block_bytes(instruction.blocks, round.send, count);
    const int64_t received = program::block_bytes(instruction.blocks, round.receive, count);
    post(operation, members[static_cast<size_t>((own + 1) % count)], true, sent);
    post(operation, members[static_cast<size_t>((own + count - 1) % count)], false, received);
  }

  /// One end of the next message between two ranks of a group.
  void post(Operation& operation, int peer, bool sends, int64_t bytes) {
    const int from = sends ? operation.rank : peer, to = sends ? peer : operation.rank;
    Queue& queue = queues_[{instruction_of(operation).group, from, to}];
    const int64_t number = (sends ? queue.sent : queue.received)++;
    while (queue.first + static_cast<int64_t>(queue.waiting.size()) <= number)
      queue.waiting.push_back(&messages_.emplace_back(Message{.from = from, .to = to, .bytes = bytes}));
    Message& message = *queue.waiting[static_cast<size_t>(number - queue.first)];
    (sends ? message.sender : message.receiver) = &operation;
    if (message.sender == nullptr || message.receiver == nullptr) return;
    while (!queue.waiting.empty() && queue.waiting.front()->sender != nullptr &&
           queue.waiting.front()->receiver != nullptr)
      queue.waiting.pop_front(), ++queue.first;
    const double latency = is_ring(instruction_of(operation)) ? costs_.meeting : costs_.latency;
    at(now_ + latency, [this, &message] { hand_over(message); });
  }

  bool crosses(const Message& message) const { return host_of(message.from) != host_of(message.to); }

  /// The sender's thread passes on the next piece, and the link takes it.
  void hand_over(Message& message) {
    const double handling = crosses(message) ? costs_.handling_per_byte : costs_.local_handling_per_byte;
    const bool whole = handling == 0 && costs_.link_per_byte == 0;
    const int64_t left = message.bytes - message.handed_over;
    const int64_t piece = whole ? left : std::min(left, kMessagePieceBytes);
    message.handed_over += piece;
    const auto bytes = static_cast<double>(piece);
    const double handed = handling > 0 ? handle(message.from, bytes * handling) : now_;
    at(handed, [this, &message, piece, handling] {
      double there = now_;
      if (crosses(message)) {
        double& leaves = nth(leaves_host_free_, host_of(message.from));
        double& reaches = nth(reaches_host_free_, host_of(message.to));
        // A bucket that has filled up lets go of what it holds at once.
        const double filled = now_ - costs_.link_burst_bytes * costs_.link_per_byte;
        leaves = reaches =
            std::max({filled, leaves, reaches}) + static_cast<double>(piece) * costs_.link_per_byte;
        there = std::max(now_, leaves);
      }
      if (message.handed_over < message.bytes) hand_over(message);
      at(there, [this, &message, piece, handling] {
        const double taken = handling > 0 ? handle(message.to, static_cast<double>(piece) * handling) : now_;
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
    if (!is_ring(instruction)) return complete(operation);
    const auto count =
        static_cast<int>(nth(programs_, operation.rank).group(instruction.group).members.size());
    const int own = nth(programs_, operation.rank).group(instruction.group).members.index_of(operation.rank);
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
    auto& [count, meetings] = meetings_[instruction.group];
    const size_t number = count[operation.rank]++;
    while (meetings.size() <= number) meetings.emplace_back();
    std::vector<Operation*>& members = meetings[number];
    members.push_back(&operation);
    if (members.size() < group.members.size()) return;
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
    Lane& lane = nth(rank.lanes, operation.lane);
    while (!lane.under_way.empty() && lane.under_way.front()->arrived) {
      const Operation& ended = *lane.under_way.front();
      nth(nth(rank.timed, ended.iteration), ended.instruction).end = now_;
      ++nth(rank.done, ended.instruction);
      --nth(rank.left, ended.iteration);
      if (nth(rank.reports, ended.instruction)) --nth(rank.reports_left, ended.iteration);
      lane.under_way.pop_front();
      if (++lane.next == lane.instructions.size()) {
        lane.next = 0;
        ++lane.iteration;
      }
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
      for (const Lane& lane : nth(ranks_, rank).lanes) {
        if (is_done(lane)) continue;
        waiting += fmt::format("{}rank {} {} {}", waiting.empty() ? "" : "; ", rank,
                               !lane.under_way.empty() ? "waits for peers in" : "cannot start",
                               program::describe(nth(programs_, rank), nth(lane.instructions, lane.next)));
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
  std::map<Way, Queue> queues_;
  std::map<int, std::pair<std::map<int, size_t>, std::deque<std::vector<Operation*>>>> meetings_;
  std::vector<double> leaves_host_free_, reaches_host_free_;  // by host: when its link is, in a direction
};

}  // namespace

std::vector<ProgramTimeline> replay(std::span<const Program> programs, const InstructionTimes& times,
                                    int iterations) {
  return Replay(programs, times, iterations).run();
}

}  // namespace lockstep::plan
