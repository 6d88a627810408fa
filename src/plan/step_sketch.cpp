#include "plan/step_sketch.h"

#include "base/index.h"

namespace lockstep::plan {
namespace {

using program::Instruction;
using program::InstructionKind;

double sum_of(const std::vector<model::NodeTime>& nodes) {
  double sum = 0;
  for (const model::NodeTime& node : nodes) sum += node.all();
  return sum;
}

class SketchedTimes {
 public:
  explicit SketchedTimes(const compile::CompiledRun& run)
      : run_(run),
        nodes_(run.node_times()),
        operation_(sum_of(nodes_) / sum_of(model::estimated_times(run.graph(), run.division().micro_batch))) {
  }

  double operation() const { return operation_; }

  double of(const Instruction& instruction) const {
    if (instruction.anew) return 0;  // steps follow each other
    switch (instruction.kind) {
      case InstructionKind::forward:
      case InstructionKind::recompute:
        return sum(instruction, [](const model::NodeTime& time) { return time.forward; });
      case InstructionKind::backward:
        return sum(instruction, [](const model::NodeTime& time) { return time.backward(); });
      case InstructionKind::backward_input:
        return sum(instruction, [](const model::NodeTime& time) { return time.backward_input; });
      case InstructionKind::backward_weight:
        return sum(instruction, [](const model::NodeTime& time) { return time.backward_weight; });
      default:
        return operation_ * model::kOperationsPerByte * passed_bytes(instruction);
    }
  }

 private:
  double sum(const Instruction& instruction, const auto& part) const {
    const model::Segment& segment = run_.partition().segment(instruction.segment);
    double time = 0;
    for (int n = segment.first_node; n <= segment.last_node; ++n) time += part(nth(nodes_, n));
    return time * run_.division().part_of_largest(instruction.leaves);
  }

  static double passed_bytes(const Instruction& instruction) {
    double bytes = 0;
    for (const program::Operand& operand : instruction.operands)
      bytes += static_cast<double>(operand.range.size_bytes) *
               (operand.access == program::Access::read_write ? 2 : 1);
    return bytes;
  }

  const compile::CompiledRun& run_;
  std::vector<model::NodeTime> nodes_;
  double operation_;
};

}  // namespace

ProgramTimeline sketch_step(const compile::CompiledRun& run, std::span<const program::Program> programs,
                            const std::vector<int>& hosts) {
  const SketchedTimes times(run);
  const double per_byte = times.operation() * model::kOperationsPerByte;
  const CommunicationTimes communication{.link_per_byte = times.operation() * kOperationsPerLinkByte,
                                         .local_handling_per_byte = 2 * per_byte,
                                         .sum_per_byte = 3 * per_byte,
                                         .shared_sum_per_byte = 3 * per_byte};
  return replay(programs,
                {.compute = [&](int, const Instruction& instruction) { return times.of(instruction); },
                 .communication = communication,
                 .hosts = hosts},
                3)[1];
}

}  // namespace lockstep::plan
