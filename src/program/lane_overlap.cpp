#include "program/lane_overlap.h"

#include <algorithm>
#include <tuple>

#include "base/index.h"

namespace lockstep::program {
namespace {

struct Bytes {
  Space space;
  int64_t begin, end;
};

/// What an instruction touches, ascending.
struct Footprint {
  std::vector<Bytes> sent, received;
};

Footprint footprint_of(const Program& program, const Instruction& instruction) {
  Footprint all;
  for (const Operand& operand : instruction.operands) {
    const ProgramBuffer& buffer = program.buffer(operand.range.buffer);
    const int64_t begin = buffer.offset + operand.range.offset;
    (operand.role == Role::send ? all.sent : all.received)
        .push_back({buffer.space, begin, begin + operand.range.size_bytes});
  }
  for (std::vector<Bytes>* list : {&all.sent, &all.received}) {
    std::ranges::sort(*list, {}, [](const Bytes& one) { return std::tuple(one.space, one.begin, one.end); });
    // To several peers the same bytes may go.
    std::vector<Bytes> merged;
    for (const Bytes& one : *list)
      if (!merged.empty() && merged.back().space == one.space && one.begin <= merged.back().end)
        merged.back().end = std::max(merged.back().end, one.end);
      else
        merged.push_back(one);
    *list = std::move(merged);
  }
  return all;
}

/// Both ascending, and each without overlaps.
bool touch(const std::vector<Bytes>& one, const std::vector<Bytes>& two) {
  for (size_t a = 0, b = 0; a < one.size() && b < two.size();) {
    const bool same = one[a].space == two[b].space;
    if (same && one[a].begin < two[b].end && two[b].begin < one[a].end) return true;
    if (same ? one[a].end <= two[b].end : one[a].space < two[b].space)
      ++a;
    else
      ++b;
  }
  return false;
}

bool conflict(const Footprint& before, const Footprint& after) {
  return touch(before.received, after.received) || touch(before.received, after.sent) ||
         touch(before.sent, after.received);
}

}  // namespace

std::vector<int> independent_predecessors(const Program& program) {
  struct Exchange {
    bool is_one = false;
    Footprint bytes;
  };
  std::vector<int> independent;
  std::vector<std::vector<Exchange>> lanes(program.lanes.size());  // the last ones
  for (const Instruction& instruction : program.instructions) {
    auto& before = nth(lanes, instruction.lane);
    Exchange own{.is_one = instruction.kind == InstructionKind::exchange, .bytes = {}};
    if (own.is_one) own.bytes = footprint_of(program, instruction);
    int count = 0;
    while (own.is_one && count < static_cast<int>(before.size())) {
      const Exchange& one = before[before.size() - 1 - static_cast<size_t>(count)];
      if (!one.is_one || conflict(one.bytes, own.bytes)) break;
      ++count;
    }
    independent.push_back(count);
    before.push_back(std::move(own));
    if (static_cast<int>(before.size()) == kMostExchangesUnderWay) before.erase(before.begin());
  }
  return independent;
}

}  // namespace lockstep::program
