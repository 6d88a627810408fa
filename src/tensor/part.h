#pragma once

#include <algorithm>
#include <compare>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "lockstep/tensor.h"

namespace lockstep::tensor {

/// So many from `first` on.
struct Extent {
  int64_t first = 0, count = 0;
};

/// A part of a tensor, in elements of whatever type: a range of them in order, or a rectangle of the tensor's
/// matrix, whose rows are those of the first dimension. Memory that holds a part has its elements in order,
/// without gaps ("packed"). Everything that says which elements of a parameter, or of its state, a rank
/// holds, updates, saves or loads says so by a Part.
///
/// Both are `columns` consecutive elements, `rows` times, `pitch` apart, from `first` on. What is contiguous
/// always counts as a range, which has one row, so that parts with the same elements are equal.
class Part {
 public:
  Part() = default;  ///< nothing
  static Part whole(const Shape& shape) { return range(0, shape.count()); }
  static Part range(int64_t first, int64_t count) { return strided(first, count, 1, count); }
  /// Throws ConfigError if the rectangle is not within the matrix.
  static Part rectangle(const Shape& shape, Extent rows, Extent columns);
  /// Throws ConfigError if numbers are negative, rows overlap, or the end does not fit 63 bits.
  static Part strided(int64_t first, int64_t columns, int64_t rows, int64_t pitch);

  int64_t first() const { return first_; }
  int64_t columns() const { return columns_; }
  int64_t rows() const { return rows_; }
  int64_t pitch() const { return pitch_; }
  int64_t count() const { return columns_ * rows_; }
  /// Behind the last element.
  int64_t end() const { return empty() ? first_ : first_ + (rows_ - 1) * pitch_ + columns_; }
  bool empty() const { return rows_ == 0; }
  bool is_range() const { return rows_ <= 1; }
  bool is_whole(int64_t elements) const { return is_range() && first_ == 0 && columns_ == elements; }
  /// Whether it is a range of such a tensor's elements, or a rectangle of its matrix.
  bool fits(const Shape& shape) const;
  bool contains(const Part& other) const;
  bool meets(const Part& other) const;  ///< whether they have elements in common
  /// The number within the tensor of an element of packed memory. REQUIRES: 0 <= packed < count().
  int64_t element(int64_t packed) const { return first_ + packed / columns_ * pitch_ + packed % columns_; }
  /// Where, in the packed memory of this part, that of `inner` begins; none if it does not lie there without
  /// gaps.
  std::optional<int64_t> place_of(const Part& inner) const;
  /// The first row that ends behind `element`; may be behind the last row. REQUIRES: !empty().
  int64_t row_ending_behind(int64_t element) const {
    return element < first_ + columns_ ? 0 : (element - first_ - columns_) / pitch_ + 1;
  }

  auto operator<=>(const Part&) const = default;  ///< in the order of their first elements

 private:
  int64_t first_ = 0, columns_ = 0, rows_ = 0, pitch_ = 0;
};

/// "64+128" are 128 elements from 64 on; "64+16x8/128" are 8 rows of 16, which begin 128 apart.
std::string to_text(const Part& part);
/// Reads such a text. Throws ConfigError.
Part part_from_text(std::string_view text);
/// "elements 64 to 191", "rows 0 to 7, columns 64 to 79": for messages.
std::string describe(const Part& part);

/// Consecutive elements that two parts of one tensor have in common.
struct CommonRun {
  int64_t element;     ///< of the tensor: the first
  int64_t in_a, in_b;  ///< where it lies in the packed memory of either part
  int64_t count;
};

/// Calls `visit` with all runs, as long as they are and in order.
template <class Visit>
void for_common_runs(const Part& a, const Part& b, const Visit& visit) {
  const int64_t end = a.empty() || b.empty() ? 0 : std::min(a.end(), b.end());
  for (int64_t at = std::max(a.first(), b.first()); at < end;) {
    const int64_t row_a = a.row_ending_behind(at), row_b = b.row_ending_behind(at);
    const int64_t begin_a = a.first() + row_a * a.pitch(), begin_b = b.first() + row_b * b.pitch();
    const int64_t begin = std::max({at, begin_a, begin_b});
    const int64_t stop = std::min(begin_a + a.columns(), begin_b + b.columns());
    if (begin < stop)
      visit(CommonRun{.element = begin,
                      .in_a = row_a * a.columns() + begin - begin_a,
                      .in_b = row_b * b.columns() + begin - begin_b,
                      .count = stop - begin});
    at = std::max(begin, stop);
  }
}

/// Copies what two parts have in common from the packed memory of one to that of the other. Returns the
/// number of elements.
int64_t copy_common(void* to, const Part& to_part, const void* from, const Part& from_part,
                    int64_t element_bytes);

/// An element that is not in exactly one of some parts.
struct TilingFault {
  int64_t element;
  bool is_twice;  ///< otherwise in none
};
/// The first fault of parts that should have each of a tensor's elements once; none if they do. REQUIRES:
/// they lie within the tensor.
std::optional<TilingFault> tiling_fault(int64_t elements, std::span<const Part> parts);

/// Elements that are hashed, or whose squares are summed, at once.
inline constexpr int64_t kChunkElements = 65'536;
/// Hashes of tensors, digests and norms are made of those of chunks, each by whoever holds it. Throws
/// InternalError, which begins with the tensor's name, unless the part is a range from the border of a chunk
/// to that of another, or to the tensor's end.
void require_whole_chunks(const Part& part, int64_t elements, std::string_view tensor);

}  // namespace lockstep::tensor
