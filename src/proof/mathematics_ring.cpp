#include <algorithm>

#include "proof/mathematics.h"

namespace lockstep::proof {
namespace {

const program::ByteRange& data_of(const program::Instruction& instruction) {
  return std::find_if(instruction.operands.begin(), instruction.operands.end(),
                      [](const program::Operand& operand) { return operand.role == program::Role::data; })
      ->range;
}

program::ByteRange part_of(program::ByteRange range, int64_t begin, int64_t end) {
  range.offset += begin;
  range.size_bytes = end - begin;
  return range;
}

/// What lies in [begin, end) of pieces that cover a range.
std::vector<Piece> cut(const std::vector<Piece>& pieces, const layout::ByteSpan& span) {
  std::vector<Piece> result;
  for (Piece piece : pieces) {
    const auto both = intersection({piece.begin, piece.end}, span);
    if (both.empty()) continue;
    piece.position = piece.position_at(both.begin);
    piece.begin = both.begin;
    piece.end = both.end;
    result.push_back(piece);
  }
  return result;
}

}  // namespace

/// Each block is summed up in an order of its own, which begins behind its owner: a sum in no order, as a
/// library's, which is all that FAST asks for. So all blocks are the same expression, and the cost does not
/// grow with the square of the ranks.
void Mathematics::ring_reduce_scatter(const std::vector<Place>& members) {
  std::vector<std::vector<Piece>> contributions;
  for (const Place& member : members)
    for (const program::Operand& operand : instruction(member).operands)
      if (operand.role == program::Role::data) contributions.push_back(read(member, operand));
  std::vector<Piece> sum;
  align(contributions, [&](int64_t begin, int64_t end, const std::vector<Piece>& pieces) {
    sum.push_back(reduced(pieces, false, begin, end));
  });
  const program::Blocks& blocks = instruction(members.front()).blocks;
  const int ranks = static_cast<int>(members.size());
  const int partial = expressions_.wrong("a part of a sum, which a ring leaves in other ranks' blocks");
  const std::vector<layout::ByteSpan> covered = covered_by(blocks);
  for (int m = 0; m < ranks; ++m) {
    const Place& member = nth(members, m);
    const program::ByteRange& data = data_of(instruction(member));
    for (const layout::ByteSpan& span : covered)
      memory(member.rank).write(part_of(data, span.begin, span.end), partial, DType::float32);
    for (const layout::ByteSpan& span : block_of(blocks, m, ranks))
      memory(member.rank).write(data, cut(sum, span));
  }
}

void Mathematics::ring_all_gather(const std::vector<Place>& members) {
  const program::Blocks& blocks = instruction(members.front()).blocks;
  const auto ranks = static_cast<int64_t>(members.size());
  std::vector<Piece> all;
  for (const program::BlockRun& run : blocks)
    for (int64_t piece = 0, begin = run.begin; begin < run.end; ++piece, begin += run.each) {
      const Place& owner = nth(members, (run.owner + piece) % ranks);
      const auto bytes = part_of(data_of(instruction(owner)), begin, std::min(begin + run.each, run.end));
      for (Piece own : memory(owner.rank).read(bytes)) {
        own.begin += begin;
        own.end += begin;
        append(all, own);
      }
    }
  for (const Place& member : members) memory(member.rank).write(data_of(instruction(member)), all);
}

}  // namespace lockstep::proof
