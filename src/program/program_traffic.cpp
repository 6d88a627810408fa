#include "program/program_traffic.h"

#include <set>

namespace lockstep::program {
namespace {

/// Bytes that a rank sends for one operand of a communication of `ranks`.
int64_t sent_bytes(InstructionKind kind, const Operand& operand, int64_t ranks) {
  const int64_t bytes = operand.range.size_bytes;
  if (operand.role == Role::send) return bytes;
  if (operand.role != Role::data) return 0;
  const int64_t others_share = bytes * (ranks - 1) / ranks;
  if (kind == InstructionKind::all_reduce) return 2 * others_share;
  return kind == InstructionKind::agree ? others_share : 0;
}

/// Bytes that a rank of a group sends around a ring: all blocks but the one that ends there.
int64_t ring_bytes(const Instruction& instruction, int rank, int ranks) {
  const bool scatters = instruction.kind == InstructionKind::ring_reduce_scatter;
  const int never_sent = scatters ? rank : (rank + 1) % ranks;
  return bytes_of(instruction.blocks) - block_bytes(instruction.blocks, never_sent, ranks);
}

/// What goes to servers and comes from them.
void add_served(const Instruction& instruction, ProgramTraffic& traffic) {
  const auto count = [&](int64_t sent, int64_t received) {
    traffic.sent_bytes += sent;
    traffic.exchanged_sent_bytes += sent;
    traffic.exchanged_received_bytes += received;
  };
  std::set<int> workers;
  int64_t range_bytes = 0;
  for (const auto& operand : instruction.operands) {
    const int64_t bytes = operand.range.size_bytes;
    if (instruction.kind == InstructionKind::push && operand.role == Role::gradients) count(bytes, 0);
    if (instruction.kind == InstructionKind::pull && operand.role == Role::parameters) count(0, bytes);
    if (instruction.kind != InstructionKind::serve) continue;
    if (operand.role == Role::parameters) range_bytes = bytes;
    if (operand.role == Role::gradients) workers.insert(operand.peer);
  }
  const auto pairs = static_cast<int64_t>(workers.size());
  count(pairs * range_bytes, pairs * range_bytes);
}

}  // namespace

ProgramTraffic traffic_of(const Program& program, const Instruction& instruction) {
  ProgramTraffic traffic;
  add_served(instruction, traffic);
  if (!communicates(instruction.kind) || instruction.group < 0) return traffic;
  const Group& group = program.group(instruction.group);
  const auto ranks = static_cast<int64_t>(group.members.size());
  if (!instruction.blocks.empty()) {
    const int own = group.members.index_of(program.rank), count = static_cast<int>(ranks);
    traffic.sent_bytes = traffic.exchanged_sent_bytes = ring_bytes(instruction, own, count);
    traffic.exchanged_received_bytes = ring_bytes(instruction, (own + count - 1) % count, count);
    return traffic;
  }
  for (const auto& operand : instruction.operands) {
    if (operand.role == Role::send) traffic.exchanged_sent_bytes += operand.range.size_bytes;
    if (operand.role == Role::receive) traffic.exchanged_received_bytes += operand.range.size_bytes;
    if (group.transport == Transport::shared_memory && operand.role == Role::data)
      traffic.shared_memory_bytes += ranks > 1 ? operand.range.size_bytes : 0;
    else
      traffic.sent_bytes += sent_bytes(instruction.kind, operand, ranks);
  }
  return traffic;
}

ProgramTraffic traffic_of(const Program& program) {
  ProgramTraffic all;
  for (const auto& instruction : program.instructions) {
    const ProgramTraffic traffic = traffic_of(program, instruction);
    all.sent_bytes += traffic.sent_bytes;
    all.exchanged_sent_bytes += traffic.exchanged_sent_bytes;
    all.exchanged_received_bytes += traffic.exchanged_received_bytes;
    all.shared_memory_bytes += traffic.shared_memory_bytes;
  }
  return all;
}

}  // namespace lockstep::program
