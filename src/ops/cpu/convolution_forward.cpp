#include "ops/cpu/convolution_forward.h"

#include <algorithm>
#include <cstring>

#include "ops/cpu/convolution_planes.h"

namespace lockstep::ops {
namespace {

bool is_better_by_planes(const ConvolutionSizes& sizes) {
  constexpr int64_t kFewUnits = 16;
  const Planes planes(sizes);
  const bool has_few_pixels = (sizes.out_height - 1) * planes.row + sizes.out_width <= kPanelColumns;
  return sizes.group_units() < kFewUnits && !has_few_pixels;
}

}  // namespace

ConvolutionForward::ConvolutionForward(const ConvolutionSizes& sizes, int threads)
    : sizes_(sizes), threads_(threads), pieces_(sizes), reads_planes_(is_better_by_planes(sizes)) {
  if (!reads_planes_) return;
  const Planes planes(sizes);
  for (int64_t y = 0; y < sizes.kernel; ++y)
    for (int64_t x = 0; x < sizes.kernel; ++x)
      for (int64_t channel = 0; channel < sizes.group_channels(); ++channel)
        offsets_.push_back(planes.offset(channel, y * sizes.dilation, x * sizes.dilation));
}

int64_t ConvolutionForward::group_panel_floats() const {
  return panels_of(sizes_.group_units()) * (sizes_.window() + 1) * kPanelColumns;
}

int64_t ConvolutionForward::packed_weight_floats() const {
  if (!reads_planes_) return sizes_.groups * group_panel_floats();
  return divided_up(sizes_.window(), kBlockInner) * sizes_.units * kLeftStride;
}

int64_t ConvolutionForward::images_at_once() const {
  return reads_planes_ ? 1 : images_at_once_of(sizes_.pixels(), padded_image_floats(sizes_), sizes_.batch);
}

int64_t ConvolutionForward::thread_floats() const {
  if (!reads_planes_) return sizes_.padding > 0 ? images_at_once() * padded_image_floats(sizes_) : 0;
  return Planes(sizes_).floats(sizes_) + sizes_.group_units() * kPanelColumns;
}

int64_t ConvolutionForward::bytes() const {
  return (packed_weight_floats() + threads_ * thread_floats()) * kNumberBytes;
}

void ConvolutionForward::run(const float* x, const float* weight, const float* bias, float* y,
                             float* workspace) const {
  reads_planes_ ? pack_weight(weight, workspace) : pack_units(weight, bias, workspace);
  const auto own_of = [&](int64_t thread) {
    return workspace + packed_weight_floats() + thread * thread_floats();
  };
  // What stands around images stays.
  if (!reads_planes_)
    parallel_for(threads_, threads_,
                 [&](int64_t thread) { std::fill_n(own_of(thread), thread_floats(), 0.0f); });
  for_images(threads_, sizes_.batch, images_at_once(), [&](int64_t first, int64_t images, int64_t thread) {
    const float* from = x + first * sizes_.image();
    float* to = y + first * sizes_.pixels() * sizes_.units;
    float* own = own_of(thread);
    reads_planes_ ? by_planes(from, workspace, bias, to, own) : by_windows(images, from, workspace, to, own);
  });
}

/// Of each group a panel for each 32 units, and behind it their biases.
void ConvolutionForward::pack_units(const float* weight, const float* bias, float* panels) const {
  const int64_t window = sizes_.window(), units = sizes_.group_units(), of_group = panels_of(units);
  parallel_for(threads_, sizes_.groups * of_group, [&](int64_t panel) {
    const int64_t in_group = panel % of_group * kPanelColumns, unit = panel / of_group * units + in_group;
    const int64_t count = std::min(kPanelColumns, units - in_group);
    float* to = panels + panel * (window + 1) * kPanelColumns;
    loops().pack_rows(to, weight + unit * window, window, count, window);
    to += window * kPanelColumns;
    std::fill_n(to, kPanelColumns, 0.0f);
    if (bias != nullptr) std::copy_n(bias + unit, count, to);
  });
}

void ConvolutionForward::by_windows(int64_t images, const float* x, const float* panels, float* y,
                                    float* padded) const {
  const bool pads = sizes_.padding > 0;
  const int64_t image_stride = pads ? padded_image_floats(sizes_) : sizes_.image();
  for (int64_t image = 0; image < images && pads; ++image)
    fill_image(sizes_, x + image * sizes_.image(), padded + image * image_stride);
  const int64_t window = sizes_.window(), units = sizes_.group_units(), stride = sizes_.stride;
  const WindowGrid grid{
      .height = sizes_.out_height,
      .width = sizes_.out_width,
      .from = {0, image_stride, stride * sizes_.padded_row(), stride * sizes_.channels},
      .to = {0, sizes_.pixels() * sizes_.units, sizes_.out_width * sizes_.units, sizes_.units}};
  const auto multiply_panel = [&](int64_t group, int64_t unit) {
    for_pieces(pieces_.count(), pieces_.length, [&](int64_t first, int64_t count) {
      const float* bias = first + count == pieces_.count() ? panels + window * kPanelColumns : nullptr;
      for_each_run(images, grid, [&](const WindowRun& run) {
        loops().window_product({.rows = run.count,
                                .columns = std::min(kPanelColumns, units - unit),
                                .image = (pads ? padded : x) + group * sizes_.group_channels(),
                                .from = run.from,
                                .pieces = count,
                                .piece_length = pieces_.length,
                                .piece_offsets = pieces_.offsets.data() + first,
                                .chain = 0,
                                .accumulate = first > 0,
                                .panel = panels + first * pieces_.length * kPanelColumns,
                                .result = y + group * units + unit,
                                .to = run.to,
                                .bias = bias});
      });
    });
  };
  for (int64_t group = 0; group < sizes_.groups; ++group)
    for (int64_t unit = 0; unit < units; unit += kPanelColumns, panels += (window + 1) * kPanelColumns)
      multiply_panel(group, unit);
}

/// Of each group a left factor for each block of a window.
void ConvolutionForward::pack_weight(const float* weight, float* packed) const {
  const int64_t window = sizes_.window(), units = sizes_.group_units();
  for (int64_t group = 0; group < sizes_.groups; ++group)
    for (int64_t k = 0; k < window; k += kBlockInner)
      for (int64_t unit = group * units; unit < (group + 1) * units; ++unit, packed += kLeftStride)
        std::memcpy(packed, weight + unit * window + k,
                    static_cast<size_t>(std::min(kBlockInner, window - k) * kNumberBytes));
}

void ConvolutionForward::by_planes(const float* x, const float* packed_weight, const float* bias, float* y,
                                   float* workspace) const {
  const int64_t window = sizes_.window(), units = sizes_.group_units(), width = sizes_.out_width;
  const int64_t blocks = divided_up(window, kBlockInner);
  const Planes planes(sizes_);
  float* sums = workspace + planes.floats(sizes_);
  planes.fill(sizes_, x, workspace);
  // Pixels are counted as planes have them, with what lies between rows.
  const int64_t places = (sizes_.out_height - 1) * planes.row + width;
  const auto multiply_place = [&](int64_t group, int64_t place) {
    const float* panel = workspace + group * sizes_.group_channels() * planes.channel_floats() + place;
    for (int64_t block = 0; block < blocks; ++block)
      loops().panel_product({.rows = units,
                             .columns = kPanelColumns,
                             .inner = std::min(kBlockInner, window - block * kBlockInner),
                             .left = packed_weight + (group * blocks + block) * units * kLeftStride,
                             .panel = panel,
                             .panel_stride = 0,
                             .offsets = offsets_.data() + block * kBlockInner,
                             .result = sums,
                             .result_stride = kPanelColumns,
                             .accumulate = block > 0,
                             .bias = nullptr});
    const int64_t end = std::min(places, place + kPanelColumns), unit = group * units;
    for (int64_t begin = place; begin < end;) {
      const int64_t row = begin / planes.row, column = begin % planes.row;
      const int64_t row_end = std::min(end, (row + 1) * planes.row);
      if (column < width)
        loops().transpose(y + (row * width + column) * sizes_.units + unit, sizes_.units,
                          sums + begin - place, kPanelColumns, units,
                          std::min(width - column, row_end - begin), bias ? bias + unit : nullptr);
      begin = row_end;
    }
  };
  for (int64_t group = 0; group < sizes_.groups; ++group)
    for (int64_t place = 0; place < places; place += kPanelColumns) multiply_place(group, place);
}

}  // namespace lockstep::ops
