#pragma once

#include <cstdint>

#include "base/simd.h"

namespace lockstep::ops {

struct PanelProduct;
struct PanelFold;

inline namespace LOCKSTEP_SIMD {

void panel_product(const PanelProduct& product);
void panel_fold(const PanelFold& fold);
void pack_rows(float* panel, const float* rows, int64_t row_stride, int64_t count, int64_t inner);
void transpose(float* to, int64_t to_stride, const float* from, int64_t from_stride, int64_t rows,
               int64_t columns, const float* bias);

}  // namespace LOCKSTEP_SIMD
}  // namespace lockstep::ops
