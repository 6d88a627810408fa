#include "plan/step_prediction.h"

#include <algorithm>
#include <bit>

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
    case InstructionKind::update:
      return true;
    default:
      return false;
  }
}

/// As many as an addition of such an array would pass over: half of what is read and written.
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
    switch (instruction.kind) {
      case InstructionKind::constants:
        return run_.placement().is_worker(rank) ? costs_.overhead : 0;
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
      case InstructionKind::update:
        return costs_.profile.update_seconds * bytes(instruction, Role::parameters) / sizeof(float);
      default:
        return costs_.addition_per_byte * moved_bytes(instruction);
    }
  }

 private:
  double sum(const Instruction& instruction, const auto& part) const {
    const model::Segment& segment = run_.partition().segment(instruction.segment);
    double time = 0;
    for (int n = segment.first_node; n <= segment.last_node; ++n) time += part(nth(nodes_, n));
    return time;
  }

  double recomputed(const Instruction& instruction) const {
    const model::Segment& segment = run_.partition().segment(instruction.segment);
    const bool selective = run_.layout().recompute == layout::Recompute::selective;
    double time = 0;
    for (int n = segment.first_node; n <= segment.last_node; ++n)
      if (!selective || run_.graph().node(n).signature.cheap_to_repeat) time += nth(nodes_, n).forward;
    return time;
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
    busy_.resize(static_cast<size_t>(run.layout().world_size()), 0);
  }

  double step() {
    const layout::Layout& layout = run_.layout();
    const double pushes = static_cast<double>(layout.pushes_per_step()) / layout.workers();
    for (int rank = 0; rank < layout.workers(); ++rank) add_worker(rank);
    for (int rank = 0; rank < layout.world_size(); ++rank) add_updates(rank);
    double longest = 0;
    for (const double busy : busy_) longest = std::max(longest, pushes * busy);
    return std::max(longest, busiest_link_bytes(run_, hosts_) * costs_.communication.link_per_byte);
  }

 private:
  void add_worker(int rank) {
    const program::Program step = run_.compile(rank).step;
    double& busy = nth(busy_, rank);
    for (const Instruction& instruction : step.instructions) {
      if (!program::communicates(instruction.kind)) {
        busy += compute_.of(rank, instruction);
        continue;
      }
      for (const Operand& operand : instruction.operands) {
        const bool passes = (instruction.kind == InstructionKind::push && operand.role == Role::gradients) ||
                            (instruction.kind == InstructionKind::pull && operand.role == Role::parameters);
        if (!passes) continue;
        const program::Group& group = step.group(instruction.group);
        handle(rank, group.members[static_cast<size_t>(operand.peer)], operand.range.size_bytes);
      }
    }
    // What the last push needs to come back as parameters.
    busy += 2 * costs_.communication.latency;
  }

  void handle(int worker, int server, int64_t bytes) {
    const bool crosses = nth(hosts_, worker) != nth(hosts_, server);
    const CommunicationTimes& costs = costs_.communication;
    const double time =
        static_cast<double>(bytes) * (crosses ? costs.handling_per_byte : costs.local_handling_per_byte);
    nth(busy_, worker) += time;
    nth(busy_, server) += time;
  }

  /// Of what workers have pushed to it, each once.
  void add_updates(int rank) {
    const auto owned = static_cast<double>(run_.placement().owned_bytes(rank));
    const bool alone = run_.layout().mode == layout::ServerMode::asynchronous;
    const double workers = run_.layout().workers();
    nth(busy_, rank) += (alone ? workers : 1) * costs_.profile.update_seconds * owned / sizeof(float) +
                        (alone ? 0 : workers * costs_.addition_per_byte * owned);
  }

  const compile::CompiledRun& run_;
  const std::vector<int>& hosts_;
  const StepCosts& costs_;
  ComputeTimes compute_;
  std::vector<double> busy_;  // by rank, of a push of each worker
};

}  // namespace

CommunicationTimes communication_times(const MachineFigures& figures) {
  const auto handling = [](const MessageFigures& messages) { return messages.both_ways_per_byte / 2; };
  const MessageFigures& between = figures.between_hosts;
  const bool link_decides = between.both_ways_per_byte < 1.5 * between.one_way_per_byte;
  CommunicationTimes times{.local_handling_per_byte = handling(figures.within_host),
                           .sum_per_byte = figures.addition_per_byte,
                           .shared_sum_per_byte = figures.shared_sum_per_byte};
  times.handling_per_byte = link_decides ? handling(figures.free_link) : handling(between);
  times.link_per_byte = link_decides ? between.one_way_per_byte : 0;
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
    if (!program::communicates(instruction.kind) && !is_measured(instruction.kind))
      bytes += moved_bytes(instruction);
  return costs.addition_per_byte * bytes;
}

double predict_step(const compile::CompiledRun& run, const std::vector<int>& hosts, const StepCosts& costs) {
  if (run.layout().has_sessions()) return SessionTimes(run, hosts, costs).step();
  const ComputeTimes compute(run, costs);
  std::vector<program::Program> programs;
  for (int rank = 0; rank < run.layout().world_size(); ++rank) programs.push_back(run.compile(rank).step);
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
