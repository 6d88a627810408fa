#include "ops/cpu/recurrent_product.h"

#include <algorithm>
#include <cstring>

#include "ops/cpu/blocked_product.h"
#include "ops/cpu/loops/loops.h"
#include "ops/cpu/parallel.h"

namespace lockstep::ops {

RecurrentProduct::RecurrentProduct(int64_t inner, int64_t columns, bool is_transposed)
    : inner_(inner), columns_(columns), is_transposed_(is_transposed) {}

int64_t RecurrentProduct::panel_floats() const { return panels_of(columns_) * kPanelColumns * inner_; }

void RecurrentProduct::pack(const float* right, int threads, float* panels) const {
  parallel_for(threads, panels_of(columns_), [&](int64_t number) {
    const int64_t column = number * kPanelColumns, width = std::min(kPanelColumns, columns_ - column);
    float* panel = panels + column * inner_;
    if (is_transposed_) return loops().pack_rows(panel, right + column * inner_, inner_, width, inner_);
    for (int64_t k = 0; k < inner_; ++k, panel += kPanelColumns) {
      std::copy_n(right + k * columns_ + column, width, panel);
      std::fill(panel + width, panel + kPanelColumns, 0.0f);
    }
  });
}

int64_t RecurrentProduct::left_floats(int64_t rows) const {
  return divided_up(inner_, kBlockInner) * rows * kLeftStride;
}

void RecurrentProduct::set_row(float* left, int64_t rows, int64_t row, const float* numbers) const {
  for (int64_t k = 0; k < inner_; k += kBlockInner)
    std::memcpy(left + (k / kBlockInner * rows + row) * kLeftStride, numbers + k,
                static_cast<size_t>(std::min(kBlockInner, inner_ - k)) * sizeof(float));
}

void RecurrentProduct::add(const float* panels, const float* left, int64_t rows, float* result,
                           int64_t result_stride, const float* bias, int threads) const {
  parallel_for(threads, panels_of(columns_), [&](int64_t panel) {
    add_columns(panels, left, rows, panel * kPanelColumns, result, result_stride, bias);
  });
}

/// Of the panel that begins at `column`.
void RecurrentProduct::add_columns(const float* panels, const float* left, int64_t rows, int64_t column,
                                   float* result, int64_t result_stride, const float* bias) const {
  const int64_t width = std::min(kPanelColumns, columns_ - column);
  float wide_bias[kPanelColumns] = {};
  if (bias != nullptr) std::copy_n(bias + column, width, wide_bias);
  for (int64_t k = 0; k < inner_; k += kBlockInner) {
    const int64_t inner = std::min(kBlockInner, inner_ - k);
    const bool is_last = k + inner == inner_;
    loops().panel_product({.rows = rows,
                           .columns = width,
                           .inner = inner,
                           .left = left + k / kBlockInner * rows * kLeftStride,
                           .panel = panels + column * inner_ + k * kPanelColumns,
                           .panel_stride = kPanelColumns,
                           .offsets = nullptr,
                           .result = result + column,
                           .result_stride = result_stride,
                           .accumulate = true,
                           .bias = is_last && bias != nullptr ? wide_bias : nullptr});
  }
}

}  // namespace lockstep::ops
