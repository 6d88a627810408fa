#include <algorithm>
#include <functional>
#include <utility>

#include "program/access_history.h"
#include "program/happens_before.h"

namespace lockstep::program {

void derive_dependencies(Program& program) {
  constexpr int kIterations = 2;  // distances are 0 and 1, and later iterations repeat the second
  const int count = static_cast<int>(program.instructions.size());
  HappensBefore order(program, kIterations);
  AccessHistory history(program);
  std::vector<int> needed;
  for (int node = 0; node < kIterations * count; ++node) {
    order.visit(node);
    Instruction& instruction = program.instruction(node % count);
    needed.clear();
    for (const Operand& operand : instruction.operands)
      history.conflicts(operand, [&](int earlier, int64_t, int64_t) { needed.push_back(earlier); });
    for (const Operand& operand : instruction.operands) history.record(operand, node);

    // Latest first: what happens before a later predecessor needs no dependency of its own.
    std::sort(needed.begin(), needed.end(), std::greater<>());
    needed.erase(std::unique(needed.begin(), needed.end()), needed.end());
    for (int earlier : needed) {
      if (order.before(earlier, node)) continue;
      order.depend(node, earlier);
      instruction.after.push_back({earlier % count, node / count - earlier / count});
    }
    std::sort(instruction.after.begin(), instruction.after.end(),
              [](const Dependency& a, const Dependency& b) {
                return std::pair(a.distance, a.instruction) < std::pair(b.distance, b.instruction);
              });
  }
}

}  // namespace lockstep::program
