#include "program/lane_overlap.h"

#include "base/index.h"

namespace lockstep::program {
namespace {

bool touch(const Program& program, const ByteRange& one, const ByteRange& two) {
  const ProgramBuffer &first = program.buffer(one.buffer), &second = program.buffer(two.buffer);
  if (first.space != second.space) return false;
  const int64_t begin = first.offset + one.offset, other = second.offset + two.offset;
  return begin < other + two.size_bytes && other < begin + one.size_bytes;
}

bool conflict(const Program& program, const Instruction& before, const Instruction& instruction) {
  for (const Operand& one : before.operands)
    for (const Operand& two : instruction.operands)
      if ((one.role != Role::send || two.role != Role::send) && touch(program, one.range, two.range))
        return true;
  return false;
}

}  // namespace

std::vector<int> independent_predecessors(const Program& program) {
  std::vector<int> independent;
  std::vector<std::vector<const Instruction*>> lanes(program.lanes.size());
  for (const Instruction& instruction : program.instructions) {
    auto& before = nth(lanes, instruction.lane);
    int count = 0;
    while (instruction.kind == InstructionKind::exchange && count + 1 < kMostExchangesUnderWay &&
           count < static_cast<int>(before.size())) {
      const Instruction& one = *before[before.size() - 1 - static_cast<size_t>(count)];
      if (one.kind != InstructionKind::exchange || conflict(program, one, instruction)) break;
      ++count;
    }
    independent.push_back(count);
    before.push_back(&instruction);
  }
  return independent;
}

}  // namespace lockstep::program
