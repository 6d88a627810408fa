#include "plan/link_traffic.h"

#include <algorithm>
#include <utility>

#include "base/index.h"
#include "program/program_traffic.h"

namespace lockstep::plan {
namespace {

using program::Instruction;
using program::InstructionKind;
using program::Operand;
using program::Role;

class Links {
 public:
  Links(const std::vector<int>& hosts, double factor) : hosts_(hosts), factor_(factor) {
    int most = 0;
    for (const int host : hosts) most = std::max(most, host);
    bytes_.resize(static_cast<size_t>(most) + 1);
  }

  void pass(int from, int to, int64_t bytes) {
    const int source = nth(hosts_, from), target = nth(hosts_, to);
    if (source == target) return;
    nth(bytes_, source).sent += factor_ * static_cast<double>(bytes);
    nth(bytes_, target).received += factor_ * static_cast<double>(bytes);
  }
  std::vector<LinkBytes> bytes() && { return std::move(bytes_); }

 private:
  const std::vector<int>& hosts_;
  double factor_;
  std::vector<LinkBytes> bytes_;
};

/// What `program.rank` sends by an instruction, and what it pulls: so every message counts once.
void add(const program::Program& program, const Instruction& instruction, Links& links) {
  if (instruction.group < 0 || instruction.kind == InstructionKind::serve) return;
  const program::Group& group = program.group(instruction.group);
  const auto member = [&](const Operand& operand) {
    return group.members[static_cast<size_t>(operand.peer)];
  };
  switch (instruction.kind) {
    case InstructionKind::exchange:
      for (const Operand& operand : instruction.operands)
        if (operand.role == Role::send) links.pass(program.rank, member(operand), operand.range.size_bytes);
      return;
    case InstructionKind::push:
      for (const Operand& operand : instruction.operands)
        if (operand.role == Role::gradients)
          links.pass(program.rank, member(operand), operand.range.size_bytes);
      return;
    case InstructionKind::pull:
      for (const Operand& operand : instruction.operands)
        if (operand.role == Role::parameters)
          links.pass(member(operand), program.rank, operand.range.size_bytes);
      return;
    default:
      break;
  }
  const int own = group.members.index_of(program.rank);
  const int next = group.members[(static_cast<size_t>(own) + 1) % group.members.size()];
  links.pass(program.rank, next, program::traffic_of(program, instruction).sent_bytes);
}

}  // namespace

std::vector<LinkBytes> link_bytes(const compile::CompiledRun& run, const std::vector<int>& hosts) {
  // Programs are of one push of each worker.
  const layout::Layout& layout = run.layout();
  Links links(hosts, static_cast<double>(layout.pushes_per_step()) / layout.workers());
  for (int rank = 0; rank < layout.world_size(); ++rank) {
    const program::Program step = run.compile(rank).step;
    for (const Instruction& instruction : step.instructions) add(step, instruction, links);
  }
  return std::move(links).bytes();
}

double busiest_link_bytes(const compile::CompiledRun& run, const std::vector<int>& hosts) {
  double most = 0;
  for (const LinkBytes& link : link_bytes(run, hosts)) most = std::max({most, link.sent, link.received});
  return most;
}

}  // namespace lockstep::plan
