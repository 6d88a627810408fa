#include "tensor/part.h"

#include <fmt/format.h>

#include <charconv>
#include <cstring>
#include <utility>
#include <vector>

#include "lockstep/error.h"

namespace lockstep::tensor {
namespace {

/// The columns of a tensor's matrix.
int64_t matrix_columns(const Shape& shape) {
  int64_t columns = 1;
  for (int axis = 1; axis < shape.rank(); ++axis) columns *= shape[axis];
  return columns;
}

int64_t common_count(const Part& a, const Part& b) {
  int64_t count = 0;
  for_common_runs(a, b, [&](const CommonRun& run) { count += run.count; });
  return count;
}

/// Whether [first, first + count) lies in [0, size).
bool lies_within(const Extent& extent, int64_t size) {
  return extent.first >= 0 && extent.count >= 0 && extent.first <= size &&
         extent.count <= size - extent.first;
}

}  // namespace

Part Part::strided(int64_t first, int64_t columns, int64_t rows, int64_t pitch) {
  if (first >= 0 && (columns == 0 || rows == 0)) return {};
  int64_t end = 0;
  if (first < 0 || columns < 0 || rows < 0 || (rows > 1 && pitch < columns) ||
      __builtin_mul_overflow(rows - 1, pitch, &end) || __builtin_add_overflow(end, columns, &end) ||
      __builtin_add_overflow(end, first, &end))
    throw ConfigError(
        fmt::format("a part of a tensor: expected elements from 0 on, in rows that lie apart and end within "
                    "63 bits, found {} rows of {} elements, {} apart, from {} on",
                    rows, columns, pitch, first));
  Part part;
  part.first_ = first;
  const bool is_range = rows == 1 || pitch == columns;
  part.columns_ = is_range ? columns * rows : columns;
  part.rows_ = is_range ? 1 : rows;
  part.pitch_ = is_range ? part.columns_ : pitch;
  return part;
}

Part Part::rectangle(const Shape& shape, Extent rows, Extent columns) {
  const int64_t elements = shape.count(), width = elements > 0 ? matrix_columns(shape) : 0;
  if (!lies_within(rows, width > 0 ? elements / width : 0) || !lies_within(columns, width))
    throw ConfigError(fmt::format(
        "expected a rectangle within the matrix of shape {}, found {} rows from {} on of {} columns from {} "
        "on",
        shape.to_string(), rows.count, rows.first, columns.count, columns.first));
  return strided(rows.first * width + columns.first, columns.count, rows.count, width);
}

bool Part::fits(const Shape& shape) const {
  if (end() > shape.count()) return false;
  return is_range() || (pitch_ == matrix_columns(shape) && first_ % pitch_ + columns_ <= pitch_);
}

bool Part::contains(const Part& other) const {
  if (other.empty()) return true;
  if (empty() || other.first_ < first_) return false;
  if (is_range()) return other.end() <= end();
  if (!other.is_range() && other.pitch_ != pitch_) return common_count(*this, other) == other.count();
  // Rows as far apart as these lie in them all at the same column; a range lies in one row.
  const int64_t row = (other.first_ - first_) / pitch_, column = (other.first_ - first_) % pitch_;
  return other.columns_ <= columns_ - column && other.rows_ <= rows_ - row;
}

bool Part::meets(const Part& other) const { return common_count(*this, other) > 0; }

std::optional<int64_t> Part::place_of(const Part& inner) const {
  int64_t place = 0, found = 0;
  bool without_gaps = true;
  for_common_runs(*this, inner, [&](const CommonRun& run) {
    if (found == 0) place = run.in_a;
    without_gaps = without_gaps && run.in_a == place + found && run.in_b == found;
    found += run.count;
  });
  return without_gaps && found == inner.count() ? std::optional(place) : std::nullopt;
}

std::string to_text(const Part& part) {
  return part.is_range()
             ? fmt::format("{}+{}", part.first(), part.count())
             : fmt::format("{}+{}x{}/{}", part.first(), part.columns(), part.rows(), part.pitch());
}

Part part_from_text(std::string_view text) {
  const char *at = text.data(), *end = text.data() + text.size();
  const auto refuse = [&] {
    throw ConfigError(fmt::format(
        "expected a part of a tensor, FIRST+COUNT or FIRST+COLUMNSxROWS/PITCH, found '{}'", text));
  };
  const auto number = [&](char before) {
    int64_t value = 0;
    if (before != 0 && (at == end || *at++ != before)) refuse();
    const auto [parsed, error] = std::from_chars(at, end, value);
    if (error != std::errc()) refuse();
    at = parsed;
    return value;
  };
  const int64_t first = number(0), columns = number('+');
  if (at == end) return Part::range(first, columns);
  const int64_t rows = number('x'), pitch = number('/');
  if (at != end) refuse();
  return Part::strided(first, columns, rows, pitch);
}

std::string describe(const Part& part) {
  if (part.empty()) return "no elements";
  if (part.is_range()) return fmt::format("elements {} to {}", part.first(), part.end() - 1);
  const int64_t row = part.first() / part.pitch(), column = part.first() % part.pitch();
  return fmt::format("rows {} to {}, columns {} to {}", row, row + part.rows() - 1, column,
                     column + part.columns() - 1);
}

int64_t copy_common(void* to, const Part& to_part, const void* from, const Part& from_part,
                    int64_t element_bytes) {
  int64_t copied = 0;
  for_common_runs(to_part, from_part, [&](const CommonRun& run) {
    std::memcpy(static_cast<std::byte*>(to) + run.in_a * element_bytes,
                static_cast<const std::byte*>(from) + run.in_b * element_bytes,
                static_cast<size_t>(run.count * element_bytes));
    copied += run.count;
  });
  return copied;
}

std::optional<TilingFault> tiling_fault(int64_t elements, std::span<const Part> parts) {
  std::vector<std::pair<int64_t, int64_t>> runs;  // first and behind the last
  for (const Part& part : parts)
    for (int64_t row = 0; row < part.rows(); ++row) {
      const int64_t first = part.first() + row * part.pitch();
      runs.emplace_back(first, first + part.columns());
    }
  std::sort(runs.begin(), runs.end());
  int64_t next = 0;
  for (const auto& [first, end] : runs) {
    if (first != next) return TilingFault{.element = std::min(first, next), .is_twice = first < next};
    next = end;
  }
  if (next != elements) return TilingFault{.element = next, .is_twice = false};
  return std::nullopt;
}

void require_whole_chunks(const Part& part, int64_t elements, std::string_view tensor) {
  if (part.is_range() && part.first() % kChunkElements == 0 &&
      (part.end() % kChunkElements == 0 || part.end() == elements))
    return;
  throw InternalError(
      fmt::format("{}: expected whole chunks of {} elements, which are hashed and measured one by one, found "
                  "{} of {}",
                  tensor, kChunkElements, describe(part), elements));
}

}  // namespace lockstep::tensor
