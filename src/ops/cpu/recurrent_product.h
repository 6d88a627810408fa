#pragma once

#include <cstdint>

namespace lockstep::ops {

/// A product whose right factor stays the same while rows of the left one follow each other, as the positions
/// of a recurrent layer do: the right factor is packed once. Every element is one chain of fused
/// multiply-adds in ascending order of the inner index, whatever is computed beside it. Memory is aligned to
/// 64 bytes.
class RecurrentProduct {
 public:
  /// The right factor is [inner, columns] or, transposed, [columns, inner].
  RecurrentProduct(int64_t inner, int64_t columns, bool is_transposed);

  int64_t panel_floats() const;  ///< of the packed factor
  void pack(const float* right, int threads, float* panels) const;

  /// Of `rows` of the left factor, which lie in blocks of inner indices.
  int64_t left_floats(int64_t rows) const;
  /// Writes row `row` of `rows`, from `inner` numbers.
  void set_row(float* left, int64_t rows, int64_t row, const float* numbers) const;
  /// result += left right, whose chains go on from what the result holds; then plus `bias`, if there is one.
  /// `threads` share the columns.
  void add(const float* panels, const float* left, int64_t rows, float* result, int64_t result_stride,
           const float* bias, int threads = 1) const;

 private:
  void add_columns(const float* panels, const float* left, int64_t rows, int64_t column, float* result,
                   int64_t result_stride, const float* bias) const;

  int64_t inner_, columns_;
  bool is_transposed_;
};

}  // namespace lockstep::ops
