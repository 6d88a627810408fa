#include "ops/cpu/convolution_input_gradient.h"

#include <algorithm>
#include <cstring>
#include <vector>

namespace lockstep::ops {

ConvolutionInputGradient::ConvolutionInputGradient(const ConvolutionSizes& sizes, int threads)
    : sizes_(sizes), threads_(threads), pieces_(sizes), gathering_(sizes), gathers_(is_better_gathered()) {}

/// By the multiply-adds of each way, in whole registers, and what scattering adds in memory.
bool ConvolutionInputGradient::is_better_gathered() const {
  constexpr int64_t kRegister = 16;
  constexpr double kAddition = 8;
  double places = 0;
  for (const PixelClass& one : gathering_.classes())
    places += static_cast<double>(one.height * one.width) * static_cast<double>(one.rows * one.columns);
  const auto units = static_cast<double>(sizes_.group_units()), pixels = static_cast<double>(sizes_.pixels());
  const auto window = static_cast<double>(sizes_.window());
  const double gathered =
      places * units * static_cast<double>(divided_up(sizes_.group_channels(), kRegister) * kRegister);
  const double scattered =
      pixels * (units * static_cast<double>(panels_of(sizes_.window()) * kPanelColumns) + window * kAddition);
  return gathered < scattered;
}

int64_t ConvolutionInputGradient::images_at_once() const {
  if (!gathers_) return 1;
  return images_at_once_of(sizes_.height * sizes_.width, gathering_.padded_floats(), sizes_.batch);
}

int64_t ConvolutionInputGradient::panel_floats() const {
  return sizes_.groups * panels_of(sizes_.group_channels()) * kPanelColumns * sizes_.group_units() *
         sizes_.kernel * sizes_.kernel;
}

int64_t ConvolutionInputGradient::thread_floats() const {
  if (gathers_) return images_at_once() * gathering_.padded_floats();
  const int64_t at_once = pixels_at_once(sizes_), window = sizes_.window();
  return padded_image_floats(sizes_) + whole_line(at_once * window) +
         product_bytes(1, at_once, window, sizes_.group_units(), false) / kNumberBytes;
}

int64_t ConvolutionInputGradient::bytes() const {
  return ((gathers_ ? panel_floats() : 0) + threads_ * thread_floats()) * kNumberBytes;
}

void ConvolutionInputGradient::run(const float* dy, const float* weight, float* dx, float* workspace) const {
  float* own = workspace;
  if (gathers_) {
    pack(weight, workspace);
    own += panel_floats();
    // What stands around images stays.
    parallel_for(threads_, threads_,
                 [&](int64_t thread) { std::fill_n(own + thread * thread_floats(), thread_floats(), 0.0f); });
  }
  for_images(threads_, sizes_.batch, images_at_once(), [&](int64_t first, int64_t images, int64_t thread) {
    const float* from = dy + first * sizes_.pixels() * sizes_.units;
    float *to = dx + first * sizes_.image(), *memory = own + thread * thread_floats();
    gathers_ ? gather(images, from, workspace, to, memory) : scatter(from, weight, to, memory);
  });
}

/// [places of a class][units of a group][kPanelColumns] for each panel of a group's channels, group after
/// group, class after class.
void ConvolutionInputGradient::pack(const float* weight, float* panels) const {
  const int64_t units = sizes_.group_units(), channels = sizes_.group_channels();
  const int64_t of_group = panels_of(channels), step = gathering_.place_step();
  for (const PixelClass& one : gathering_.classes()) {
    const int64_t floats = one.rows * one.columns * units * kPanelColumns;
    parallel_for(threads_, sizes_.groups * of_group, [&](int64_t panel) {
      const int64_t group = panel / of_group, channel = panel % of_group * kPanelColumns;
      const int64_t count = std::min(kPanelColumns, channels - channel);
      float* to = panels + panel * floats;
      for (int64_t row = 0; row < one.rows; ++row)
        for (int64_t column = 0; column < one.columns; ++column)
          for (int64_t unit = group * units; unit < (group + 1) * units; ++unit, to += kPanelColumns) {
            const int64_t place = (one.kernel_y - row * step) * sizes_.kernel + one.kernel_x - column * step;
            std::memcpy(to, weight + unit * sizes_.window() + place * channels + channel,
                        static_cast<size_t>(count * kNumberBytes));
            std::fill_n(to + count, kPanelColumns - count, 0.0f);
          }
    });
    panels += sizes_.groups * of_group * floats;
  }
}

void ConvolutionInputGradient::gather(int64_t images, const float* dy, const float* panels, float* dx,
                                      float* padded) const {
  gathering_.fill(images, dy, padded);
  if (!gathering_.covers_all_pixels()) std::fill_n(dx, images * sizes_.image(), 0.0f);
  for (const PixelClass& one : gathering_.classes()) {
    gather_class(one, images, padded, panels, dx);
    panels += sizes_.groups * panels_of(sizes_.group_channels()) * one.rows * one.columns *
              sizes_.group_units() * kPanelColumns;
  }
}

void ConvolutionInputGradient::gather_class(const PixelClass& one, int64_t images, const float* padded,
                                            const float* panels, float* dx) const {
  const int64_t stride = sizes_.stride, row = gathering_.padded_row(), units = sizes_.group_units(),
                channels = sizes_.group_channels();
  const bool whole_rows = sizes_.groups == 1 && gathering_.pixel_step() == 1;
  const int64_t length = units * (whole_rows ? one.columns : 1);
  std::vector<int64_t> offsets;
  for (int64_t y = 0; y < one.rows; ++y)
    for (int64_t x = 0; x < (whole_rows ? 1 : one.columns); ++x)
      offsets.push_back(gathering_.pixel_step() * (y * row + x * sizes_.units));
  const WindowGrid grid{
      .height = one.height,
      .width = one.width,
      .from = {one.begin_y * row + one.begin_x * sizes_.units, gathering_.padded_floats(), row, sizes_.units},
      .to = {(one.first_y * sizes_.width + one.first_x) * sizes_.channels, sizes_.image(),
             stride * sizes_.width * sizes_.channels, stride * sizes_.channels}};
  const auto multiply_panel = [&](int64_t group, int64_t channel) {
    for_pieces(static_cast<int64_t>(offsets.size()), length, [&](int64_t first, int64_t count) {
      for_each_run(images, grid, [&](const WindowRun& run) {
        loops().window_product({.rows = run.count,
                                .columns = std::min(kPanelColumns, channels - channel),
                                .image = padded + group * units,
                                .from = run.from,
                                .pieces = count,
                                .piece_length = length,
                                .piece_offsets = offsets.data() + first,
                                .chain = units,
                                .accumulate = first > 0,
                                .panel = panels + first * length * kPanelColumns,
                                .result = dx + group * channels + channel,
                                .to = run.to,
                                .bias = nullptr});
      });
    });
  };
  for (int64_t group = 0; group < sizes_.groups; ++group)
    for (int64_t channel = 0; channel < channels;
         channel += kPanelColumns, panels += one.rows * one.columns * units * kPanelColumns)
      multiply_panel(group, channel);
}

void ConvolutionInputGradient::scatter(const float* dy, const float* weight, float* dx,
                                       float* workspace) const {
  const int64_t row = sizes_.padded_row(), window = sizes_.window(), units = sizes_.group_units();
  const int64_t at_once = pixels_at_once(sizes_);
  float* padded = workspace;
  float* windows = padded + padded_image_floats(sizes_);
  float* own = windows + whole_line(at_once * window);
  std::fill_n(padded, sizes_.padded_height() * row, 0.0f);
  for (int64_t group = 0; group < sizes_.groups; ++group)
    for (int64_t first = 0; first < sizes_.pixels(); first += at_once) {
      const int64_t count = std::min(at_once, sizes_.pixels() - first);
      multiply({.rows = count,
                .columns = window,
                .inner = units,
                .left = dy + first * sizes_.units + group * units,
                .left_stride = sizes_.units,
                .right = weight + group * units * window,
                .right_is_transposed = false,
                .result = windows,
                .result_stride = window,
                .bias = nullptr},
               1, own);
      add_windows(windows, first, count, padded + group * sizes_.group_channels());
    }
  const int64_t width = sizes_.width * sizes_.channels;
  for (int64_t y = 0; y < sizes_.height; ++y)
    std::memcpy(dx + y * width, padded + (y + sizes_.padding) * row + sizes_.padding * sizes_.channels,
                static_cast<size_t>(width * kNumberBytes));
}

/// Adds the windows of `count` pixels from `first` on to where they belong.
void ConvolutionInputGradient::add_windows(const float* windows, int64_t first, int64_t count,
                                           float* padded) const {
  for (int64_t i = 0; i < count; ++i) {
    const int64_t pixel = first + i, y = pixel / sizes_.out_width, x = pixel % sizes_.out_width;
    float* window = padded + sizes_.stride * (y * sizes_.padded_row() + x * sizes_.channels);
    const float* __restrict from = windows + i * sizes_.window();
    for (const int64_t offset : pieces_.offsets) {
      float* __restrict to = window + offset;
      for (int64_t n = 0; n < pieces_.length; ++n) to[n] += from[n];
      from += pieces_.length;
    }
  }
}

}  // namespace lockstep::ops
