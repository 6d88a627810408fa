#include "proof/symbolic_memory.h"

#include "base/index.h"
#include "program/regions.h"

namespace lockstep::proof {

void append(std::vector<Piece>& pieces, const Piece& next) {
  if (!pieces.empty()) {
    Piece& last = pieces.back();
    if (last.end == next.begin && last.expression == next.expression && last.parameter == next.parameter &&
        last.dtype == next.dtype && last.position_at(next.begin) == next.position) {
      last.end = next.end;
      return;
    }
  }
  pieces.push_back(next);
}

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

SymbolicMemory::SymbolicMemory(const program::Program& program)
    : program_(program), regions_(static_cast<size_t>(program::region_count(program))) {}

std::vector<Piece> SymbolicMemory::read(const program::ByteRange& range) {
  const program::Region where = program::region_of(program_, range);
  std::vector<Piece> pieces;
  nth(regions_, where.index)
      .visit_all(
          where.begin, where.end,
          [&](int64_t begin, int64_t end, Value& value) {
            append(pieces, {begin - where.begin, end - where.begin, value.expression, value.parameter,
                            begin * 4 / size_of(value.dtype) + value.shift, value.dtype});
          },
          [&](int64_t begin, int64_t end) {
            append(pieces, {.begin = begin - where.begin, .end = end - where.begin});
          });
  return pieces;
}

void SymbolicMemory::write(const program::ByteRange& range, const std::vector<Piece>& pieces) {
  const program::Region where = program::region_of(program_, range);
  auto& region = nth(regions_, where.index);
  for (const Piece& piece : pieces) {
    const int64_t begin = where.begin + piece.begin;
    region.assign(begin, where.begin + piece.end,
                  Value{piece.expression, piece.parameter, piece.dtype,
                        piece.position - begin * 4 / size_of(piece.dtype)});
  }
}

void SymbolicMemory::write(const program::ByteRange& range, int expression, DType dtype) {
  write(range, {{0, range.size_bytes, expression, Piece::kNoParameter, 0, dtype}});
}

}  // namespace lockstep::proof
