#include "ops/cpu/chained_products.h"

#include <algorithm>
#include <cstring>

#include "base/ensure.h"
#include "ops/cpu/blocked_product.h"
#include "ops/cpu/loops/loops.h"
#include "ops/cpu/parallel.h"
#include "ops/cpu/replica_fold.h"

namespace lockstep::ops {
namespace {

constexpr int64_t kFloatBytes = sizeof(float);

}  // namespace

ChainedProducts::ChainedProducts(int64_t rows, int64_t units, int64_t inputs, int replicas, int threads)
    : rows_(rows), units_(units), inputs_(inputs), replicas_(replicas), threads_(std::max(1, threads)) {
  ensure(rows % replicas == 0, "replicas of a product have equally many rows");
}

bool ChainedProducts::transposes() const {
  // A number that is moved takes about as long as sixteen multiply-adds. Panels are as wide as they are.
  const auto time = [this](int64_t rows, int64_t columns, int64_t moved) {
    return rows * panels_of(columns) * kPanelColumns * inputs_ + 16 * moved;
  };
  return time(units_, rows_, rows_ * inputs_ + 2 * rows_ * units_) < time(rows_, units_, units_ * inputs_);
}

int64_t ChainedProducts::forward_bytes() const {
  if (!transposes()) return product_bytes(threads_, rows_, units_, inputs_, true);
  return product_bytes(threads_, units_, rows_, inputs_, true) + units_ * rows_ * kFloatBytes;
}

void ChainedProducts::forward(const float* x, const float* weight, const float* bias, float* y,
                              void* workspace) const {
  auto* own = static_cast<float*>(workspace);
  if (!transposes())
    return multiply({.rows = rows_,
                     .columns = units_,
                     .inner = inputs_,
                     .left = x,
                     .left_stride = inputs_,
                     .right = weight,
                     .right_is_transposed = true,
                     .result = y,
                     .result_stride = units_,
                     .bias = bias},
                    threads_, own);
  float* transposed = own + product_bytes(threads_, units_, rows_, inputs_, true) / kFloatBytes;
  multiply({.rows = units_,
            .columns = rows_,
            .inner = inputs_,
            .left = weight,
            .left_stride = inputs_,
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

int64_t ChainedProducts::input_gradient_bytes() const {
  return product_bytes(threads_, rows_, inputs_, units_, false);
}

void ChainedProducts::input_gradient(const float* dy, const float* weight, float* dx, void* workspace) const {
  multiply({.rows = rows_,
            .columns = inputs_,
            .inner = units_,
            .left = dy,
            .left_stride = units_,
            .right = weight,
            .right_is_transposed = false,
            .result = dx,
            .result_stride = inputs_,
            .bias = nullptr},
           threads_, static_cast<float*>(workspace));
}

namespace {

/// So many rows are packed at once for a weight's gradient. More of one replica follow as blocks, whose
/// chains go on, so that panels stay in the second cache.
constexpr int64_t kRowsAtOnce = 512;

}  // namespace

int64_t ChainedProducts::panels_at_once() const {
  constexpr int64_t kFloats = 131072;  // half a megabyte
  return std::min(panels_of(inputs_), std::clamp<int64_t>(kFloats / (packed_rows() * kPanelColumns), 2, 16));
}

/// Several replicas that fit are folded by one kernel; longer ones one by one.
bool ChainedProducts::folds_in_tiles() const { return replicas_ > 1 && rows_ <= 4 * kRowsAtOnce; }

/// Of a weight's gradient: a panel of x, but for the last one, beyond which there may be no memory. Rows that
/// lie further apart would meet in few sets of a cache.
bool ChainedProducts::is_read_in_place(int64_t column) const {
  return has_near_inputs() && column + kPanelColumns <= inputs_;
}

bool ChainedProducts::has_near_inputs() const {
  constexpr int64_t kNearInputs = 512;
  return inputs_ <= kNearInputs;
}

/// Where only the last panel is packed, it needs no place behind the others.
int64_t ChainedProducts::packed_panels() const {
  if (!has_near_inputs()) return panels_at_once();
  return inputs_ % kPanelColumns == 0 ? 0 : 1;
}

int64_t ChainedProducts::packed_rows() const {
  return folds_in_tiles() ? rows_ : std::min(rows_ / replicas_, kRowsAtOnce);
}

int64_t ChainedProducts::packed_floats() const {
  return Sharing(threads_, inputs_, units_).count() * packed_rows() *
         (packed_panels() * kPanelColumns + kLeftRows);
}

int64_t ChainedProducts::weight_gradient_bytes() const {
  const int64_t slots = folds_in_tiles() ? 0 : ReplicaFold(replicas_, units_ * inputs_, threads_).floats();
  return (packed_floats() + slots) * kFloatBytes;
}

void ChainedProducts::weight_gradient(const float* dy, const float* x, float* dweight, bool accumulate,
                                      void* workspace) const {
  ensure(!accumulate || replicas_ == 1, "gradients of several replicas are complete");
  auto* own = static_cast<float*>(workspace);
  if (folds_in_tiles()) return add_rows(0, rows_, replicas_, dy, x, dweight, false, own);
  const int64_t each = rows_ / replicas_;
  const ReplicaFold fold(replicas_, units_ * inputs_, threads_);
  fold.run(dweight, accumulate, own + packed_floats(), [&](int replica, float* to) {
    for (int64_t row = replica * each; row < (replica + 1) * each; row += kRowsAtOnce)
      add_rows(row, std::min(kRowsAtOnce, (replica + 1) * each - row), 1, dy, x, to,
               accumulate || row > replica * each, own);
  });
}

void ChainedProducts::add_rows(int64_t first_row, int64_t rows, int replicas, const float* dy, const float* x,
                               float* dweight, bool accumulate, float* workspace) const {
  dy += first_row * units_;
  x += first_row * inputs_;
  const Sharing sharing(threads_, inputs_, units_);
  const int64_t at_once = panels_at_once() * kPanelColumns, packed_columns = packed_panels() * kPanelColumns;
  parallel_for(threads_, sharing.count(), [&](int64_t i) {
    const Part units = sharing.rows(i, units_), columns = sharing.columns(i, inputs_);
    float* panels = workspace + i * packed_rows() * (packed_columns + kLeftRows);
    float* strip = panels + packed_rows() * packed_columns;
    const auto packed = [&](int64_t column, int64_t first) {
      return has_near_inputs() ? panels : panels + (column - first) * rows;
    };
    for (int64_t first = columns.begin; first < columns.end; first += at_once) {
      const int64_t end = std::min(columns.end, first + at_once);
      for (int64_t column = first; column < end; column += kPanelColumns) {
        if (is_read_in_place(column)) continue;
        const int64_t width = std::min(kPanelColumns, inputs_ - column);
        float* panel = packed(column, first);
        for (int64_t row = 0; row < rows; ++row, panel += kPanelColumns) {
          std::memcpy(panel, x + row * inputs_ + column, static_cast<size_t>(width * kFloatBytes));
          std::fill(panel + width, panel + kPanelColumns, 0.0f);
        }
      }
      for (int64_t unit = units.begin; unit < units.end; unit += kLeftRows) {
        const int64_t count = std::min(kLeftRows, units_ - unit);
        pack_strip(dy + unit, units_, rows, count, strip);
        for (int64_t column = first; column < end; column += kPanelColumns) {
          const bool in_place = is_read_in_place(column);
          loops().panel_fold({.rows = count,
                              .columns = std::min(kPanelColumns, inputs_ - column),
                              .inner = rows / replicas,
                              .replicas = replicas,
                              .left = strip,
                              .panel = in_place ? x + column : packed(column, first),
                              .panel_stride = in_place ? inputs_ : kPanelColumns,
                              .result = dweight + unit * inputs_ + column,
                              .result_stride = inputs_,
                              .accumulate = accumulate});
        }
      }
    }
  });
}

}  // namespace lockstep::ops
