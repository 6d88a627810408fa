#include "ops/cpu/convolution.h"

#include <algorithm>
#include <cstring>

#include "base/ensure.h"
#include "ops/cpu/blocked_product.h"
#include "ops/cpu/loops/loops.h"
#include "ops/cpu/parallel.h"
#include "ops/cpu/replica_fold.h"

namespace lockstep::ops {
namespace {

constexpr int64_t kNumberBytes = sizeof(float);
/// What is made of x at once is to stay in the second cache: half a megabyte, in numbers.
constexpr int64_t kCachedNumbers = 131072;

int64_t whole_line(int64_t numbers) { return divided_up(numbers, 16) * 16; }

/// An image with its padding, as planes: one for each channel, and of those one for each place that rows and
/// columns have between windows. (With a stride of 2 even and odd rows are in planes of their own, and so are
/// columns.) Places that no window reads have none. What a place of the kernel reads for the pixels of y, row
/// after row, then lies side by side in one plane, but for what stands between the end of a row of y and that
/// of the plane.
struct Planes {
  int64_t stride, kept, rows, row, plane;

  explicit Planes(const ConvolutionSizes& sizes)
      : stride(sizes.stride),
        kept(std::min(sizes.stride, sizes.kernel)),
        rows(divided_up(sizes.padded_height(), stride)),
        row(divided_up(sizes.padded_width(), stride)),
        plane(rows * row) {}

  /// Panels read up to their width behind the last plane's end.
  int64_t floats(const ConvolutionSizes& sizes) const {
    return whole_line(plane * kept * kept * sizes.channels + kPanelColumns);
  }
  /// Of a number of the padded image. REQUIRES: y % stride and x % stride are below `kept`.
  int64_t offset(int64_t channel, int64_t y, int64_t x) const {
    return ((channel * kept + y % stride) * kept + x % stride) * plane + y / stride * row + x / stride;
  }

  void fill(const ConvolutionSizes& sizes, const float* x, float* to) const {
    std::fill_n(to, floats(sizes), 0.0f);
    for (int64_t y = 0; y < sizes.height; ++y, x += sizes.width * sizes.channels) {
      const int64_t padded_y = y + sizes.padding;
      if (padded_y % stride >= kept) continue;
      if (stride == 1 && sizes.channels == 1) {
        std::memcpy(to + offset(0, padded_y, sizes.padding), x,
                    static_cast<size_t>(sizes.width * kNumberBytes));
        continue;
      }
      for (int64_t place = 0; place < kept; ++place) {
        // The first column that has this place between windows.
        const int64_t first = ((place - sizes.padding) % stride + stride) % stride;
        if (first >= sizes.width) continue;
        loops().transpose(to + offset(0, padded_y, first + sizes.padding), kept * kept * plane,
                          x + first * sizes.channels, stride * sizes.channels,
                          divided_up(sizes.width - first, stride), sizes.channels, nullptr);
      }
    }
  }
};

/// An image with its padding, channels innermost: rows that windows read are side by side.
int64_t padded_image_floats(const ConvolutionSizes& sizes) {
  return whole_line(sizes.padded_height() * sizes.padded_width() * sizes.channels);
}

void pad_image(const ConvolutionSizes& sizes, const float* x, float* padded) {
  const int64_t row = sizes.padded_width() * sizes.channels, own = sizes.width * sizes.channels;
  if (sizes.padding > 0) std::fill_n(padded, sizes.padded_height() * row, 0.0f);
  for (int64_t y = 0; y < sizes.height; ++y)
    std::memcpy(padded + (y + sizes.padding) * row + sizes.padding * sizes.channels, x + y * own,
                static_cast<size_t>(own * kNumberBytes));
}

/// Numbers of one window's row and of the next: sixteen more than panels take, which copies may overwrite.
int64_t window_stride(const ConvolutionSizes& sizes) {
  return panels_of(sizes.window()) * kPanelColumns + 16;
}

/// Sixteen numbers at a time. What is too many is overwritten by the next row of the kernel, or lies behind
/// the window, where nothing reads it.
template <bool kShort>
void copy_window_rows(const float* from, int64_t step, float* to, int64_t stride, int64_t count,
                      int64_t width) {
  for (int64_t i = 0; i < count; ++i, from += step, to += stride)
    if constexpr (kShort)
      std::memcpy(to, from, 64);
    else
      for (int64_t n = 0; n < width; n += 16) std::memcpy(to + n, from + n, 64);
}

/// The windows of `count` pixels from `first` on, a row of window_stride() for each.
void copy_windows(const ConvolutionSizes& sizes, const float* padded, int64_t first, int64_t count,
                  float* windows) {
  const int64_t row = sizes.padded_width() * sizes.channels, width = sizes.kernel * sizes.channels;
  const int64_t step = sizes.stride * sizes.channels, stride = window_stride(sizes);
  for (int64_t done = 0; done < count;) {
    const int64_t y = (first + done) / sizes.out_width, x = (first + done) % sizes.out_width;
    const int64_t run = std::min(count - done, sizes.out_width - x);
    for (int64_t kernel_y = 0; kernel_y < sizes.kernel; ++kernel_y) {
      const float* from = padded + (y * sizes.stride + kernel_y) * row + x * step;
      float* to = windows + done * stride + kernel_y * width;
      width <= 16 ? copy_window_rows<true>(from, step, to, stride, run, width)
                  : copy_window_rows<false>(from, step, to, stride, run, width);
    }
    done += run;
  }
}

}  // namespace

Convolution::Convolution(const ConvolutionSizes& sizes, int replicas, int threads)
    : sizes_(sizes), replicas_(replicas), threads_(std::max(1, threads)) {
  ensure(sizes.batch % replicas == 0, "replicas of a convolution have equally many images");
  if (sizes.kernel == 1 && sizes.stride == 1 && sizes.padding == 0) {
    plain_.emplace(sizes.batch * sizes.pixels(), sizes.units, sizes.channels, replicas, threads);
    return;
  }
  const Planes planes(sizes);
  for (int64_t y = 0; y < sizes.kernel; ++y)
    for (int64_t x = 0; x < sizes.kernel; ++x)
      for (int64_t channel = 0; channel < sizes.channels; ++channel)
        offsets_.push_back(planes.offset(channel, y, x));
}

// Forward: y^T = weight windows^T. A panel is of 32 pixels; its rows are read in the planes of an image.
// Images of fewer pixels would leave most of a panel empty: then y = windows weight^T, with the windows of
// several images.

bool Convolution::has_few_pixels() const {
  const Planes planes(sizes_);
  return (sizes_.out_height - 1) * planes.row + sizes_.out_width <= kPanelColumns;
}

int64_t Convolution::images_at_once() const {
  return std::clamp<int64_t>(kCachedNumbers / (sizes_.pixels() * window_stride(sizes_)), 1, sizes_.batch);
}

int64_t Convolution::forward_thread_floats() const {
  if (has_few_pixels())
    return padded_image_floats(sizes_) + 16 +
           whole_line(images_at_once() * sizes_.pixels() * window_stride(sizes_)) +
           product_bytes(1, images_at_once() * sizes_.pixels(), sizes_.units, sizes_.window()) / kNumberBytes;
  return Planes(sizes_).floats(sizes_) + sizes_.units * kPanelColumns;
}

void Convolution::forward_windows(int64_t first, int64_t count, const float* x, const float* weight,
                                  const float* bias, float* y, float* workspace) const {
  float* windows = workspace + padded_image_floats(sizes_) + 16;
  const int64_t stride = window_stride(sizes_), pixels = sizes_.pixels();
  for (int64_t image = 0; image < count; ++image) {
    pad_image(sizes_, x + (first + image) * sizes_.image(), workspace);
    copy_windows(sizes_, workspace, 0, pixels, windows + image * pixels * stride);
  }
  multiply({.rows = count * pixels,
            .columns = sizes_.units,
            .inner = sizes_.window(),
            .left = windows,
            .left_stride = stride,
            .right = weight,
            .right_is_transposed = true,
            .result = y + first * pixels * sizes_.units,
            .result_stride = sizes_.units,
            .bias = bias},
           1, windows + whole_line(images_at_once() * pixels * stride));
}

int64_t Convolution::packed_weight_floats() const {
  if (has_few_pixels()) return 0;
  return divided_up(sizes_.window(), kBlockInner) * sizes_.units * kLeftStride;
}

int64_t Convolution::forward_bytes() const {
  if (plain_) return plain_->forward_bytes();
  return (packed_weight_floats() + threads_ * forward_thread_floats()) * kNumberBytes;
}

void Convolution::forward(const float* x, const float* weight, const float* bias, float* y,
                          float* workspace) const {
  if (plain_) return plain_->forward(x, weight, bias, y, workspace);
  if (has_few_pixels()) {
    const int64_t at_once = images_at_once(), groups = divided_up(sizes_.batch, at_once);
    return parallel_for(threads_, threads_, [&](int64_t thread) {
      for (int64_t group = groups * thread / threads_; group < groups * (thread + 1) / threads_; ++group)
        forward_windows(group * at_once, std::min(at_once, sizes_.batch - group * at_once), x, weight, bias,
                        y, workspace + thread * forward_thread_floats());
    });
  }
  float* packed = workspace;
  const int64_t window = sizes_.window();
  for (int64_t k = 0; k < window; k += kBlockInner)
    for (int64_t unit = 0; unit < sizes_.units; ++unit, packed += kLeftStride)
      std::memcpy(packed, weight + unit * window + k,
                  static_cast<size_t>(std::min(kBlockInner, window - k) * kNumberBytes));
  parallel_for(threads_, threads_, [&](int64_t thread) {
    float* own = workspace + packed_weight_floats() + thread * forward_thread_floats();
    const int64_t end = sizes_.batch * (thread + 1) / threads_;
    for (int64_t image = sizes_.batch * thread / threads_; image < end; ++image)
      forward_image(x + image * sizes_.image(), workspace, bias, y + image * sizes_.pixels() * sizes_.units,
                    own);
  });
}

void Convolution::forward_image(const float* x, const float* packed_weight, const float* bias, float* y,
                                float* workspace) const {
  const int64_t window = sizes_.window(), units = sizes_.units, width = sizes_.out_width;
  const Planes planes(sizes_);
  float* sums = workspace + planes.floats(sizes_);
  planes.fill(sizes_, x, workspace);
  // Pixels are counted as planes have them, with what lies between rows.
  const int64_t places = (sizes_.out_height - 1) * planes.row + width;
  for (int64_t place = 0; place < places; place += kPanelColumns) {
    for (int64_t k = 0; k < window; k += kBlockInner)
      loops().panel_product({.rows = units,
                             .columns = kPanelColumns,
                             .inner = std::min(kBlockInner, window - k),
                             .left = packed_weight + k / kBlockInner * units * kLeftStride,
                             .panel = workspace + place,
                             .panel_stride = 0,
                             .offsets = offsets_.data() + k,
                             .result = sums,
                             .result_stride = kPanelColumns,
                             .accumulate = k > 0,
                             .bias = nullptr});
    const int64_t end = std::min(places, place + kPanelColumns);
    for (int64_t begin = place; begin < end;) {
      const int64_t row = begin / planes.row, column = begin % planes.row;
      const int64_t row_end = std::min(end, (row + 1) * planes.row);
      if (column < width)
        loops().transpose(y + (row * width + column) * units, units, sums + begin - place, kPanelColumns,
                          units, std::min(width - column, row_end - begin), bias);
      begin = row_end;
    }
  }
}

// Gradient of x: windows' gradients = dy weight, some pixels at a time, which are then added where they
// belong.

int64_t Convolution::pixels_at_once() const {
  return std::clamp<int64_t>(kCachedNumbers / (panels_of(sizes_.window()) * kPanelColumns), 1,
                             sizes_.pixels());
}

int64_t Convolution::input_thread_floats() const {
  return padded_image_floats(sizes_) + whole_line(pixels_at_once() * sizes_.window()) +
         product_bytes(1, pixels_at_once(), sizes_.window(), sizes_.units) / kNumberBytes;
}

int64_t Convolution::input_gradient_bytes() const {
  return plain_ ? plain_->input_gradient_bytes() : threads_ * input_thread_floats() * kNumberBytes;
}

void Convolution::input_gradient(const float* dy, const float* weight, float* dx, float* workspace) const {
  if (plain_) return plain_->input_gradient(dy, weight, dx, workspace);
  parallel_for(threads_, threads_, [&](int64_t thread) {
    const int64_t end = sizes_.batch * (thread + 1) / threads_;
    for (int64_t image = sizes_.batch * thread / threads_; image < end; ++image)
      input_gradient_of(dy + image * sizes_.pixels() * sizes_.units, weight, dx + image * sizes_.image(),
                        workspace + thread * input_thread_floats());
  });
}

void Convolution::input_gradient_of(const float* dy, const float* weight, float* dx, float* workspace) const {
  const int64_t row = sizes_.padded_width() * sizes_.channels, window = sizes_.window();
  const int64_t window_row = sizes_.kernel * sizes_.channels, at_once = pixels_at_once();
  float* padded = workspace;
  float* windows = padded + padded_image_floats(sizes_);
  float* own = windows + whole_line(at_once * window);
  std::fill_n(padded, sizes_.padded_height() * row, 0.0f);
  for (int64_t first = 0; first < sizes_.pixels(); first += at_once) {
    const int64_t count = std::min(at_once, sizes_.pixels() - first);
    multiply({.rows = count,
              .columns = window,
              .inner = sizes_.units,
              .left = dy + first * sizes_.units,
              .left_stride = sizes_.units,
              .right = weight,
              .right_is_transposed = false,
              .result = windows,
              .result_stride = window,
              .bias = nullptr},
             1, own);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t pixel = first + i, y = pixel / sizes_.out_width, x = pixel % sizes_.out_width;
      for (int64_t kernel_y = 0; kernel_y < sizes_.kernel; ++kernel_y) {
        float* __restrict to =
            padded + (y * sizes_.stride + kernel_y) * row + x * sizes_.stride * sizes_.channels;
        const float* __restrict from = windows + i * window + kernel_y * window_row;
        for (int64_t n = 0; n < window_row; ++n) to[n] += from[n];
      }
    }
  }
  const int64_t width = sizes_.width * sizes_.channels;
  for (int64_t y = 0; y < sizes_.height; ++y)
    std::memcpy(dx + y * width, padded + (y + sizes_.padding) * row + sizes_.padding * sizes_.channels,
                static_cast<size_t>(width * kNumberBytes));
}

// Gradient of the weight = dy^T windows, some pixels at a time: chains go on from what is there.

int64_t Convolution::weight_thread_floats() const {
  return padded_image_floats(sizes_) + 16 + pixels_at_once() * (window_stride(sizes_) + kLeftRows) + 32;
}

int64_t Convolution::weight_gradient_bytes() const {
  if (plain_) return plain_->weight_gradient_bytes();
  const int64_t gradient = whole_line(sizes_.units * sizes_.window());
  return ((fold_slots(replicas_) - 1) * gradient +
          Sharing(threads_, sizes_.window(), sizes_.units).count() * weight_thread_floats()) *
         kNumberBytes;
}

void Convolution::weight_gradient(const float* dy, const float* x, float* dweight, bool accumulate,
                                  float* workspace) const {
  if (plain_) return plain_->weight_gradient(dy, x, dweight, accumulate, workspace);
  ensure(!accumulate || replicas_ == 1, "gradients of several replicas are complete");
  const int64_t numbers = sizes_.units * sizes_.window(), each = sizes_.batch / replicas_;
  float* own = workspace + (fold_slots(replicas_) - 1) * whole_line(numbers);
  const auto place = [&](int slot) {
    return slot == 0 ? dweight : workspace + (slot - 1) * whole_line(numbers);
  };
  const auto make = [&](int replica, int slot) {
    add_weight_gradient(replica * each, each, dy, x, place(slot), accumulate, own);
  };
  const auto add = [&](int slot) { add_numbers(place(slot), place(slot + 1), numbers, threads_); };
  fold_replicas(replicas_, make, add);
}

void Convolution::add_weight_gradient(int64_t first_image, int64_t images, const float* dy, const float* x,
                                      float* dweight, bool accumulate, float* workspace) const {
  const int64_t window = sizes_.window(), units = sizes_.units;
  const int64_t stride = window_stride(sizes_), at_once = pixels_at_once();
  const Sharing sharing(threads_, window, units);
  parallel_for(threads_, sharing.count(), [&](int64_t part) {
    const Part own_units = sharing.rows(part, units), columns = sharing.columns(part, window);
    float* padded = workspace + part * weight_thread_floats();
    float* windows = padded + padded_image_floats(sizes_) + 16;
    float* strip = windows + at_once * stride + 16;
    bool goes_on = accumulate;
    for (int64_t image = first_image; image < first_image + images; ++image) {
      pad_image(sizes_, x + image * sizes_.image(), padded);
      for (int64_t first = 0; first < sizes_.pixels(); first += at_once) {
        const int64_t count = std::min(at_once, sizes_.pixels() - first);
        copy_windows(sizes_, padded, first, count, windows);
        for (int64_t unit = own_units.begin; unit < own_units.end; unit += kLeftRows) {
          const int64_t rows = std::min(kLeftRows, units - unit);
          const float* from = dy + (image * sizes_.pixels() + first) * units + unit;
          pack_strip(from, units, count, rows, strip);
          for (int64_t column = columns.begin; column < columns.end; column += kPanelColumns)
            loops().panel_fold({.rows = rows,
                                .columns = std::min(kPanelColumns, window - column),
                                .inner = count,
                                .replicas = 1,
                                .left = strip,
                                .panel = windows + column,
                                .panel_stride = stride,
                                .result = dweight + unit * window + column,
                                .result_stride = window,
                                .accumulate = goes_on});
        }
        goes_on = true;
      }
    }
  });
}

}  // namespace lockstep::ops
