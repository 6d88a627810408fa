#include "ops/cpu/depthwise_convolution.h"

#include <algorithm>

#include "base/ensure.h"
#include "ops/cpu/replica_fold.h"

namespace lockstep::ops {

DepthwiseConvolution::DepthwiseConvolution(const ConvolutionSizes& sizes, int replicas, int threads)
    : sizes_(sizes),
      replicas_(replicas),
      threads_(threads),
      gathering_(sizes),
      offsets_(WindowPieces(sizes).offsets) {
  ensure(sizes.groups > 1 && sizes.groups == sizes.channels && sizes.groups == sizes.units,
         "a depthwise convolution has several groups of one channel and one unit");
}

int64_t DepthwiseConvolution::lanes() const { return whole_line(sizes_.channels); }

/// Registers are read beyond the last channel.
int64_t DepthwiseConvolution::padded_image_floats() const {
  return ops::padded_image_floats(sizes_) + kChannelLanes;
}
int64_t DepthwiseConvolution::padded_gradient_floats() const {
  return gathering_.padded_floats() + kChannelLanes;
}

int64_t DepthwiseConvolution::forward_bytes() const {
  return (packed_floats() + lanes() + threads_ * padded_image_floats()) * kNumberBytes;
}

int64_t DepthwiseConvolution::input_gradient_bytes() const {
  return (packed_floats() + threads_ * padded_gradient_floats()) * kNumberBytes;
}

/// [places][lanes], in the kernel's order, or of the places that a class of pixels takes part in, in the
/// order of its pixels of y.
void DepthwiseConvolution::pack(const float* weight, const PixelClass* one, float* packed) const {
  const int64_t step = gathering_.place_step();
  const auto add = [&](int64_t y, int64_t x) {
    for (int64_t channel = 0; channel < lanes(); ++channel)
      *packed++ = channel < sizes_.channels ? weight[channel * places() + y * sizes_.kernel + x] : 0.0f;
  };
  for (int64_t y = 0; y < (one ? one->rows : sizes_.kernel); ++y)
    for (int64_t x = 0; x < (one ? one->columns : sizes_.kernel); ++x)
      one ? add(one->kernel_y - y * step, one->kernel_x - x * step) : add(y, x);
}

void DepthwiseConvolution::forward(const float* x, const float* weight, const float* bias, float* y,
                                   float* workspace) const {
  float *biases = workspace + packed_floats(), *own = biases + lanes();
  pack(weight, nullptr, workspace);
  std::fill_n(biases, lanes(), 0.0f);
  if (bias != nullptr) std::copy_n(bias, sizes_.channels, biases);
  for_images(threads_, sizes_.batch, 1, [&](int64_t image, int64_t, int64_t thread) {
    float* padded = own + thread * padded_image_floats();
    pad_image(sizes_, x + image * sizes_.image(), padded);
    for (int64_t row = 0; row < sizes_.out_height; ++row)
      loops().channel_product(
          {.windows = {.pixels = sizes_.out_width,
                       .channels = sizes_.channels,
                       .places = places(),
                       .image = padded + row * sizes_.stride * sizes_.padded_row(),
                       .image_step = sizes_.stride * sizes_.channels,
                       .offsets = offsets_.data()},
           .weight = workspace,
           .weight_step = lanes(),
           .is_chain = true,
           .result = y + (image * sizes_.pixels() + row * sizes_.out_width) * sizes_.channels,
           .result_step = sizes_.channels,
           .bias = bias != nullptr ? biases : nullptr});
  });
}

void DepthwiseConvolution::input_gradient(const float* dy, const float* weight, float* dx,
                                          float* workspace) const {
  float *own = workspace + packed_floats(), *packed = workspace;
  for (const PixelClass& one : gathering_.classes()) {
    pack(weight, &one, packed);
    packed += one.rows * one.columns * lanes();
  }
  for_images(threads_, sizes_.batch, 1, [&](int64_t image, int64_t, int64_t thread) {
    float *padded = own + thread * padded_gradient_floats(), *to = dx + image * sizes_.image();
    gathering_.pad(1, dy + image * sizes_.pixels() * sizes_.units, padded);
    if (!gathering_.covers_all_pixels()) std::fill_n(to, sizes_.image(), 0.0f);
    const float* of_class = workspace;
    for (const PixelClass& one : gathering_.classes()) {
      gather(one, padded, of_class, to);
      of_class += one.rows * one.columns * lanes();
    }
  });
}

void DepthwiseConvolution::gather(const PixelClass& one, const float* padded, const float* packed,
                                  float* dx) const {
  const int64_t row = gathering_.padded_row(), channels = sizes_.channels, stride = sizes_.stride;
  std::vector<int64_t> offsets;
  for (int64_t y = 0; y < one.rows; ++y)
    for (int64_t x = 0; x < one.columns; ++x)
      offsets.push_back(gathering_.pixel_step() * (y * row + x * channels));
  for (int64_t y = 0; y < one.height; ++y)
    loops().channel_product(
        {.windows = {.pixels = one.width,
                     .channels = channels,
                     .places = one.rows * one.columns,
                     .image = padded + (one.begin_y + y) * row + one.begin_x * channels,
                     .image_step = channels,
                     .offsets = offsets.data()},
         .weight = packed,
         .weight_step = lanes(),
         .is_chain = false,
         .result = dx + ((one.first_y + y * stride) * sizes_.width + one.first_x) * channels,
         .result_step = stride * channels,
         .bias = nullptr});
}

/// Of one thread: sums of its channels, and the last row of a gradient, behind which registers read.
int64_t DepthwiseConvolution::sums_floats() const {
  return packed_floats() + whole_line(sizes_.out_width * sizes_.channels) + kChannelLanes;
}

int64_t DepthwiseConvolution::weight_gradient_bytes() const {
  return ((fold_slots(replicas_) - 1) * whole_line(places() * sizes_.channels) +
          threads_ * (padded_image_floats() + sums_floats())) *
         kNumberBytes;
}

void DepthwiseConvolution::weight_gradient(const float* dy, const float* x, float* dweight, bool accumulate,
                                           float* workspace) const {
  ensure(!accumulate || replicas_ == 1, "gradients of several replicas are complete");
  const int64_t numbers = places() * sizes_.channels, each = sizes_.batch / replicas_;
  float* own = workspace + (fold_slots(replicas_) - 1) * whole_line(numbers);
  const auto place = [&](int slot) {
    return slot == 0 ? dweight : workspace + (slot - 1) * whole_line(numbers);
  };
  const auto make = [&](int replica, int slot) {
    add_images(replica * each, each, dy, x, place(slot), accumulate, own);
  };
  const auto add = [&](int slot) { add_numbers(place(slot), place(slot + 1), numbers, threads_); };
  fold_replicas(replicas_, make, add);
}

/// Threads share channels, since chains run over all images.
void DepthwiseConvolution::add_images(int64_t first, int64_t count, const float* dy, const float* x,
                                      float* dweight, bool accumulate, float* workspace) const {
  parallel_for(threads_, threads_, [&](int64_t thread) {
    const Part own(sizes_.channels, kChannelLanes, thread, threads_);
    if (own.begin == own.end) return;
    float* padded = workspace + thread * (padded_image_floats() + sums_floats());
    float* sums = padded + padded_image_floats();
    for (int64_t place = 0; place < places(); ++place)
      for (int64_t channel = own.begin; channel < own.end; ++channel)
        sums[place * lanes() + channel] = accumulate ? dweight[channel * places() + place] : 0.0f;
    for (int64_t image = first; image < first + count; ++image) {
      pad_image(sizes_, x + image * sizes_.image(), padded);
      fold_image(own.begin, own.end - own.begin, dy + image * sizes_.pixels() * sizes_.channels, padded,
                 sums);
    }
    for (int64_t place = 0; place < places(); ++place)
      for (int64_t channel = own.begin; channel < own.end; ++channel)
        dweight[channel * places() + place] = sums[place * lanes() + channel];
  });
}

void DepthwiseConvolution::fold_image(int64_t first, int64_t count, const float* dy, const float* padded,
                                      float* sums) const {
  const int64_t numbers = sizes_.out_width * sizes_.channels;
  float* last_row = sums + packed_floats();
  for (int64_t row = 0; row < sizes_.out_height; ++row) {
    const float* gradient = dy + row * numbers;
    if (row + 1 == sizes_.out_height) gradient = std::copy_n(gradient, numbers, last_row) - numbers;
    loops().channel_fold({.windows = {.pixels = sizes_.out_width,
                                      .channels = count,
                                      .places = places(),
                                      .image = padded + row * sizes_.stride * sizes_.padded_row() + first,
                                      .image_step = sizes_.stride * sizes_.channels,
                                      .offsets = offsets_.data()},
                          .gradient = gradient + first,
                          .gradient_step = sizes_.channels,
                          .sums = sums + first,
                          .sums_step = lanes()});
  }
}

}  // namespace lockstep::ops
