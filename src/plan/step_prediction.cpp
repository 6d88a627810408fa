#include "plan/step_prediction.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/index.h"
#include "plan/link_traffic.h"

namespace lockstep::plan {
namespace {

using program::Instruction;
using program::InstructionKind;
using program::Operand;
using program::Role;

constexpr int kReplayed = 6, kSettled = 2;  // steps, and those after which one takes as long as the other

/// Whether profiles tell what it takes.
bool is_measured(InstructionKind kind) {
  switch (kind) {
    case InstructionKind::forward:
    case InstructionKind::backward:
    case InstructionKind::backward_input:
    case InstructionKind::backward_weight:
    case InstructionKind::recompute:
    case InstructionKind::propose:
    case InstructionKind::update:
      return true;
    default:
      return false;
  }
}

/// As many as an addition of such an array would pass over: a third of what is read and written.
double moved_bytes(const Instruction& instruction) {
  double all = 0;
  for (const Operand& operand : instruction.operands)
    if (operand.role != Role::temporary)
      all +=
          static_cast<double>(operand.range.size_bytes) * (operand.access == program::Access::read ? 1 : 2);
  return all / 3;  // an addition reads two, and writes one
}

/// What instructions that do not communicate take.
class ComputeTimes {
 public:
  ComputeTimes(const compile::CompiledRun& run, const StepCosts& costs)
      : run_(run),
        costs_(costs),
        nodes_(model::measured_times(run.graph(), run.division().micro_batch, costs.profile)) {}

  double of(int rank, const Instruction& instruction) const {
    if (instruction.anew) return 0;  // steps follow each other
    switch (instruction.kind) {
      case InstructionKind::constants:
        return run_.ownership().is_worker(rank) ? costs_.overhead : 0;
      case InstructionKind::forward:
        return sum(instruction, [](const model::NodeTime& time) { return time.forward; });
      case InstructionKind::backward:
        return sum(instruction, [](const model::NodeTime& time) { return time.backward(); });
      case InstructionKind::backward_input:
        return sum(instruction, [](const model::NodeTime& time) { return time.backward_input; });
      case InstructionKind::backward_weight:
        return sum(instruction, [](const model::NodeTime& time) { return time.backward_weight; });
      case InstructionKind::recompute:
        return recomputed(instruction);
      // Profiles have one time for both, and each computes roots and quotients of the same state.
      case InstructionKind::propose:
      case InstructionKind::update:
        return update_part() * bytes(instruction, Role::parameters);
      default:
        return costs_.addition_per_byte * moved_bytes(instruction);
    }
  }

 private:
  double sum(const Instruction& instruction, const auto& part) const {
    const model::Segment& segment = run_.partition().segment(instruction.segment);
    double time = 0;
    for (int n = segment.first_node; n <= segment.last_node; ++n) time += part(nth(nodes_, n));
    return time * run_.division().part_of_largest(instruction.leaves);
  }

  double recomputed(const Instruction& instruction) const {
    const model::Segment& segment = run_.partition().segment(instruction.segment);
    const bool selective = run_.layout().recompute == layout::Recompute::selective;
    double time = 0;
    for (int n = segment.first_node; n <= segment.last_node; ++n)
      if (!selective || run_.graph().node(n).signature.cheap_to_repeat) time += nth(nodes_, n).forward;
    return time * run_.division().part_of_largest(instruction.leaves);
  }

  /// Seconds per byte of parameters.
  double update_part() const {
    return costs_.profile.update_seconds / sizeof(float) / (run_.measures().updates() ? 2 : 1);
  }

  static double bytes(const Instruction& instruction, Role role) {
    double all = 0;
    for (const Operand& operand : instruction.operands)
      if (operand.role == role) all += static_cast<double>(operand.range.size_bytes);
    return all;
  }

  const compile::CompiledRun& run_;
  const StepCosts& costs_;
  std::vector<model::NodeTime> nodes_;
};

/// Of a step of all workers, in sessions.
class SessionTimes {
 public:
  SessionTimes(const compile::CompiledRun& run, const std::vector<int>& hosts, const StepCosts& costs)
      : run_(run), hosts_(hosts), costs_(costs), compute_(run, costs) {
    const auto ranks = static_cast<size_t>(run.layout().world_size());
    busy_.resize(ranks, 0), link_.resize(ranks, 0), crosses_.resize(ranks, false);
    for (int rank = 0; rank < run.layout().workers(); ++rank) add_worker(rank);
    for (int rank = 0; rank < run.layout().world_size(); ++rank) add_updates(rank);
  }

  double step() const {
    return run_.layout().mode == layout::ServerMode::asynchronous ? of_free_workers() : of_bound_workers();
  }

 private:
  /// All make as many steps.
  double of_bound_workers() const {
    double longest = links_take();
    for (int rank = 0; rank < run_.layout().world_size(); ++rank)
      longest = std::max(longest, nth(busy_, rank) + nth(link_, rank));
    return longest;
  }

  /// Who is faster makes more of the pushes. Seconds of as many as a step counts.
  double of_free_workers() const {
    const layout::Layout& layout = run_.layout();
    double near = 0, far = 0;  // pushes in a second of workers that no link holds up, and of others
    for (int rank = 0; rank < layout.workers(); ++rank)
      (nth(crosses_, rank) ? far : near) += 1 / (nth(busy_, rank) + nth(link_, rank));
    double pushes = near + far;
    // All are as fast as the busiest link lets those far away be, and the busiest server.
    const double links = links_take();
    const auto far_workers = static_cast<double>(std::ranges::count(crosses_, true));
    if (links > 0) pushes = near + std::min(far, far_workers / links);
    for (int rank = 0; rank < layout.world_size(); ++rank)
      if (!run_.ownership().is_worker(rank) && nth(busy_, rank) > 0)
        pushes = std::min(pushes, layout.workers() / nth(busy_, rank));
    return layout.pushes_per_step() / pushes;
  }

  /// Of a push and a pull of each worker, in the busier direction of the busiest.
  double links_take() const {
    const double pushes = static_cast<double>(run_.layout().pushes_per_step()) / run_.layout().workers();
    return busiest_link_bytes(run_, hosts_) / pushes * costs_.communication.link_per_byte;
  }

  /// One pull, one computation and one push, as the program orders them: not what plan::replay walks through,
  /// since a session's ranks are in step with nobody.
  void add_worker(int rank) {
    const program::Program step = run_.compile(rank).step;
    const CommunicationTimes& costs = costs_.communication;
    std::vector<double> ends, lanes(step.lanes.size(), 0);
    double thread = 0, computes = 0;
    double push_burst = costs.link_burst_bytes, pull_burst = costs.link_burst_bytes;
    for (const Instruction& instruction : step.instructions) {
      double begin = nth(lanes, instruction.lane);
      for (const program::Dependency& before : instruction.after)
        if (before.distance == 0) begin = std::max(begin, nth(ends, before.instruction));
      double seconds;
      if (program::communicates(instruction.kind)) {
        double& burst = instruction.kind == InstructionKind::push ? push_burst : pull_burst;
        const double bytes = handle(rank, step, instruction), at_once = std::min(bytes, burst);
        burst -= at_once;
        seconds = (bytes - at_once) * costs.link_per_byte;
        if (bytes > 0) crosses_[static_cast<size_t>(rank)] = true;
      } else {
        begin = std::max(begin, thread);
        seconds = compute_.of(rank, instruction);
        computes += seconds;
        thread = begin + seconds;
      }
      ends.push_back(begin + seconds);
      nth(lanes, instruction.lane) = ends.back();
    }
    nth(link_, rank) = std::max(0.0, *std::ranges::max_element(ends) - computes);
    // What the last push needs to come back as parameters.
    nth(busy_, rank) += computes + 2 * costs.latency;
  }

  /// Handles what a push or a pull moves. Returns the bytes of it that pass a link.
  double handle(int rank, const program::Program& step, const Instruction& instruction) {
    double far_bytes = 0;
    for (const Operand& operand : instruction.operands)
      if ((instruction.kind == InstructionKind::push && operand.role == Role::gradients) ||
          (instruction.kind == InstructionKind::pull && operand.role == Role::parameters))
        far_bytes += handle(rank, step.group(instruction.group).members[static_cast<size_t>(operand.peer)],
                            static_cast<double>(operand.range.size_bytes));
    return far_bytes;
  }

  /// Both ends handle it. Returns the bytes that pass a link.
  double handle(int worker, int server, double bytes) {
    const bool crosses = nth(hosts_, worker) != nth(hosts_, server);
    const CommunicationTimes& costs = costs_.communication;
    const double handling = bytes * (crosses ? costs.handling_per_byte : costs.local_handling_per_byte);
    nth(busy_, worker) += handling;
    nth(busy_, server) += handling;
    return crosses ? bytes : 0;
  }

  /// Of what workers have pushed to it, each once.
  void add_updates(int rank) {
    const auto owned = static_cast<double>(run_.ownership().owned_bytes(rank));
    const bool alone = run_.layout().mode == layout::ServerMode::asynchronous;
    const double workers = run_.layout().workers();
    double update = costs_.profile.update_seconds * owned / sizeof(float);
    // Squares of gradients and of parameters are summed: two lists are read, of three that an addition
    // passes.
    if (run_.measures().parameters) update += costs_.addition_per_byte * owned * 2 / 3;
    nth(busy_, rank) +=
        (alone ? workers : 1) * update + (alone ? 0 : workers * costs_.addition_per_byte * owned);
  }

  const compile::CompiledRun& run_;
  const std::vector<int>& hosts_;
  const StepCosts& costs_;
  ComputeTimes compute_;
  std::vector<double> busy_;   // by rank, of a push of each worker
  std::vector<double> link_;   // by worker: what it waits for its pull and its push beside computing
  std::vector<bool> crosses_;  // by worker: whether anything of it passes a link
};

}  // namespace

CommunicationTimes communication_times(const MachineFigures& figures) {
  const auto handling = [](const MessageFigures& messages) { return messages.both_ways_per_byte / 2; };
  const MessageFigures& between = figures.between_hosts;
  const bool link_decides = between.both_ways_per_byte < 1.5 * between.one_way_per_byte;
  CommunicationTimes times{.local_handling_per_byte = handling(figures.within_host),
                           .sum_per_byte = figures.addition_per_byte,
                           .shared_sum_per_byte = figures.shared_sum_per_byte};
  const MessageFigures& handled =
      figures.free_link.both_ways_per_byte > 0 ? figures.free_link : figures.within_host;
  times.handling_per_byte = handling(link_decides ? handled : between);
  times.link_per_byte = link_decides ? between.one_way_per_byte : 0;
  times.link_burst_bytes = link_decides ? figures.link_burst_bytes : 0;
  times.latency = between.latency > 0 ? between.latency : figures.within_host.latency;
  times.meeting = times.latency;
  if (figures.shared_ranks > 1)
    times.meeting = figures.shared_meeting /
                    static_cast<double>(std::bit_width(static_cast<unsigned>(figures.shared_ranks - 1)));
  return times;
}

double other_seconds(const compile::CompiledRun& run, const StepCosts& costs) {
  double bytes = 0;
  for (const Instruction& instruction : run.compile(0).step.instructions)
    if (!program::communicates(instruction.kind) && !is_measured(instruction.kind) && !instruction.anew)
      bytes += moved_bytes(instruction);
  return costs.addition_per_byte * bytes;
}

double predict_step(const compile::CompiledRun& run, const std::vector<int>& hosts, const StepCosts& costs,
                    const std::function<void()>& gets_on) {
  if (run.layout().has_sessions()) return SessionTimes(run, hosts, costs).step();
  const ComputeTimes compute(run, costs);
  std::vector<program::Program> programs;
  for (int rank = 0; rank < run.layout().world_size(); ++rank) {
    if (gets_on) gets_on();
    programs.push_back(run.compile(rank).step);
  }
  if (gets_on) gets_on();
  const auto steps = replay(
      programs,
      {.compute = [&](int rank, const Instruction& instruction) { return compute.of(rank, instruction); },
       .communication = costs.communication,
       .hosts = hosts,
       .one_thread = true},
      kReplayed);
  return (steps.back().end - nth(steps, kSettled - 1).end) / (kReplayed - kSettled);
}

}  // namespace lockstep::plan
