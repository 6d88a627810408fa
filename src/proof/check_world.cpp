#include "proof/check_world.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/index.h"
#include "program/instruction_rules.h"

namespace lockstep::proof {

void Findings::add(Property property, int rank, int instruction, const std::string& what) {
  if (list_.size() >= limit_) return;
  std::string where = rank < 0 ? "" : fmt::format("rank {}: ", rank);
  if (rank >= 0 && instruction >= 0)
    where = fmt::format("rank {}, {}: ", rank, program::describe(nth(programs_, rank), instruction));
  list_.push_back({property, rank, instruction, where + what});
}

std::string describe(const program::Program& program, const program::ByteRange& range) {
  const program::ProgramBuffer& buffer = program.buffer(range.buffer);
  if (range.offset == 0 && range.size_bytes == buffer.size_bytes) return buffer.name;
  return fmt::format("{}[{}+{}]", buffer.name, range.offset, range.size_bytes);
}

program::Role moved_role(program::InstructionKind kind) {
  return kind == program::InstructionKind::pull ? program::Role::parameters : program::Role::gradients;
}

ProgramWorld::ProgramWorld(std::span<const program::Program> programs) : programs_(programs) {
  std::map<std::string, int> ids;
  for (const program::Program& program : programs) {
    auto& own = group_ids_.emplace_back();
    for (const program::Group& group : program.groups) {
      const bool alone = group.members == program::Members::run(program.rank, 1);
      const std::string name = alone ? fmt::format("{} of rank {}", group.name, program.rank) : group.name;
      own.push_back(ids.emplace(name, static_cast<int>(ids.size())).first->second);
    }
    auto& leaves = leaves_.emplace_back();
    auto& first = first_leaves_.emplace_back();
    for (const program::Instruction& instruction : program.instructions) {
      if (instruction.leaf >= 0) first.push_back(instruction.leaf);
      for (int i = 0; instruction.leaf >= 0 && i < instruction.leaves; ++i)
        leaves.insert(instruction.leaf + i);
      has_servers_ = has_servers_ || instruction.kind == program::InstructionKind::serve ||
                     instruction.kind == program::InstructionKind::push ||
                     instruction.kind == program::InstructionKind::pull;
    }
  }
  for (auto& first : first_leaves_) {
    std::ranges::sort(first);
    first.erase(std::ranges::unique(first).begin(), first.end());
  }
  collect_parameters();
  mark_trained();
}

int ProgramWorld::find_serve(int server, int group, int segment, int shard) const {
  const program::Program& of_server = program(server);
  for (size_t s = 0; s < of_server.instructions.size(); ++s) {
    const program::Instruction& i = of_server.instructions[s];
    if (i.kind != program::InstructionKind::serve || group_id(server, i) != group || i.segment != segment)
      continue;
    for (const program::Operand& operand : i.operands)
      if (operand.role == program::Role::parameters && operand.index == shard) return static_cast<int>(s);
  }
  return -1;
}

const std::vector<ProgramWorld::BucketUse>& ProgramWorld::bucket(int segment) const {
  static const std::vector<BucketUse> kNone;
  const auto found = buckets_.find(segment);
  return found == buckets_.end() ? kNone : found->second;
}

void ProgramWorld::collect_parameters() {
  std::map<std::string, int> ids;
  for (const program::Program& program : programs_) {
    auto& own = places_.emplace_back();
    for (const program::ParameterPlace& place : program.parameters) {
      const auto [found, is_new] = ids.emplace(place.name, static_cast<int>(parameters_.size()));
      if (is_new) parameters_.push_back({place.name, place.size_bytes, place.uses, place.is_frozen(), false});
      own.push_back(found->second);
    }
  }
  for (size_t p = 0; p < parameters_.size(); ++p)
    for (size_t u = 0; u < parameters_[p].uses.size(); ++u) {
      const auto& use = parameters_[p].uses[u];
      buckets_[use.segment].push_back({use.bucket_offset, use.bucket_offset + parameters_[p].size_bytes,
                                       static_cast<int>(p), static_cast<int>(u)});
    }
  for (auto& [segment, uses] : buckets_)
    std::sort(uses.begin(), uses.end(),
              [](const BucketUse& a, const BucketUse& b) { return a.begin < b.begin; });
}

void ProgramWorld::mark_trained() {
  for (size_t rank = 0; rank < programs_.size(); ++rank) {
    const program::Program& program = programs_[rank];
    for (const program::Instruction& instruction : program.instructions) {
      const bool has_gradients =
          std::any_of(instruction.operands.begin(), instruction.operands.end(),
                      [](const program::Operand& o) { return o.role == program::Role::gradients; });
      trains_ = trains_ || (has_gradients && (program::is_backward(instruction.kind) ||
                                              instruction.kind == program::InstructionKind::update ||
                                              instruction.kind == program::InstructionKind::push));
      if (instruction.kind == program::InstructionKind::push) {
        for (const BucketUse& use : bucket(instruction.segment))
          if (use.use == 0 && use.begin != program::kNoGradient)
            nth(parameters_, use.parameter).trained = true;
      }
      if (instruction.kind != program::InstructionKind::update) continue;
      for (const program::Operand& operand : instruction.operands) {
        if (operand.role != program::Role::parameters) continue;
        for (size_t p = 0; p < program.parameters.size(); ++p) {
          const program::ParameterPlace& place = program.parameters[p];
          if (place.buffer == operand.range.buffer &&
              place.offset < operand.range.offset + operand.range.size_bytes &&
              place.offset + place.held_range().size_bytes > operand.range.offset)
            nth(parameters_, places_[rank][p]).trained = true;
        }
      }
    }
  }
}

}  // namespace lockstep::proof
