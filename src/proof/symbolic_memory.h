#pragma once

#include <cstdint>
#include <vector>

#include "layout/byte_span.h"
#include "program/program.h"
#include "program/range_map.h"
#include "proof/expressions.h"

namespace lockstep::proof {

/// Consecutive bytes of one parameter or activation, in elements of `dtype`. Positions are counted as if
/// elements had four bytes, for any actual width, so that casts do not change them: they are bytes of a
/// float32 parameter, or of an activation.
struct Piece {
  int64_t begin = 0, end = 0;  ///< within the range it was read from, or will be written to
  int expression = Expressions::kNothing;
  int parameter = kNoParameter;
  int64_t position = 0;          ///< of its first byte
  DType dtype = DType::float32;  ///< as whoever wrote them made them

  static constexpr int kNoParameter = -1;
  int64_t position_at(int64_t byte) const { return position + (byte - begin) * 4 / size_of(dtype); }
};

/// Appends a piece to `pieces`; if it continues the last one, both become one piece.
void append(std::vector<Piece>& pieces, const Piece& next);

/// The parts of `pieces` in a span of the range from which they were read.
std::vector<Piece> cut(const std::vector<Piece>& pieces, const layout::ByteSpan& span);

/// Metrics of leaves are kept like gradients of this parameter.
inline constexpr int kMetricsParameter = -2;
/// The gaps of segment s's bucket are kept like gradients of parameter kPaddingParameter - s.
inline constexpr int kPaddingParameter = -3;

/// All bytes of an operand, counted as positions are.
inline int64_t extent_of(const program::Operand& operand) {
  return operand.range.size_bytes * 4 / size_of(operand.dtype);
}

/// One rank's memory, holding expressions.
class SymbolicMemory {
 public:
  explicit SymbolicMemory(const program::Program& program);

  /// Covers the range without gaps, in ascending order; neighbours that continue each other are one piece.
  std::vector<Piece> read(const program::ByteRange& range);
  void write(const program::ByteRange& range, const std::vector<Piece>& pieces);
  /// The whole range becomes one piece that begins at position 0.
  void write(const program::ByteRange& range, int expression, DType dtype);

 private:
  struct Value {
    int expression, parameter;
    DType dtype;
    int64_t shift;  ///< position = address * 4 / size_of(dtype) + shift, so that splitting changes nothing
  };
  const program::Program& program_;
  std::vector<program::RangeMap<Value>> regions_;
};

/// Cuts several lists of pieces over ranges of equal size at each other's borders and calls
/// visit(begin, end, one piece of each).
template <class Visit>
void align(const std::vector<std::vector<Piece>>& lists, Visit&& visit) {
  std::vector<size_t> at(lists.size(), 0);
  std::vector<Piece> current(lists.size());
  int64_t begin = 0;
  while (!lists.empty() && at[0] < lists[0].size()) {
    int64_t end = lists[0][at[0]].end;
    for (size_t l = 1; l < lists.size(); ++l) end = std::min(end, lists[l][at[l]].end);
    for (size_t l = 0; l < lists.size(); ++l) {
      const Piece& piece = lists[l][at[l]];
      current[l] = piece;
      current[l].position = piece.position_at(begin);
      current[l].begin = begin;
      current[l].end = end;
      if (piece.end == end) ++at[l];
    }
    visit(begin, end, current);
    begin = end;
  }
}

}  // namespace lockstep::proof
