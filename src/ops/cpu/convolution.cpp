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

/// Some pixels, row after row, and where their windows and results are.
struct WindowRun {
  static constexpr int64_t kMost = 48;
  int64_t count = 0;
  int64_t y[kMost], x[kMost], from[kMost], to[kMost];
};

/// work(run) for all pixels of `height` rows of `width` pixels.
template <class Work>
void for_each_run(int64_t height, int64_t width, const Work& work) {
  WindowRun run;
  for (int64_t y = 0; y < height; ++y)
    for (int64_t x = 0; x < width; ++x) {
      run.y[run.count] = y;
      run.x[run.count++] = x;
      if (run.count < WindowRun::kMost && (y + 1 < height || x + 1 < width)) continue;
      work(run);
      run.count = 0;
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
  find_pixel_classes();
  gathers_ = gathers();
  if (!reads_planes()) return;
  const Planes planes(sizes);
  for (int64_t y = 0; y < sizes.kernel; ++y)
    for (int64_t x = 0; x < sizes.kernel; ++x)
      for (int64_t channel = 0; channel < sizes.channels; ++channel)
        offsets_.push_back(planes.offset(channel, y, x));
}

// Forward. Usually y = windows weight^T: a row for each pixel, whose window is read where it lies in the
// image; units are columns. Few units would leave most of a register empty: then y^T = weight windows^T,
// where pixels are columns, and are read in the planes of an image.

bool Convolution::reads_planes() const {
  constexpr int64_t kFewUnits = 16;
  const Planes planes(sizes_);
  const bool has_few_pixels = (sizes_.out_height - 1) * planes.row + sizes_.out_width <= kPanelColumns;
  return sizes_.units < kFewUnits && !has_few_pixels;
}

int64_t Convolution::packed_units_floats() const {
  return panels_of(sizes_.units) * (sizes_.window() + 1) * kPanelColumns;
}

int64_t Convolution::packed_weight_floats() const {
  if (!reads_planes()) return packed_units_floats();
  return divided_up(sizes_.window(), kBlockInner) * sizes_.units * kLeftStride;
}

int64_t Convolution::forward_thread_floats() const {
  if (!reads_planes()) return padded_image_floats(sizes_);
  return Planes(sizes_).floats(sizes_) + sizes_.units * kPanelColumns;
}

int64_t Convolution::forward_bytes() const {
  if (plain_) return plain_->forward_bytes();
  return (packed_weight_floats() + threads_ * forward_thread_floats()) * kNumberBytes;
}

void Convolution::forward(const float* x, const float* weight, const float* bias, float* y,
                          float* workspace) const {
  if (plain_) return plain_->forward(x, weight, bias, y, workspace);
  const bool in_planes = reads_planes();
  in_planes ? pack_weight(weight, workspace) : pack_units(weight, bias, workspace);
  parallel_for(threads_, threads_, [&](int64_t thread) {
    float* own = workspace + packed_weight_floats() + thread * forward_thread_floats();
    const int64_t end = sizes_.batch * (thread + 1) / threads_;
    for (int64_t image = sizes_.batch * thread / threads_; image < end; ++image) {
      const float* from = x + image * sizes_.image();
      float* to = y + image * sizes_.pixels() * sizes_.units;
      in_planes ? forward_planes(from, workspace, bias, to, own) : forward_windows(from, workspace, to, own);
    }
  });
}

/// A panel for each 32 units, and behind it their biases.
void Convolution::pack_units(const float* weight, const float* bias, float* panels) const {
  const int64_t window = sizes_.window();
  parallel_for(threads_, panels_of(sizes_.units), [&](int64_t panel) {
    const int64_t unit = panel * kPanelColumns, count = std::min(kPanelColumns, sizes_.units - unit);
    float* to = panels + panel * (window + 1) * kPanelColumns;
    loops().pack_rows(to, weight + unit * window, window, count, window);
    to += window * kPanelColumns;
    std::fill_n(to, kPanelColumns, 0.0f);
    if (bias != nullptr) std::copy_n(bias + unit, count, to);
  });
}

void Convolution::forward_windows(const float* x, const float* panels, float* y, float* padded) const {
  if (sizes_.padding > 0) pad_image(sizes_, x, padded);
  const int64_t row = sizes_.padded_width() * sizes_.channels, window = sizes_.window();
  for (int64_t unit = 0; unit < sizes_.units; unit += kPanelColumns, panels += (window + 1) * kPanelColumns)
    for_each_run(sizes_.out_height, sizes_.out_width, [&](WindowRun& run) {
      for (int64_t i = 0; i < run.count; ++i) {
        run.from[i] = run.y[i] * sizes_.stride * row + run.x[i] * sizes_.stride * sizes_.channels;
        run.to[i] = (run.y[i] * sizes_.out_width + run.x[i]) * sizes_.units;
      }
      loops().window_product({.rows = run.count,
                              .columns = std::min(kPanelColumns, sizes_.units - unit),
                              .image = sizes_.padding > 0 ? padded : x,
                              .from = run.from,
                              .window_rows = sizes_.kernel,
                              .row_length = sizes_.kernel * sizes_.channels,
                              .row_step = row,
                              .chain = 0,
                              .panel = panels,
                              .result = y + unit,
                              .to = run.to,
                              .bias = panels + window * kPanelColumns});
    });
}

void Convolution::pack_weight(const float* weight, float* packed) const {
  const int64_t window = sizes_.window();
  for (int64_t k = 0; k < window; k += kBlockInner)
    for (int64_t unit = 0; unit < sizes_.units; ++unit, packed += kLeftStride)
      std::memcpy(packed, weight + unit * window + k,
                  static_cast<size_t>(std::min(kBlockInner, window - k) * kNumberBytes));
}

void Convolution::forward_planes(const float* x, const float* packed_weight, const float* bias, float* y,
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

// Gradient of x, in one of two ways with the same bits. Gathered: a row of products for each pixel of x,
// whose window is what dy has of the pixels of y that it takes part in. Scattered, where a pixel of x takes
// part in few: windows' gradients = dy weight, some pixels at a time, are added where they belong.

void Convolution::find_pixel_classes() {
  const int64_t stride = sizes_.stride;
  const auto first = [&](int64_t rest) { return ((rest - sizes_.padding) % stride + stride) % stride; };
  const auto places = [&](int64_t rest) {
    return std::max<int64_t>(0, divided_up(sizes_.kernel - rest, stride));
  };
  const auto pixels = [&](int64_t begin, int64_t count) {
    return std::max<int64_t>(0, divided_up(count - begin, stride));
  };
  for (int64_t y = 0; y < stride; ++y)
    for (int64_t x = 0; x < stride; ++x)
      classes_.push_back({.first_y = first(y),
                          .first_x = first(x),
                          .kernel_y = y + (places(y) - 1) * stride,
                          .kernel_x = x + (places(x) - 1) * stride,
                          .rows = places(y),
                          .columns = places(x),
                          .height = pixels(first(y), sizes_.height),
                          .width = pixels(first(x), sizes_.width)});
}

/// By the multiply-adds of each way, in whole registers, and what scattering adds in memory.
bool Convolution::gathers() const {
  constexpr int64_t kRegister = 16, kAddition = 8;
  int64_t gathered = 0;
  for (const PixelClass& one : classes_)
    gathered += one.height * one.width * one.rows * one.columns * sizes_.units *
                divided_up(sizes_.channels, kRegister) * kRegister;
  const int64_t scattered = sizes_.pixels() * (sizes_.units * panels_of(sizes_.window()) * kPanelColumns +
                                               sizes_.window() * kAddition);
  return gathered < scattered;
}

/// What dy has beyond its borders, where it is 0: as much as windows read.
int64_t Convolution::gathered_lead() const { return divided_up(sizes_.kernel, sizes_.stride) - 1; }
int64_t Convolution::gathered_size(int64_t out, int64_t pixels) const {
  return gathered_lead() + std::max(out, (pixels - 1 + sizes_.padding) / sizes_.stride + 1);
}
int64_t Convolution::gathered_floats() const {
  return whole_line(gathered_size(sizes_.out_height, sizes_.height) *
                    gathered_size(sizes_.out_width, sizes_.width) * sizes_.units);
}

/// [places of a class][units][kPanelColumns] for each panel of channels, class after class.
void Convolution::pack_for_gathering(const float* weight, float* panels) const {
  for (const PixelClass& one : classes_)
    for (int64_t channel = 0; channel < sizes_.channels; channel += kPanelColumns) {
      const int64_t count = std::min(kPanelColumns, sizes_.channels - channel);
      for (int64_t row = 0; row < one.rows; ++row)
        for (int64_t column = 0; column < one.columns; ++column)
          for (int64_t unit = 0; unit < sizes_.units; ++unit, panels += kPanelColumns) {
            const int64_t place =
                (one.kernel_y - row * sizes_.stride) * sizes_.kernel + one.kernel_x - column * sizes_.stride;
            std::memcpy(panels, weight + unit * sizes_.window() + place * sizes_.channels + channel,
                        static_cast<size_t>(count * kNumberBytes));
            std::fill_n(panels + count, kPanelColumns - count, 0.0f);
          }
    }
}

void Convolution::gather_image(const float* dy, const float* panels, float* dx, float* padded) const {
  const int64_t lead = gathered_lead(), units = sizes_.units, stride = sizes_.stride;
  const int64_t row = gathered_size(sizes_.out_width, sizes_.width) * units;
  std::fill_n(padded, gathered_floats(), 0.0f);
  for (int64_t y = 0; y < sizes_.out_height; ++y)
    std::memcpy(padded + (y + lead) * row + lead * units, dy + y * sizes_.out_width * units,
                static_cast<size_t>(sizes_.out_width * units * kNumberBytes));
  if (sizes_.kernel < stride) std::fill_n(dx, sizes_.image(), 0.0f);  // windows do not read all pixels
  for (const PixelClass& one : classes_) {
    if (one.rows == 0 || one.columns == 0) continue;
    // Of the class's first pixel: the first pixel of y that it takes part in, among those of `padded`.
    const int64_t begin_y = (one.first_y + sizes_.padding - one.kernel_y) / stride + lead;
    const int64_t begin_x = (one.first_x + sizes_.padding - one.kernel_x) / stride + lead;
    for (int64_t channel = 0; channel < sizes_.channels; channel += kPanelColumns) {
      for_each_run(one.height, one.width, [&](WindowRun& run) {
        for (int64_t i = 0; i < run.count; ++i) {
          run.from[i] = (begin_y + run.y[i]) * row + (begin_x + run.x[i]) * units;
          run.to[i] = ((one.first_y + run.y[i] * stride) * sizes_.width + one.first_x + run.x[i] * stride) *
                      sizes_.channels;
        }
        loops().window_product({.rows = run.count,
                                .columns = std::min(kPanelColumns, sizes_.channels - channel),
                                .image = padded,
                                .from = run.from,
                                .window_rows = one.rows,
                                .row_length = one.columns * units,
                                .row_step = row,
                                .chain = units,
                                .panel = panels,
                                .result = dx + channel,
                                .to = run.to,
                                .bias = nullptr});
      });
      panels += one.rows * one.columns * units * kPanelColumns;
    }
  }
}

int64_t Convolution::pixels_at_once() const {
  return std::clamp<int64_t>(kCachedNumbers / (panels_of(sizes_.window()) * kPanelColumns), 1,
                             sizes_.pixels());
}

int64_t Convolution::gathered_panel_floats() const {
  return panels_of(sizes_.channels) * kPanelColumns * sizes_.units * sizes_.kernel * sizes_.kernel;
}

int64_t Convolution::input_thread_floats() const {
  if (gathers_) return gathered_floats();
  return padded_image_floats(sizes_) + whole_line(pixels_at_once() * sizes_.window()) +
         product_bytes(1, pixels_at_once(), sizes_.window(), sizes_.units) / kNumberBytes;
}

int64_t Convolution::input_gradient_bytes() const {
  if (plain_) return plain_->input_gradient_bytes();
  return ((gathers_ ? gathered_panel_floats() : 0) + threads_ * input_thread_floats()) * kNumberBytes;
}

void Convolution::input_gradient(const float* dy, const float* weight, float* dx, float* workspace) const {
  if (plain_) return plain_->input_gradient(dy, weight, dx, workspace);
  float* own = workspace;
  if (gathers_) {
    pack_for_gathering(weight, workspace);
    own += gathered_panel_floats();
  }
  parallel_for(threads_, threads_, [&](int64_t thread) {
    const int64_t end = sizes_.batch * (thread + 1) / threads_;
    for (int64_t image = sizes_.batch * thread / threads_; image < end; ++image) {
      const float* from = dy + image * sizes_.pixels() * sizes_.units;
      float *to = dx + image * sizes_.image(), *memory = own + thread * input_thread_floats();
      gathers_ ? gather_image(from, workspace, to, memory) : scatter_image(from, weight, to, memory);
    }
  });
}

void Convolution::scatter_image(const float* dy, const float* weight, float* dx, float* workspace) const {
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
