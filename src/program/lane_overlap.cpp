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

std::vector<bool> independent_of_predecessor(const Program& program) {
  std::vector<bool> independent;
  std::vector<const Instruction*> last(program.lanes.size(), nullptr);
  for (const Instruction& instruction : program.instructions) {
    const Instruction*& before = nth(last, instruction.lane);
    independent.push_back(before != nullptr && before->kind == InstructionKind::exchange &&
                          instruction.kind == InstructionKind::exchange &&
                          !conflict(program, *before, instruction));
    before = &instruction;
  }
  return independent;
}

}  // namespace lockstep::program
