#include "data/tables/npy.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <optional>
#include <vector>

#include "base/half.h"
#include "base/index.h"
#include "base/text.h"
#include "data/tables/csv.h"
#include "lockstep/error.h"

namespace lockstep::data {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
// More are no table, but something else: as large a text is one that no column of names holds.
constexpr int64_t kMostFieldBytes = 1 << 20;

/// The value of 'key' in the header's dictionary, which is a literal of Python: up to the comma or brace that
/// ends it, outside of parentheses and quotes.
std::optional<std::string_view> value_of(std::string_view header, const std::string& key) {
  const size_t at = header.find("'" + key + "':");
  if (at == std::string_view::npos) return std::nullopt;
  const std::string_view rest = header.substr(at + key.size() + 3);
  int depth = 0;
  char quote = '\0';
  for (size_t i = 0; i < rest.size(); ++i) {
    if (quote != '\0') {
      if (rest[i] == '\\')
        ++i;
      else if (rest[i] == quote)
        quote = '\0';
      continue;
    }
    if (rest[i] == '\'' || rest[i] == '"') quote = rest[i];
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

/// Reads the list of a structured array's fields, a literal of Python: [('name', '<f4'), ...].
class FieldList {
 public:
  explicit FieldList(std::string_view text) : text_(text) { expect('['); }

  /// False behind the last one.
  bool next(std::string& name, std::string& type) {
    if (accept(']')) return false;
    expect('(');
    name = quoted();
    expect(',');
    type = quoted();
    if (accept(',') && !accept(')'))
      throw DataError(
          fmt::format("its field '{}' has several values (byte {} of the list of fields); expected one",
                      name.substr(0, 80), at_));
    if (text_[at_ - 1] != ')') expect(')');
    if (!accept(',') && !(at_ < text_.size() && text_[at_] == ']')) fail("a comma");
    return true;
  }

 private:
  [[noreturn]] void fail(std::string_view expected) const {
    throw DataError(
        fmt::format("expected {} at byte {} of its list of fields, {}", expected, at_, text_.substr(0, 80)));
  }
  bool accept(char c) {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
    if (at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
    return true;
  }
  void expect(char c) {
    if (!accept(c)) fail(std::string("'") + c + "'");
  }
  std::string quoted() {
    const char quote = at_ < text_.size() ? text_[at_] : '\0';
    if (quote != '\'' && quote != '"') fail("a name in quotes");
    std::string result;
    for (++at_; at_ < text_.size() && text_[at_] != quote; ++at_) {
      if (text_[at_] == '\\' && ++at_ < text_.size() && text_[at_] != '\\' && text_[at_] != '\'' &&
          text_[at_] != '"')
        fail("a name without escape sequences");
      if (at_ < text_.size()) result += text_[at_];
    }
    if (at_ >= text_.size()) fail("the end of a name");
    ++at_;
    return result;
  }

  std::string_view text_;
  size_t at_ = 0;
};

/// Appends a character. What is none becomes a byte that is no UTF-8.
void append_utf8(uint32_t code, std::string& text) {
  if (code < 0x80) {
    text += static_cast<char>(code);
  } else if (code < 0x800) {
    text += static_cast<char>(0xc0 | code >> 6);
    text += static_cast<char>(0x80 | (code & 0x3f));
  } else if (code < 0x10000 && (code < 0xd800 || code > 0xdfff)) {
    text += static_cast<char>(0xe0 | code >> 12);
    text += static_cast<char>(0x80 | (code >> 6 & 0x3f));
    text += static_cast<char>(0x80 | (code & 0x3f));
  } else if (code >= 0x10000 && code < 0x110000) {
    text += static_cast<char>(0xf0 | code >> 18);
    text += static_cast<char>(0x80 | (code >> 12 & 0x3f));
    text += static_cast<char>(0x80 | (code >> 6 & 0x3f));
    text += static_cast<char>(0x80 | (code & 0x3f));
  } else {
    text += '\xff';
  }
}

/// NumPy writes headers in Latin-1 (versions 1 and 2) or UTF-8 (version 3). Names of columns go into configs,
/// messages and JSON, which are UTF-8.
std::string header_in_utf8(std::string_view header, int version) {
  if (version == 3) {
    if (const auto problem = utf8_problem(header); !problem.empty())
      throw DataError("expected a header in UTF-8, found " + problem);
    return std::string(header);
  }
  std::string text;
  for (const char c : header) append_utf8(static_cast<unsigned char>(c), text);
  return text;
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
    read_header(header_in_utf8(bytes.substr(8 + length_bytes, length), version));
    const int64_t width = fields_.empty() ? type_.width : record_bytes_;
    int64_t count = rows_, size = 0;
    if ((fields_.empty() && __builtin_mul_overflow(rows_, columns_, &count)) ||
        __builtin_mul_overflow(count, width, &size) ||
        static_cast<uint64_t>(size) != bytes.size() - data_begin_)
      throw DataError(fmt::format(
          "its header says {} of {} bytes, but {} bytes follow it: it is damaged, or not complete",
          fields_.empty() ? fmt::format("{} x {} numbers", rows_, columns_)
                          : fmt::format("{} records", rows_),
          width, bytes.size() - data_begin_));
  } catch (const DataError& error) {
    throw DataError(fmt::format("{}: {}", name, error.what()));
  }
}

void NpyArray::read_header(std::string_view header) {
  const auto type = value_of(header, "descr"), order = value_of(header, "fortran_order"),
             shape = value_of(header, "shape");
  if (!type || !order || !shape)
    throw DataError("expected descr, fortran_order and shape in its header, found them not");
  if (type->starts_with('['))
    read_fields(*type);
  else
    type_ = type_of(trim(*type));
  by_columns_ = *order == "True";
  if (!by_columns_ && *order != "False")
    throw DataError(fmt::format("fortran_order is {}; expected True or False", order->substr(0, 80)));
  const auto sizes = shape_from(*shape);
  if (sizes.empty() || sizes.size() > 2)
    throw DataError(fmt::format("it has {} dimensions; expected rows, or rows and columns", sizes.size()));
  rows_ = sizes[0];
  columns_ = sizes.size() == 2 ? sizes[1] : 1;
  if (columns_ > kMostColumns)
    throw DataError(fmt::format("it has {} columns; expected up to {}", columns_, kMostColumns));
  if (!fields_.empty()) {
    if (sizes.size() == 2) throw DataError("it is structured and has two dimensions; expected one");
    columns_ = std::ssize(fields_);
  } else if (is_text(0)) {
    throw DataError("it holds texts; expected numbers, or a structured array");
  }
  if (rows_ == 0) throw DataError("it has no rows");
  if (columns_ == 0) throw DataError("its rows have no columns");
}

void NpyArray::read_fields(std::string_view description) {
  FieldList list(description);
  std::string name, text;
  while (list.next(name, text)) {
    // What aligns fields has no name.
    if (name.empty() && text.starts_with("|V")) {
      int64_t padding = 0;
      const auto [end, status] = std::from_chars(text.data() + 2, text.data() + text.size(), padding);
      if (status != std::errc{} || end != text.data() + text.size() || padding < 0 ||
          padding > kMostFieldBytes)
        throw DataError(fmt::format("its padding is {}; expected a number of bytes", text.substr(0, 80)));
      record_bytes_ += padding;
      continue;
    }
    if (std::ssize(fields_) == kMostColumns)
      throw DataError(fmt::format("it has more than {} fields", kMostColumns));
    fields_.push_back({name, type_of("'" + text + "'"), record_bytes_});
    record_bytes_ += fields_.back().type.width;
  }
  if (fields_.empty()) throw DataError("its records have no fields");
}

NpyArray::Type NpyArray::type_of(std::string_view text) {
  constexpr std::array<std::string_view, 12> kTypes{"'<f2'", "'<f4'", "'<f8'", "'<i2'", "'<i4'", "'<i8'",
                                                    "'<u2'", "'<u4'", "'<u8'", "'|i1'", "'|u1'", "'|b1'"};
  if (std::ranges::find(kTypes, text) != kTypes.end()) return {text[2], text[3] - '0'};
  if ((text.starts_with("'|S") || text.starts_with("'<U")) && text.ends_with('\'')) {
    int64_t length = 0;
    const char* const last = text.data() + text.size() - 1;
    const auto [end, status] = std::from_chars(text.data() + 3, last, length);
    if (status == std::errc{} && end == last && length > 0 && length <= kMostFieldBytes)
      return {text[2], text[2] == 'U' ? 4 * length : length};
  }
  throw DataError(
      fmt::format("its numbers are {}; expected floating point of 2, 4 or 8 bytes, or whole numbers, "
                  "little-endian; in fields of structured arrays also texts",
                  text.substr(0, 80)));
}

std::string NpyArray::column_name(int64_t column) const {
  return fields_.empty() ? std::to_string(column) : nth(fields_, column).name;
}

const NpyArray::Type& NpyArray::type(int64_t column) const {
  return fields_.empty() ? type_ : nth(fields_, column).type;
}

bool NpyArray::is_text(int64_t column) const { return type(column).kind == 'S' || type(column).kind == 'U'; }

size_t NpyArray::place_of(int64_t row, int64_t column) const {
  if (!fields_.empty())
    return data_begin_ + static_cast<size_t>(row * record_bytes_ + nth(fields_, column).offset);
  const int64_t index = by_columns_ ? column * rows_ + row : row * columns_ + column;
  return data_begin_ + static_cast<size_t>(index * type_.width);
}

std::string NpyArray::text(int64_t row, int64_t column) const {
  const Type& kind = type(column);
  std::string_view bytes = data_.substr(place_of(row, column), static_cast<size_t>(kind.width));
  std::string result;
  if (kind.kind == 'S') {
    result = bytes;
  } else {
    for (; !bytes.empty(); bytes.remove_prefix(4)) {
      uint32_t code = 0;
      std::memcpy(&code, bytes.data(), sizeof code);
      append_utf8(code, result);
    }
  }
  // Shorter texts are filled up with zeros.
  result.resize(result.find_last_not_of('\0') + 1);
  return result;
}

int64_t NpyArray::byte_of(int64_t row) const { return static_cast<int64_t>(place_of(row, 0)); }

std::string NpyArray::number_text(int64_t row, int64_t column) const {
  const char* from = data_.data() + place_of(row, column);
  const auto [kind, width] = type(column);
  // Where neighbours are one float64.
  constexpr int64_t kExact = int64_t{1} << 53;
  if (kind == 'i' && width == 8) {
    int64_t number = 0;
    std::memcpy(&number, from, sizeof number);
    if (number > kExact || number < -kExact) return fmt::to_string(number);
  }
  if (kind == 'u' && width == 8) {
    uint64_t number = 0;
    std::memcpy(&number, from, sizeof number);
    if (number > uint64_t{kExact}) return fmt::to_string(number);
  }
  return exact(value(row, column));
}

double NpyArray::value(int64_t row, int64_t column) const {
  const char* from = data_.data() + place_of(row, column);
  const auto [kind, width] = type(column);
  switch (kind) {
    case 'f':
      if (width == 2) {
        float16 value;
        std::memcpy(&value, from, 2);
        return static_cast<double>(static_cast<float>(value));
      }
      return width == 4 ? read_as<float>(from) : read_as<double>(from);
    case 'i':
      if (width == 1) return read_as<int8_t>(from);
      if (width == 2) return read_as<int16_t>(from);
      return width == 4 ? read_as<int32_t>(from) : read_as<int64_t>(from);
    case 'u':
      if (width == 1) return read_as<uint8_t>(from);
      if (width == 2) return read_as<uint16_t>(from);
      return width == 4 ? read_as<uint32_t>(from) : read_as<uint64_t>(from);
    default:
      return *from != 0 ? 1 : 0;
  }
}

}  // namespace lockstep::data
