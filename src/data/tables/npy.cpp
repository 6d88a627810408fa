#include "data/tables/npy.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <optional>
#include <vector>

#include "base/half.h"
#include "base/text.h"
#include "lockstep/error.h"

namespace lockstep::data {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";

/// The value of 'key' in the header's dictionary, which is a literal of Python: up to the comma or brace that
/// ends it, outside of parentheses.
std::optional<std::string_view> value_of(std::string_view header, const std::string& key) {
  const size_t at = header.find("'" + key + "':");
  if (at == std::string_view::npos) return std::nullopt;
  const std::string_view rest = header.substr(at + key.size() + 3);
  int depth = 0;
  for (size_t i = 0; i < rest.size(); ++i) {
    if (rest[i] == '(' || rest[i] == '[') ++depth;
    if (rest[i] == ')' || rest[i] == ']') --depth;
    if (depth == 0 && (rest[i] == ',' || rest[i] == '}')) return trim(rest.substr(0, i));
  }
  return std::nullopt;
}

std::vector<int64_t> shape_from(std::string_view text) {
  if (!text.starts_with('(') || !text.ends_with(')'))
    throw DataError(fmt::format("expected a shape in parentheses, found {}", text));
  std::vector<int64_t> shape;
  for (const auto& part : split(text.substr(1, text.size() - 2), ',')) {
    if (part.empty()) continue;
    int64_t size = 0;
    const auto [end, status] = std::from_chars(part.data(), part.data() + part.size(), size);
    if (status != std::errc{} || end != part.data() + part.size() || size < 0)
      throw DataError(fmt::format("expected a shape of whole numbers, found {}", text));
    shape.push_back(size);
  }
  return shape;
}

template <class T>
double read_as(const char* from) {
  T value{};
  std::memcpy(&value, from, sizeof value);
  return static_cast<double>(value);
}

}  // namespace

NpyArray::NpyArray(std::string_view bytes, const std::string& name) : data_(bytes) {
  try {
    if (!bytes.starts_with(kMagic) || bytes.size() < 10)
      throw DataError("expected NumPy's format, which begins with \\x93NUMPY, found something else");
    const int version = bytes[6];
    const size_t length_bytes = version == 1 ? 2 : 4;
    if (version < 1 || version > 3 || bytes.size() < 8 + length_bytes)
      throw DataError(fmt::format("expected version 1, 2 or 3 at byte 6, found {}", version));
    size_t length = 0;
    std::memcpy(&length, bytes.data() + 8, length_bytes);
    data_begin_ = 8 + length_bytes + length;
    if (data_begin_ > bytes.size())
      throw DataError(
          fmt::format("its header (byte 8) says {} bytes, but the file has {}", length, bytes.size()));
    read_header(bytes.substr(8 + length_bytes, length));
    int64_t count = 0, size = 0;
    if (__builtin_mul_overflow(rows_, columns_, &count) || __builtin_mul_overflow(count, width_, &size) ||
        static_cast<uint64_t>(size) != bytes.size() - data_begin_)
      throw DataError(
          fmt::format("its header says {} x {} numbers of {} bytes, but {} bytes follow it: it is "
                      "damaged, or not complete",
                      rows_, columns_, width_, bytes.size() - data_begin_));
  } catch (const DataError& error) {
    throw DataError(fmt::format("{}: {}", name, error.what()));
  }
}

void NpyArray::read_header(std::string_view header) {
  const auto type = value_of(header, "descr"), order = value_of(header, "fortran_order"),
             shape = value_of(header, "shape");
  if (!type || !order || !shape)
    throw DataError("expected descr, fortran_order and shape in its header, found them not");
  constexpr std::array<std::string_view, 12> kTypes{"'<f2'", "'<f4'", "'<f8'", "'<i2'", "'<i4'", "'<i8'",
                                                    "'<u2'", "'<u4'", "'<u8'", "'|i1'", "'|u1'", "'|b1'"};
  if (std::ranges::find(kTypes, *type) == kTypes.end())
    throw DataError(
        fmt::format("its numbers are {}; expected floating point of 2, 4 or 8 bytes, or whole numbers, "
                    "little-endian",
                    type->substr(0, 80)));
  kind_ = (*type)[2];
  width_ = (*type)[3] - '0';
  by_columns_ = *order == "True";
  if (!by_columns_ && *order != "False")
    throw DataError(fmt::format("fortran_order is {}; expected True or False", order->substr(0, 80)));
  const auto sizes = shape_from(*shape);
  if (sizes.empty() || sizes.size() > 2)
    throw DataError(fmt::format("it has {} dimensions; expected rows, or rows and columns", sizes.size()));
  rows_ = sizes[0];
  columns_ = sizes.size() == 2 ? sizes[1] : 1;
  if (rows_ == 0) throw DataError("it has no rows");
  if (columns_ == 0) throw DataError("its rows have no columns");
}

size_t NpyArray::place_of(int64_t row, int64_t column) const {
  const int64_t index = by_columns_ ? column * rows_ + row : row * columns_ + column;
  return data_begin_ + static_cast<size_t>(index * width_);
}

int64_t NpyArray::byte_of(int64_t row) const { return static_cast<int64_t>(place_of(row, 0)); }

double NpyArray::value(int64_t row, int64_t column) const {
  const char* from = data_.data() + place_of(row, column);
  switch (kind_) {
    case 'f':
      if (width_ == 2) {
        float16 value;
        std::memcpy(&value, from, 2);
        return static_cast<double>(static_cast<float>(value));
      }
      return width_ == 4 ? read_as<float>(from) : read_as<double>(from);
    case 'i':
      if (width_ == 1) return read_as<int8_t>(from);
      if (width_ == 2) return read_as<int16_t>(from);
      return width_ == 4 ? read_as<int32_t>(from) : read_as<int64_t>(from);
    case 'u':
      if (width_ == 1) return read_as<uint8_t>(from);
      if (width_ == 2) return read_as<uint16_t>(from);
      return width_ == 4 ? read_as<uint32_t>(from) : read_as<uint64_t>(from);
    default:
      return *from != 0 ? 1 : 0;
  }
}

}  // namespace lockstep::data
