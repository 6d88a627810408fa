#include "program/program.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/ensure.h"
#include "base/hash.h"
#include "base/index.h"
#include "lockstep/error.h"

namespace lockstep::program {

std::string_view name_of(InstructionKind kind) {
  static constexpr std::array<std::string_view, kInstructionKindCount> kNames = {
      "constants",       "load",  "forward", "backward", "backward_input", "backward_weight",
      "recompute",       "add",   "cast",    "exchange", "all_reduce",     "ring_reduce_scatter",
      "ring_all_gather", "push",  "pull",    "norm",     "propose",        "ratios",
      "digest",          "agree", "update",  "snapshot", "serve"};
  static_assert(!kNames.back().empty());
  return nth(kNames, kind);
}

bool communicates(InstructionKind kind) {
  switch (kind) {
    case InstructionKind::exchange:
    case InstructionKind::all_reduce:
    case InstructionKind::ring_reduce_scatter:
    case InstructionKind::ring_all_gather:
    case InstructionKind::push:
    case InstructionKind::pull:
    case InstructionKind::agree:
      return true;
    default:
      return false;
  }
}

std::string_view name_of(LaneKind kind) {
  static constexpr std::array<std::string_view, 4> kNames = {"compute", "copy", "comm", "server"};
  return nth(kNames, kind);
}

std::string_view name_of(Transport transport) {
  static constexpr std::array<std::string_view, kTransportCount> kNames = {"host", "shared_memory", "device"};
  return nth(kNames, transport);
}

std::string_view name_of(Space space) {
  static constexpr std::array<std::string_view, kSpaceCount> kNames = {
      "arena", "parameters", "gradients", "optimizer", "staging", "scalars", "host"};
  return nth(kNames, space);
}

std::string_view name_of(Category category) {
  static constexpr std::array<std::string_view, 6> kNames = {"parameters",  "gradients", "optimizer_state",
                                                             "activations", "workspace", "staging"};
  return nth(kNames, category);
}

std::string_view name_of(Role role) {
  static constexpr std::array<std::string_view, kRoleCount> kNames = {
      "batch",           "constants",      "input",      "output",    "stash",   "temporary",
      "output_gradient", "input_gradient", "parameters", "gradients", "state",   "metrics",
      "source",          "destination",    "data",       "send",      "receive", "chunks",
      "verdict",         "predicate",      "scales",     "residual"};
  static_assert(!kNames.back().empty());
  return nth(kNames, role);
}

int Program::add_lane(std::string lane_name, LaneKind kind) {
  lanes.push_back({std::move(lane_name), kind});
  return static_cast<int>(lanes.size()) - 1;
}

int Program::add_buffer(std::string buffer_name, Space space, Category category, int64_t size_bytes) {
  buffers.push_back({std::move(buffer_name), space, category, size_bytes, -1});
  return static_cast<int>(buffers.size()) - 1;
}

ByteRange Program::residual_range(int segment, int leaf, int64_t begin, int64_t size_bytes) const {
  for (const ResidualPlace& place : residuals) {
    const bool has_leaf = place.first_leaf <= leaf && leaf < place.first_leaf + place.leaves;
    if (place.segment != segment || !has_leaf) continue;
    const int64_t each = place.leaf_bytes(buffer(place.buffer).size_bytes);
    ensure(begin >= 0 && begin + size_bytes <= each, "residuals are of the bytes that are rounded");
    return {place.buffer, (leaf - place.first_leaf) * each + begin, size_bytes};
  }
  throw InternalError(fmt::format("rank {} has no residuals of leaf {} of segment {}", rank, leaf, segment));
}

namespace {

/// " to rank 2", " from rank 0": of messages that all go one way between two ranks.
std::string direction_of(const Program& program, const Instruction& instruction) {
  if (instruction.kind != InstructionKind::exchange || instruction.operands.empty()) return "";
  const Operand& first = instruction.operands.front();
  if (std::ranges::any_of(instruction.operands, [&](const Operand& operand) {
        return operand.role != first.role || operand.peer != first.peer;
      }))
    return "";
  const auto groups = static_cast<int>(program.groups.size());
  if (instruction.group < 0 || instruction.group >= groups) return "";
  const Members& members = program.group(instruction.group).members;
  if (first.peer < 0 || first.peer >= static_cast<int>(members.size())) return "";
  return fmt::format(" {} rank {}", first.role == Role::send ? "to" : "from", nth(members, first.peer));
}

}  // namespace

std::string describe(const Program& program, int instruction) {
  std::string text = fmt::format("{} instruction {}", program.name, instruction);
  if (instruction < 0 || instruction >= static_cast<int>(program.instructions.size())) return text;
  const Instruction& i = program.instruction(instruction);
  text += fmt::format(" ({}{}", name_of(i.kind), direction_of(program, i));
  if (i.lane >= 0 && i.lane < static_cast<int>(program.lanes.size()))
    text += fmt::format(", lane {}", program.lane(i.lane).name);
  if (i.segment >= 0) text += fmt::format(", segment {}", i.segment);
  if (i.micro_batch >= 0) text += fmt::format(", micro-batch {}", i.micro_batch);
  if (i.leaf >= 0 && i.leaves == 1) text += fmt::format(", leaf {}", i.leaf);
  if (i.leaf >= 0 && i.leaves > 1) text += fmt::format(", leaves {} to {}", i.leaf, i.leaf + i.leaves - 1);
  return text + ")";
}

bool loads(const Program& program) {
  return std::ranges::any_of(program.instructions, [](const Instruction& instruction) {
    return instruction.kind == InstructionKind::load;
  });
}

std::vector<int> report_instructions(const Program& program) {
  std::vector<int> reports, all;
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    const auto& operands = program.instructions[i].operands;
    all.push_back(static_cast<int>(i));
    // A digest is read with the verdict.
    if (program.instructions[i].kind == InstructionKind::digest ||
        std::any_of(operands.begin(), operands.end(),
                    [](const Operand& o) { return o.role == Role::verdict && o.access != Access::read; }))
      reports.push_back(static_cast<int>(i));
  }
  return reports.empty() ? all : reports;
}

uint64_t hash_of(const Program& program) {
  Program anonymous = program;
  anonymous.rank = 0;
  return hash64(to_text(anonymous));
}

}  // namespace lockstep::program
