#include "ops/cpu/blocked_product.h"

#include <cstring>

#include "ops/cpu/parallel.h"

namespace lockstep::ops {
namespace {

/// Rows of a left factor and panels of a right one that are packed at once, for one block of inner indices:
/// 150 and 384 KiB, so that they stay in the second cache.
constexpr int64_t kPackedRows = 96, kPackedPanels = 8;
constexpr int64_t kElementBytes = sizeof(float);

/// Panels of a block that are packed. Of a right factor that is not transposed, this is at most the last.
int64_t block_panels(int64_t columns, bool right_is_transposed) {
  if (!right_is_transposed) return columns % kPanelColumns == 0 ? 0 : 1;
  return std::min(kPackedPanels, panels_of(columns));
}
int64_t block_inner(int64_t inner) { return std::min(kBlockInner, inner); }

/// Floats of a thread's workspace: a block of the left factor, then one of the right.
int64_t product_floats(int64_t columns, int64_t inner, bool right_is_transposed) {
  return kPackedRows * kLeftStride +
         block_panels(columns, right_is_transposed) * block_inner(inner) * kPanelColumns;
}

class BlockedProduct {
 public:
  BlockedProduct(const MatrixProduct& product, float* workspace)
      : product_(product), left_(workspace), right_(workspace + kPackedRows * kLeftStride) {}

  /// Those rows and columns of the result.
  void run(const Part& rows, const Part& columns) const {
    for (int64_t column = columns.begin; column < columns.end; column += kPackedPanels * kPanelColumns) {
      const int64_t end = std::min(columns.end, column + kPackedPanels * kPanelColumns);
      for (int64_t k = 0; k < product_.inner; k += kBlockInner) {
        const int64_t inner = std::min(kBlockInner, product_.inner - k);
        pack_right(column, end, k, inner);
        for (int64_t row = rows.begin; row < rows.end; row += kPackedRows) {
          const int64_t count = std::min(kPackedRows, rows.end - row);
          for (int64_t i = 0; i < count; ++i)
            std::memcpy(left_ + i * kLeftStride, product_.left + (row + i) * product_.left_stride + k,
                        static_cast<size_t>(inner * kElementBytes));
          for (int64_t at = column; at < end; at += kPanelColumns) multiply(row, count, at, column, k, inner);
        }
      }
    }
  }

 private:
  /// A panel of rows is read where it lies, but for the last one, beyond which there may be no memory.
  /// (Packing it was slower by a tenth at 64 rows, and no faster at 768.)
  bool is_read_in_place(int64_t column) const {
    return !product_.right_is_transposed && column + kPanelColumns <= product_.columns;
  }

  /// Of the panel at `column`, in a block from `first` on.
  float* packed(int64_t column, int64_t first, int64_t inner) const {
    return product_.right_is_transposed ? right_ + (column - first) * inner : right_;
  }

  void pack_right(int64_t begin, int64_t end, int64_t k, int64_t inner) const {
    for (int64_t column = begin; column < end; column += kPanelColumns) {
      if (is_read_in_place(column)) continue;
      float* panel = packed(column, begin, inner);
      const int64_t width = std::min(kPanelColumns, product_.columns - column);
      if (product_.right_is_transposed) {
        loops().pack_rows(panel, product_.right + column * product_.inner + k, product_.inner, width, inner);
        continue;
      }
      for (int64_t i = 0; i < inner; ++i, panel += kPanelColumns) {
        std::memcpy(panel, product_.right + (k + i) * product_.columns + column,
                    static_cast<size_t>(width * kElementBytes));
        std::fill(panel + width, panel + kPanelColumns, 0.0f);
      }
    }
  }

  void multiply(int64_t row, int64_t rows, int64_t column, int64_t first_column, int64_t k,
                int64_t inner) const {
    const int64_t width = std::min(kPanelColumns, product_.columns - column);
    const bool in_place = is_read_in_place(column), is_last = k + inner == product_.inner;
    float bias[kPanelColumns] = {};
    if (product_.bias != nullptr) std::copy_n(product_.bias + column, width, bias);
    loops().panel_product({.rows = rows,
                           .columns = width,
                           .inner = inner,
                           .left = left_,
                           .panel = in_place ? product_.right + k * product_.columns + column
                                             : packed(column, first_column, inner),
                           .panel_stride = in_place ? product_.columns : kPanelColumns,
                           .offsets = nullptr,
                           .result = product_.result + row * product_.result_stride + column,
                           .result_stride = product_.result_stride,
                           .accumulate = k > 0,
                           .bias = is_last && product_.bias != nullptr ? bias : nullptr});
  }

  const MatrixProduct& product_;
  float *left_, *right_;
};

}  // namespace

void pack_strip(const float* x, int64_t stride, int64_t count, int64_t width, float* strip) {
  // Sixteen at a time, if they are within x: what is too many is overwritten by the next row's.
  const int64_t in_sixteens = stride < 16 ? std::max<int64_t>(0, count - divided_up(16, stride)) : count - 1;
  int64_t row = 0;
  if (width == kLeftRows)
    for (; row < in_sixteens; ++row) std::memcpy(strip + row * kLeftRows, x + row * stride, 64);
  for (; row < count; ++row) {
    float* to = strip + row * kLeftRows;
    for (int64_t i = 0; i < kLeftRows; ++i) to[i] = i < width ? x[row * stride + i] : 0.0f;
  }
}

void multiply(const MatrixProduct& product, int threads, float* workspace) {
  const Sharing sharing(threads, product.columns, product.rows);
  const int64_t floats = product_floats(product.columns, product.inner, product.right_is_transposed);
  parallel_for(threads, sharing.count(), [&](int64_t part) {
    BlockedProduct(product, workspace + part * floats)
        .run(sharing.rows(part, product.rows), sharing.columns(part, product.columns));
  });
}

int64_t product_bytes(int threads, int64_t rows, int64_t columns, int64_t inner, bool right_is_transposed) {
  return Sharing(threads, columns, rows).count() * product_floats(columns, inner, right_is_transposed) *
         kElementBytes;
}

}  // namespace lockstep::ops
