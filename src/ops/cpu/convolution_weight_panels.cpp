#include "ops/cpu/convolution_weight_panels.h"

#include <algorithm>
#include <cstring>

namespace lockstep::ops {
namespace {

/// Pixels of a panel: 24 KiB, three quarters of the first cache.
constexpr int64_t kPanelPixels = 192;
/// What is packed of dy is to stay in the second cache: half a megabyte, in numbers.
constexpr int64_t kPackedNumbers = 131072;

/// A place of the kernel, from a channel on.
struct Place {
  int64_t down, across;  ///< from where a pixel's window begins, without padding
  int64_t channel;
  int64_t inside, beyond;  ///< columns of y whose windows have this place within the image's width

  Place(const ConvolutionSizes& sizes, int64_t kernel_y, int64_t kernel_x, int64_t channel_)
      : down(kernel_y * sizes.dilation - sizes.padding),
        across(kernel_x * sizes.dilation - sizes.padding),
        channel(channel_),
        inside(std::min(sizes.out_width, divided_up(std::max<int64_t>(0, -across), sizes.stride))),
        beyond(std::clamp(divided_up(std::max<int64_t>(0, sizes.width - across), sizes.stride), inside,
                          sizes.out_width)) {}
};

template <int64_t kNumbers>
float* clear_rows(float* panel, int64_t count) {
  for (; count > 0; --count, panel += kPanelColumns) std::memset(panel, 0, kNumbers * kNumberBytes);
  return panel;
}

/// What `count` pixels of y, row after row and image after image, have in that place.
template <int64_t kNumbers>
void copy_place(const ConvolutionSizes& sizes, const Place& place, const float* x, int64_t first,
                int64_t count, float* panel) {
  const int64_t step = sizes.stride * sizes.channels;
  int64_t image = first / sizes.pixels(), row = first % sizes.pixels() / sizes.out_width,
          column = first % sizes.out_width;
  while (count > 0) {
    const int64_t end = std::min(sizes.out_width, column + count);
    const int64_t from_row = row * sizes.stride + place.down;
    count -= end - column;
    if (from_row < 0 || from_row >= sizes.height) {
      panel = clear_rows<kNumbers>(panel, end - column);
    } else {
      const int64_t begin = std::clamp(place.inside, column, end),
                    copied = std::clamp(place.beyond, begin, end);
      panel = clear_rows<kNumbers>(panel, begin - column);
      const float* from = x + image * sizes.image() + place.channel +
                          (from_row * sizes.width + begin * sizes.stride + place.across) * sizes.channels;
      for (int64_t i = begin; i < copied; ++i, from += step, panel += kPanelColumns)
        std::memcpy(panel, from, kNumbers * kNumberBytes);
      panel = clear_rows<kNumbers>(panel, end - copied);
    }
    column = 0;
    if (++row == sizes.out_height) row = 0, ++image;
  }
}

/// Brings a tile of the gradient closer, which lies in as many pages as it has rows.
void fetch_tile(const float* tile, int64_t rows, int64_t stride) {
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t column = 0; column < kPanelColumns; column += 16)
      __builtin_prefetch(tile + row * stride + column, 1);
}

}  // namespace

ConvolutionWeightPanels::ConvolutionWeightPanels(const ConvolutionSizes& sizes, int threads)
    : sizes_(sizes),
      threads_(threads),
      sharing_(static_cast<int>(divided_up(threads, sizes.groups)), sizes.window(), sizes.group_units()),
      at_once_(std::min(sizes.batch * sizes.pixels(),
                        std::max(kPanelPixels, kPackedNumbers / (sizes.groups * group_strips() * kLeftRows) /
                                                   kPanelPixels * kPanelPixels))) {}

int64_t ConvolutionWeightPanels::group_strips() const { return divided_up(sizes_.group_units(), kLeftRows); }

int64_t ConvolutionWeightPanels::strip_floats() const { return whole_line(at_once_ * kLeftRows); }

int64_t ConvolutionWeightPanels::parts() const { return sizes_.groups * sharing_.count(); }

int64_t ConvolutionWeightPanels::bytes() const {
  const int64_t panels = std::min<int64_t>(threads_, parts());
  return (sizes_.groups * group_strips() * strip_floats() + panels * kPanelPixels * kPanelColumns) *
         kNumberBytes;
}

void ConvolutionWeightPanels::add_images(int64_t first, int64_t count, const float* dy, const float* x,
                                         float* dweight, bool accumulate, float* workspace) const {
  const int64_t begin = first * sizes_.pixels(), end = (first + count) * sizes_.pixels();
  const int64_t threads = std::min<int64_t>(threads_, parts());
  float* panels = workspace + sizes_.groups * group_strips() * strip_floats();
  for (int64_t pixel = begin; pixel < end; pixel += at_once_) {
    const int64_t pixels = std::min(at_once_, end - pixel);
    pack(dy, pixel, pixels, workspace);
    parallel_for(threads_, threads, [&](int64_t thread) {
      for (int64_t part = parts() * thread / threads; part < parts() * (thread + 1) / threads; ++part)
        add_part(part, x, pixel, pixels, accumulate || pixel > begin, workspace,
                 panels + thread * kPanelPixels * kPanelColumns, dweight);
    });
  }
}

/// A left factor for each twelve units of a group.
void ConvolutionWeightPanels::pack(const float* dy, int64_t first, int64_t count, float* strips) const {
  parallel_for(threads_, sizes_.groups * group_strips(), [&](int64_t strip) {
    const int64_t in_group = strip % group_strips() * kLeftRows;
    const int64_t unit = strip / group_strips() * sizes_.group_units() + in_group;
    pack_strip(dy + first * sizes_.units + unit, sizes_.units, count,
               std::min(kLeftRows, sizes_.group_units() - in_group), strips + strip * strip_floats());
  });
}

void ConvolutionWeightPanels::add_part(int64_t part, const float* x, int64_t first, int64_t count,
                                       bool goes_on, const float* strips, float* panel,
                                       float* dweight) const {
  const int64_t group = part / sharing_.count(), in_group = part % sharing_.count();
  const int64_t window = sizes_.window(), units = sizes_.group_units();
  const Part own_units = sharing_.rows(in_group, units), columns = sharing_.columns(in_group, window);
  for (int64_t column = columns.begin; column < columns.end; column += kPanelColumns) {
    const int64_t width = std::min(kPanelColumns, window - column);
    for (int64_t done = 0; done < count; done += kPanelPixels) {
      const int64_t pixels = std::min(kPanelPixels, count - done);
      copy_panel(group, column, width, x, first + done, pixels, panel);
      for (int64_t unit = own_units.begin; unit < own_units.end; unit += kLeftRows) {
        const int64_t strip = group * group_strips() + unit / kLeftRows;
        float* result = dweight + (group * units + unit) * window + column;
        if (goes_on && done == 0 && unit + kLeftRows < own_units.end)
          fetch_tile(result + kLeftRows * window, std::min(kLeftRows, units - unit - kLeftRows), window);
        loops().panel_fold({.rows = std::min(kLeftRows, units - unit),
                            .columns = width,
                            .inner = pixels,
                            .replicas = 1,
                            .left = strips + strip * strip_floats() + done * kLeftRows,
                            .panel = panel,
                            .panel_stride = kPanelColumns,
                            .result = result,
                            .result_stride = window,
                            .accumulate = goes_on || done > 0});
      }
    }
  }
}

/// Columns of `count` pixels' windows. Pixels are counted through all images.
void ConvolutionWeightPanels::copy_panel(int64_t group, int64_t column, int64_t width, const float* x,
                                         int64_t first, int64_t count, float* panel) const {
  const int64_t channels = sizes_.group_channels();
  const auto place_of = [&](int64_t at) {
    const int64_t place = at / channels, first_channel = group * channels + at % channels;
    return Place(sizes_, place / sizes_.kernel, place % sizes_.kernel, first_channel);
  };
  const Place left = place_of(column);
  if (width == 2 * kPart && column % channels + width <= channels)
    return copy_place<2 * kPart>(sizes_, left, x, first, count, panel);
  copy_place<kPart>(sizes_, left, x, first, count, panel);
  if (width > kPart) copy_place<kPart>(sizes_, place_of(column + kPart), x, first, count, panel + kPart);
}

}  // namespace lockstep::ops
