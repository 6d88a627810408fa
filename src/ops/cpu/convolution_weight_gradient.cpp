#include "ops/cpu/convolution_weight_gradient.h"

#include <algorithm>

namespace lockstep::ops {

ConvolutionWeightGradient::ConvolutionWeightGradient(const ConvolutionSizes& sizes, int replicas, int threads)
    : sizes_(sizes),
      replica_images_(sizes.batch / replicas),
      threads_(threads),
      fold_(replicas, sizes.units * sizes.window(), threads),
      pieces_(sizes),
      sharing_(static_cast<int>(divided_up(threads, sizes.groups)), sizes.window(), sizes.group_units()) {
  if (ConvolutionWeightPanels::suits(sizes)) panels_.emplace(sizes, threads);
}

int64_t ConvolutionWeightGradient::thread_floats() const {
  return padded_image_floats(sizes_) + 16 + pixels_at_once(sizes_) * (window_stride(sizes_) + kLeftRows) + 32;
}

int64_t ConvolutionWeightGradient::sharing_threads() const {
  return std::min<int64_t>(threads_, sizes_.groups * sharing_.count());
}

int64_t ConvolutionWeightGradient::bytes() const {
  if (panels_) return fold_.floats() * kNumberBytes + panels_->bytes();
  return (fold_.floats() + sharing_threads() * thread_floats()) * kNumberBytes;
}

void ConvolutionWeightGradient::run(const float* dy, const float* x, float* dweight, bool accumulate,
                                    float* workspace) const {
  fold_.run(dweight, accumulate, workspace, [&](int replica, float* to) {
    const int64_t first = replica * replica_images_;
    float* own = workspace + fold_.floats();
    panels_ ? panels_->add_images(first, replica_images_, dy, x, to, accumulate, own)
            : add_images(first, replica_images_, dy, x, to, accumulate, own);
  });
}

/// Threads share groups, and parts of these: each takes a range of all parts.
void ConvolutionWeightGradient::add_images(int64_t first, int64_t count, const float* dy, const float* x,
                                           float* dweight, bool accumulate, float* workspace) const {
  const int64_t of_group = sharing_.count(), parts = sizes_.groups * of_group;
  const int64_t threads = sharing_threads();
  parallel_for(threads_, threads, [&](int64_t thread) {
    float* padded = workspace + thread * thread_floats();
    for (int64_t image = first; image < first + count; ++image) {
      pad_image(sizes_, x + image * sizes_.image(), padded);
      for (int64_t part = parts * thread / threads; part < parts * (thread + 1) / threads; ++part)
        add_part(part / of_group, part % of_group, image, dy, padded, accumulate || image > first, dweight,
                 padded + padded_image_floats(sizes_) + 16);
    }
  });
}

void ConvolutionWeightGradient::add_part(int64_t group, int64_t part, int64_t image, const float* dy,
                                         const float* padded, bool goes_on, float* dweight,
                                         float* workspace) const {
  const int64_t window = sizes_.window(), units = sizes_.group_units(), first_unit = group * units;
  const int64_t stride = window_stride(sizes_), at_once = pixels_at_once(sizes_);
  const Part own_units = sharing_.rows(part, units), columns = sharing_.columns(part, window);
  float *windows = workspace, *strip = windows + at_once * stride + 16;
  for (int64_t first = 0; first < sizes_.pixels(); first += at_once) {
    const int64_t count = std::min(at_once, sizes_.pixels() - first);
    copy_windows(sizes_, pieces_, padded + group * sizes_.group_channels(), first, count, windows);
    for (int64_t unit = own_units.begin; unit < own_units.end; unit += kLeftRows) {
      const int64_t rows = std::min(kLeftRows, units - unit);
      const float* from = dy + (image * sizes_.pixels() + first) * sizes_.units + first_unit + unit;
      pack_strip(from, sizes_.units, count, rows, strip);
      for (int64_t column = columns.begin; column < columns.end; column += kPanelColumns)
        loops().panel_fold({.rows = rows,
                            .columns = std::min(kPanelColumns, window - column),
                            .inner = count,
                            .replicas = 1,
                            .left = strip,
                            .panel = windows + column,
                            .panel_stride = stride,
                            .result = dweight + (first_unit + unit) * window + column,
                            .result_stride = window,
                            .accumulate = goes_on || first > 0});
    }
  }
}

}  // namespace lockstep::ops
