#include "program/channel_use.h"

#include "program/ring_schedule.h"

namespace lockstep::program {

void ChannelUse::add(const ChannelUse& other) {
  sends_to.insert(other.sends_to.begin(), other.sends_to.end());
  receives_from.insert(other.receives_from.begin(), other.receives_from.end());
  only_exchanges = only_exchanges && other.only_exchanges;
}

ChannelUse channel_use(const Program& program, const std::string& group) {
  ChannelUse use;
  for (const Instruction& instruction : program.instructions) {
    if (instruction.group < 0 || program.group(instruction.group).name != group) continue;
    const Members& members = program.group(instruction.group).members;
    if (ring_pass_of(instruction.kind)) {
      const int ranks = static_cast<int>(members.size()), rank = members.index_of(program.rank);
      use.sends_to.insert((rank + 1) % ranks);
      use.receives_from.insert((rank + ranks - 1) % ranks);
    } else if (instruction.kind == InstructionKind::exchange) {
      for (const Operand& operand : instruction.operands) {
        if (operand.role == Role::send) use.sends_to.insert(operand.peer);
        if (operand.role == Role::receive) use.receives_from.insert(operand.peer);
      }
    } else {
      use.only_exchanges = false;
    }
  }
  return use;
}

}  // namespace lockstep::program
