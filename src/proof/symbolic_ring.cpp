#include <algorithm>

#include "proof/symbolic_communication.h"

namespace lockstep::proof {
namespace {

program::ByteRange part_of(program::ByteRange range, int64_t begin, int64_t end) {
  range.offset += begin;
  range.size_bytes = end - begin;
  return range;
}

}  // namespace

/// Each block is summed up in an order of its own, which begins after its owner: a sum in no order, as a
/// library's, which is all that FAST asks for. So all blocks are the same expression, and the cost does not
/// grow with the square of the ranks.
void ring_reduce_scatter(SymbolicMachine& machine, const std::vector<Place>& members) {
  const std::vector<Piece> sum = reduction(machine, members);
  const program::Blocks& blocks = machine.instruction(members.front()).blocks;
  const int ranks = static_cast<int>(members.size());
  const int partial =
      machine.expressions().wrong("a part of a sum, which a ring leaves in other ranks' blocks");
  const std::vector<layout::ByteSpan> covered = covered_by(blocks);
  for (int m = 0; m < ranks; ++m) {
    const Place& member = nth(members, m);
    const program::Operand& data = data_of(machine.instruction(member));
    for (const layout::ByteSpan& span : covered)
      machine.memory(member.rank).write(part_of(data.range, span.begin, span.end), partial, data.dtype);
    for (const layout::ByteSpan& span : block_of(blocks, m, ranks))
      machine.memory(member.rank).write(data.range, cut(sum, span));
  }
}

void ring_all_gather(SymbolicMachine& machine, const std::vector<Place>& members) {
  const program::Blocks& blocks = machine.instruction(members.front()).blocks;
  const auto ranks = static_cast<int64_t>(members.size());
  std::vector<Piece> all;
  for (const program::BlockRun& run : blocks)
    for (int64_t piece = 0; piece < run.pieces(); ++piece) {
      const int64_t begin = run.begin + piece * run.each;
      const Place& owner = nth(members, (run.owner + piece) % ranks);
      const auto bytes = part_of(data_of(machine.instruction(owner)).range, begin,
                                 begin + std::min(run.each, run.end - begin));
      for (Piece own : machine.memory(owner.rank).read(bytes)) {
        own.begin += begin;
        own.end += begin;
        append(all, own);
      }
    }
  for (const Place& member : members)
    machine.memory(member.rank).write(data_of(machine.instruction(member)).range, all);
}

}  // namespace lockstep::proof
