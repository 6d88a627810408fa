#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::data {

/// An array in NumPy's format: of numbers, with one or two dimensions, or structured, with one: then its
/// fields, of numbers or texts ("S", "U"), are columns with names. Borrows the bytes.
class NpyArray {
 public:
  /// Throws DataError, which begins with `name`: not such a file, a header that is damaged, values of a kind
  /// that is not known (objects and fields of several values among them), more dimensions, or a size that
  /// does not fit.
  NpyArray(std::string_view bytes, const std::string& name);

  int64_t rows() const { return rows_; }
  int64_t columns() const { return columns_; }    ///< 1 if it has one dimension and is not structured
  std::string column_name(int64_t column) const;  ///< UTF-8; "0", "1", ... if it is not structured
  bool is_text(int64_t column) const;
  double value(int64_t row, int64_t column) const;  ///< REQUIRES: !is_text(column)
  /// The shortest text that is this number and no other of its type. REQUIRES: !is_text(column)
  std::string number_text(int64_t row, int64_t column) const;
  std::string text(int64_t row,
                   int64_t column) const;  ///< UTF-8 unless it is damaged. REQUIRES: is_text(column)
  int64_t byte_of(int64_t row) const;      ///< where the row, or of columns its first number, is in the file

 private:
  struct Type {
    char kind =
        'f';  // f: floating point, i: signed, u: unsigned, b: bool, S: bytes, U: four bytes a character
    int64_t width = 8;
  };
  struct Column {
    std::string name;
    Type type;
    int64_t offset = 0;  // in a record
  };
  static Type type_of(std::string_view text);

  const Type& type(int64_t column) const;
  size_t place_of(int64_t row, int64_t column) const;
  void read_header(std::string_view header);
  void read_fields(std::string_view description);

  std::string_view data_;
  size_t data_begin_ = 0;
  Type type_;                   // of all values, unless it is structured
  std::vector<Column> fields_;  // empty if it is not structured
  int64_t record_bytes_ = 0;    // of a row, if it is structured
  bool by_columns_ = false;
  int64_t rows_ = 0, columns_ = 1;
};

}  // namespace lockstep::data
