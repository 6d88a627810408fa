#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep::data {

/// An array in NumPy's format, of numbers, with one or two dimensions. Borrows the bytes.
class NpyArray {
 public:
  /// Throws DataError, which begins with `name`: not such a file, a header that is damaged, numbers of a kind
  /// that is not known (objects and records among them), more dimensions, or a size that does not fit.
  NpyArray(std::string_view bytes, const std::string& name);

  int64_t rows() const { return rows_; }
  int64_t columns() const { return columns_; }  ///< 1 if it has one dimension
  double value(int64_t row, int64_t column) const;
  int64_t byte_of(int64_t row) const;  ///< where the row, or of columns its first number, is in the file

 private:
  size_t place_of(int64_t row, int64_t column) const;
  void read_header(std::string_view header);

  std::string_view data_;
  size_t data_begin_ = 0;
  char kind_ = 'f';  // f: floating point, i: signed, u: unsigned, b: bool
  int width_ = 8;
  bool by_columns_ = false;
  int64_t rows_ = 0, columns_ = 1;
};

}  // namespace lockstep::data
