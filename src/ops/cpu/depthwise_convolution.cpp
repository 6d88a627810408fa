#include "ops/cpu/depthwise_convolution.h"

#include <algorithm>
#include <cstring>

#include "base/ensure.h"

namespace lockstep::ops {

DepthwiseConvolution::DepthwiseConvolution(const ConvolutionSizes& sizes, int replicas, int threads)
    : sizes_(sizes),
      replicas_(replicas),
      threads_(threads),
      sharing_(threads, sizes.channels, sizes.kernel * sizes.kernel),
      fold_(replicas, sizes.kernel * sizes.kernel * sizes.channels, threads),
      gathering_(sizes),
      offsets_(WindowPieces(sizes).offsets) {
  ensure(sizes.groups > 1 && sizes.groups == sizes.channels && sizes.groups == sizes.units,
         "a depthwise convolution has several groups of one channel and one unit");
}

DepthwiseConvolution::Shares::Shares(int threads, int64_t channels, int64_t places)
    : channel_parts(std::min<int64_t>(threads, divided_up(channels, kChannelLanes))),
      place_parts(std::min(threads / channel_parts, places)) {}

DepthwiseConvolution::Share DepthwiseConvolution::Shares::share(int64_t index, int64_t channels,
                                                                int64_t places) const {
  return {{channels, kChannelLanes, index / place_parts, channel_parts},
          {places, 1, index % place_parts, place_parts}};
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

int64_t DepthwiseConvolution::share_channels() const {
  const int64_t lanes = divided_up(divided_up(sizes_.channels, kChannelLanes), sharing_.channel_parts);
  return std::min(sizes_.channels, lanes * kChannelLanes);
}

/// An image's part, beyond whose last channel registers read.
int64_t DepthwiseConvolution::share_image_floats() const {
  return whole_line(sizes_.padded_height() * sizes_.padded_width() * share_channels()) + kChannelLanes;
}

int64_t DepthwiseConvolution::share_sums_floats() const {
  return divided_up(places(), sharing_.place_parts) * whole_line(share_channels());
}

/// Of one share: an image's part, sums, and the last row of a gradient, behind which registers read.
int64_t DepthwiseConvolution::share_floats() const {
  return share_image_floats() + share_sums_floats() + whole_line(sizes_.out_width * sizes_.channels) +
         kChannelLanes;
}

int64_t DepthwiseConvolution::weight_gradient_bytes() const {
  return (fold_.floats() + sharing_.count() * share_floats()) * kNumberBytes;
}

void DepthwiseConvolution::weight_gradient(const float* dy, const float* x, float* dweight, bool accumulate,
                                           float* workspace) const {
  const int64_t each = sizes_.batch / replicas_;
  fold_.run(dweight, accumulate, workspace, [&](int replica, float* to) {
    add_images(replica * each, each, dy, x, to, accumulate, workspace + fold_.floats());
  });
}

/// Threads share channels, and places of the kernel if these are too few, since chains run over all images.
void DepthwiseConvolution::add_images(int64_t first, int64_t count, const float* dy, const float* x,
                                      float* dweight, bool accumulate, float* workspace) const {
  parallel_for(threads_, sharing_.count(), [&](int64_t i) {
    const Share share = sharing_.share(i, sizes_.channels, places());
    const int64_t channels = share.channels.end - share.channels.begin, step = whole_line(channels);
    ConvolutionSizes padded_sizes = sizes_;
    padded_sizes.channels = channels;
    const std::vector<int64_t> offsets = WindowPieces(padded_sizes).offsets;
    float* padded = workspace + i * share_floats();
    float* sums = padded + share_image_floats();
    const auto for_sums = [&](const auto& work) {
      for (int64_t place = share.places.begin; place < share.places.end; ++place)
        for (int64_t channel = 0; channel < channels; ++channel)
          work(sums[(place - share.places.begin) * step + channel],
               dweight[(share.channels.begin + channel) * places() + place]);
    };
    for_sums([&](float& sum, float result) { sum = accumulate ? result : 0.0f; });
    for (int64_t image = first; image < first + count; ++image) {
      pad_channels(share.channels, x + image * sizes_.image(), padded);
      fold_image(share, dy + image * sizes_.pixels() * sizes_.channels, padded, offsets.data(), sums);
    }
    for_sums([](float sum, float& result) { result = sum; });
  });
}

/// Those channels alone, side by side.
void DepthwiseConvolution::pad_channels(const Part& channels, const float* x, float* padded) const {
  const int64_t count = channels.end - channels.begin;
  if (count == sizes_.channels) return pad_image(sizes_, x, padded);
  const int64_t row = sizes_.padded_width() * count;
  if (sizes_.padding > 0) std::fill_n(padded, sizes_.padded_height() * row, 0.0f);
  const float* from = x + channels.begin;
  for (int64_t y = 0; y < sizes_.height; ++y) {
    float* to = padded + (y + sizes_.padding) * row + sizes_.padding * count;
    for (int64_t pixel = 0; pixel < sizes_.width; ++pixel, from += sizes_.channels, to += count)
      std::memcpy(to, from, static_cast<size_t>(count * kNumberBytes));
  }
}

void DepthwiseConvolution::fold_image(const Share& share, const float* dy, const float* padded,
                                      const int64_t* offsets, float* sums) const {
  const int64_t numbers = sizes_.out_width * sizes_.channels;
  const int64_t channels = share.channels.end - share.channels.begin;
  float* last_row = sums + share_sums_floats();
  for (int64_t row = 0; row < sizes_.out_height; ++row) {
    const float* gradient = dy + row * numbers;
    if (row + 1 == sizes_.out_height) gradient = std::copy_n(gradient, numbers, last_row) - numbers;
    loops().channel_fold(
        {.windows = {.pixels = sizes_.out_width,
                     .channels = channels,
                     .places = share.places.end - share.places.begin,
                     .image = padded + row * sizes_.stride * sizes_.padded_width() * channels,
                     .image_step = sizes_.stride * channels,
                     .offsets = offsets + share.places.begin},
         .gradient = gradient + share.channels.begin,
         .gradient_step = sizes_.channels,
         .sums = sums,
         .sums_step = whole_line(channels)});
  }
}

}  // namespace lockstep::ops
