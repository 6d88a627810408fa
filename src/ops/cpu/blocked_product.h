#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/cpu/loops/loops.h"

namespace lockstep::ops {

/// result = left right + bias, of row-major matrices. Every element is one chain of fused multiply-adds in
/// ascending order of the inner index, to which the bias is added last.
struct MatrixProduct {
  int64_t rows, columns, inner;
  const float* left;    ///< [rows, inner]
  int64_t left_stride;  ///< from one row to the next
  const float* right;   ///< [inner, columns], or [columns, inner]
  bool right_is_transposed;
  float* result;
  int64_t result_stride;
  const float* bias;  ///< of the columns; null: none
};

inline int64_t divided_up(int64_t count, int64_t size) { return (count + size - 1) / size; }
inline int64_t panels_of(int64_t columns) { return divided_up(columns, kPanelColumns); }

/// Part `index` of `parts` of [0, count), on borders of `unit`.
struct Part {
  int64_t begin, end;

  Part(int64_t count, int64_t unit, int64_t index, int64_t parts) {
    const int64_t units = divided_up(count, unit);
    begin = std::min(count, units * index / parts * unit);
    end = std::min(count, units * (index + 1) / parts * unit);
  }
};

/// How threads share a result: so many parts of its columns, times so many of its rows. Rather the former,
/// since every part packs its columns by itself.
struct Sharing {
  int64_t column_parts, row_parts;

  Sharing(int threads, int64_t columns, int64_t rows)
      : column_parts(std::min<int64_t>(threads, panels_of(columns))),
        row_parts(std::min(divided_up(threads, column_parts), divided_up(rows, kLeftRows))) {}
  int64_t count() const { return column_parts * row_parts; }
  Part rows(int64_t part, int64_t rows) const { return {rows, kLeftRows, part % row_parts, row_parts}; }
  Part columns(int64_t part, int64_t columns) const {
    return {columns, kPanelColumns, part / row_parts, column_parts};
  }
};

/// A row of `width` <= kLeftRows numbers of each of `count` rows of x, [count][kLeftRows] with zeros beyond:
/// a left factor of PanelFold.
void pack_strip(const float* x, int64_t stride, int64_t count, int64_t width, float* strip);

/// Computes a product, on several threads. Workspace: product_bytes, aligned to 64 bytes.
void multiply(const MatrixProduct& product, int threads, float* workspace);
int64_t product_bytes(int threads, int64_t rows, int64_t columns, int64_t inner, bool right_is_transposed);

}  // namespace lockstep::ops
