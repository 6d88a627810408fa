#include "ops/cpu/matrix_products.h"

#include <algorithm>
#include <cstring>

#include "base/ensure.h"
#include "ops/cpu/loops/loops.h"
#include "ops/cpu/parallel.h"
#include "ops/cpu/replica_fold.h"

namespace lockstep::ops {
namespace {

/// Rows of a left factor and panels of a right one that are packed at once, for one block of inner indices:
/// 150 and 384 KiB, so that they stay in the second cache.
constexpr int64_t kPackedRows = 96, kPackedPanels = 8;
constexpr int64_t kFloat = sizeof(float);

int64_t divided_up(int64_t count, int64_t size) { return (count + size - 1) / size; }
int64_t panels_of(int64_t columns) { return divided_up(columns, kPanelColumns); }

/// result = left right + bias.
struct MatrixProduct {
  int64_t rows, columns, inner;
  const float* left;   ///< [rows, inner]
  const float* right;  ///< [inner, columns], or [columns, inner]
  bool right_is_transposed;
  float* result;
  int64_t result_stride;
  const float* bias;  ///< of the columns; null: none
};

/// Part `index` of `parts` of [0, count), on borders of `unit`.
struct Part {
  int64_t begin, end;

  Part(int64_t count, int64_t unit, int64_t index, int64_t parts) {
    const int64_t units = divided_up(count, unit);
    begin = std::min(count, units * index / parts * unit);
    end = std::min(count, units * (index + 1) / parts * unit);
  }
};

/// How threads share a result: so many parts of its columns, times so many of its rows. More of the former,
/// since each part packs its columns by itself.
struct Sharing {
  int64_t column_parts, row_parts;

  Sharing(int threads, int64_t columns, int64_t rows, int64_t row_unit)
      : column_parts(std::min<int64_t>(threads, panels_of(columns))),
        row_parts(std::min(divided_up(threads, column_parts), divided_up(rows, row_unit))) {}
  int64_t count() const { return column_parts * row_parts; }
};

int64_t block_panels(int64_t columns) { return std::min(kPackedPanels, panels_of(columns)); }
int64_t block_inner(int64_t inner) { return std::min(kBlockInner, inner); }

/// Floats of a thread's workspace: a block of the left factor, then one of the right.
int64_t product_floats(int64_t columns, int64_t inner) {
  return kPackedRows * kLeftStride + block_panels(columns) * block_inner(inner) * kPanelColumns;
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
            std::memcpy(left_ + i * kLeftStride, product_.left + (row + i) * product_.inner + k,
                        static_cast<size_t>(inner * kFloat));
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

  void pack_right(int64_t begin, int64_t end, int64_t k, int64_t inner) const {
    for (int64_t column = begin; column < end; column += kPanelColumns) {
      if (is_read_in_place(column)) continue;
      float* panel = right_ + (column - begin) * inner;
      const int64_t width = std::min(kPanelColumns, product_.columns - column);
      if (product_.right_is_transposed) {
        loops().pack_rows(panel, product_.right + column * product_.inner + k, product_.inner, width, inner);
        continue;
      }
      for (int64_t i = 0; i < inner; ++i, panel += kPanelColumns) {
        std::memcpy(panel, product_.right + (k + i) * product_.columns + column,
                    static_cast<size_t>(width * kFloat));
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
                                             : right_ + (column - first_column) * inner,
                           .panel_stride = in_place ? product_.columns : kPanelColumns,
                           .result = product_.result + row * product_.result_stride + column,
                           .result_stride = product_.result_stride,
                           .accumulate = k > 0,
                           .bias = is_last && product_.bias != nullptr ? bias : nullptr});
  }

  const MatrixProduct& product_;
  float *left_, *right_;
};

void multiply(const MatrixProduct& product, int threads, float* workspace) {
  const Sharing sharing(threads, product.columns, product.rows, kLeftRows);
  const int64_t floats = product_floats(product.columns, product.inner);
  parallel_for(threads, sharing.count(), [&](int64_t i) {
    const Part rows(product.rows, kLeftRows, i % sharing.row_parts, sharing.row_parts),
        columns(product.columns, kPanelColumns, i / sharing.row_parts, sharing.column_parts);
    BlockedProduct(product, workspace + i * floats).run(rows, columns);
  });
}

int64_t product_bytes(int threads, int64_t rows, int64_t columns, int64_t inner) {
  return Sharing(threads, columns, rows, kLeftRows).count() * product_floats(columns, inner) * kFloat;
}

}  // namespace

LinearProducts::LinearProducts(int64_t rows, int64_t units, int64_t inputs, int replicas, int threads)
    : rows_(rows), units_(units), inputs_(inputs), replicas_(replicas), threads_(std::max(1, threads)) {
  ensure(rows % replicas == 0, "replicas of a product have equally many rows");
}

bool LinearProducts::transposes() const {
  // A number that is moved takes about as long as sixteen multiply-adds. Panels are as wide as they are.
  const auto time = [this](int64_t rows, int64_t columns, int64_t moved) {
    return rows * panels_of(columns) * kPanelColumns * inputs_ + 16 * moved;
  };
  return time(units_, rows_, rows_ * inputs_ + 2 * rows_ * units_) < time(rows_, units_, units_ * inputs_);
}

int64_t LinearProducts::forward_bytes() const {
  if (!transposes()) return product_bytes(threads_, rows_, units_, inputs_);
  return product_bytes(threads_, units_, rows_, inputs_) + units_ * rows_ * kFloat;
}

void LinearProducts::forward(const float* x, const float* weight, const float* bias, float* y,
                             void* workspace) const {
  auto* own = static_cast<float*>(workspace);
  if (!transposes())
    return multiply({.rows = rows_,
                     .columns = units_,
                     .inner = inputs_,
                     .left = x,
                     .right = weight,
                     .right_is_transposed = true,
                     .result = y,
                     .result_stride = units_,
                     .bias = bias},
                    threads_, own);
  float* transposed = own + product_bytes(threads_, units_, rows_, inputs_) / kFloat;
  multiply({.rows = units_,
            .columns = rows_,
            .inner = inputs_,
            .left = weight,
            .right = x,
            .right_is_transposed = true,
            .result = transposed,
            .result_stride = rows_,
            .bias = nullptr},
           threads_, own);
  parallel_for(threads_, threads_, [&](int64_t i) {
    const Part rows(rows_, 8, i, threads_);
    loops().transpose(y + rows.begin * units_, units_, transposed + rows.begin, rows_, units_,
                      rows.end - rows.begin, bias);
  });
}

int64_t LinearProducts::input_gradient_bytes() const {
  return product_bytes(threads_, rows_, inputs_, units_);
}

void LinearProducts::input_gradient(const float* dy, const float* weight, float* dx, void* workspace) const {
  multiply({.rows = rows_,
            .columns = inputs_,
            .inner = units_,
            .left = dy,
            .right = weight,
            .right_is_transposed = false,
            .result = dx,
            .result_stride = inputs_,
            .bias = nullptr},
           threads_, static_cast<float*>(workspace));
}

int64_t LinearProducts::panels_at_once() const {
  constexpr int64_t kFloats = 131072;  // half a megabyte
  return std::min(panels_of(inputs_), std::clamp<int64_t>(kFloats / (rows_ * kPanelColumns), 2, 16));
}

int64_t LinearProducts::weight_gradient_bytes() const {
  return Sharing(threads_, inputs_, units_, kLeftRows).count() * rows_ *
         (panels_at_once() * kPanelColumns + kLeftRows + 4) * kFloat;
}

void LinearProducts::weight_gradient(const float* dy, const float* x, float* dweight, bool accumulate,
                                     void* workspace) const {
  ensure(!accumulate || replicas_ == 1, "gradients of several replicas are complete");
  const Sharing sharing(threads_, inputs_, units_, kLeftRows);
  const int64_t at_once = panels_at_once() * kPanelColumns;
  parallel_for(threads_, sharing.count(), [&](int64_t i) {
    const Part units(units_, kLeftRows, i % sharing.row_parts, sharing.row_parts),
        columns(inputs_, kPanelColumns, i / sharing.row_parts, sharing.column_parts);
    float* panels = static_cast<float*>(workspace) + i * rows_ * (at_once + kLeftRows + 4);
    float* strip = panels + rows_ * at_once;
    for (int64_t first = columns.begin; first < columns.end; first += at_once) {
      const int64_t end = std::min(columns.end, first + at_once);
      for (int64_t column = first; column < end; column += kPanelColumns) {
        const int64_t width = std::min(kPanelColumns, inputs_ - column);
        float* panel = panels + (column - first) * rows_;
        for (int64_t row = 0; row < rows_; ++row, panel += kPanelColumns) {
          std::memcpy(panel, x + row * inputs_ + column, static_cast<size_t>(width * kFloat));
          std::fill(panel + width, panel + kPanelColumns, 0.0f);
        }
      }
      for (int64_t unit = units.begin; unit < units.end; unit += kLeftRows) {
        const int64_t count = std::min(kLeftRows, units_ - unit);
        for (int64_t row = 0; row < rows_; ++row) {
          float* to = strip + row * kLeftRows;
          std::memcpy(to, dy + row * units_ + unit, static_cast<size_t>(count * kFloat));
          std::fill(to + count, to + kLeftRows, 0.0f);
        }
        for (int64_t column = first; column < end; column += kPanelColumns)
          loops().panel_fold({.rows = count,
                              .columns = std::min(kPanelColumns, inputs_ - column),
                              .inner = rows_ / replicas_,
                              .replicas = replicas_,
                              .left = strip,
                              .panel = panels + (column - first) * rows_,
                              .result = dweight + unit * inputs_ + column,
                              .result_stride = inputs_,
                              .accumulate = accumulate});
      }
    }
  });
}

int64_t LinearProducts::bias_gradient_bytes() const { return fold_slots(replicas_) * units_ * kFloat; }

void LinearProducts::bias_gradient(const float* dy, float* dbias, bool accumulate, void* workspace) const {
  ensure(!accumulate || replicas_ == 1, "gradients of several replicas are complete");
  const int64_t each = rows_ / replicas_, units = units_;
  auto* places = static_cast<float*>(workspace);
  const auto place = [&](int slot) { return slot == 0 ? dbias : places + slot * units; };
  fold_replicas(
      replicas_,
      [&](int replica, int slot) {
        float* sums = place(slot);
        if (!accumulate) std::fill_n(sums, units, 0.0f);
        for (int64_t row = replica * each; row < (replica + 1) * each; ++row)
          for (int64_t unit = 0; unit < units; ++unit) sums[unit] += dy[row * units + unit];
      },
      [&](int slot) {
        for (int64_t unit = 0; unit < units; ++unit) place(slot)[unit] += place(slot + 1)[unit];
      });
}

}  // namespace lockstep::ops
