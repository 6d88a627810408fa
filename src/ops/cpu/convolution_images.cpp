#include "ops/cpu/convolution_images.h"

#include <cstring>

namespace lockstep::ops {
namespace {

/// What is made of x at once is to stay in the second cache: half a megabyte, in numbers.
constexpr int64_t kCachedNumbers = 131072;

/// Sixteen numbers at a time. What is too many is overwritten by the window's next piece, or lies behind the
/// window, where nothing reads it.
template <bool kShort>
void copy_pieces(const float* from, int64_t step, float* to, int64_t stride, int64_t count, int64_t length) {
  for (int64_t i = 0; i < count; ++i, from += step, to += stride)
    if constexpr (kShort)
      std::memcpy(to, from, 64);
    else
      for (int64_t n = 0; n < length; n += 16) std::memcpy(to + n, from + n, 64);
}

}  // namespace

WindowPieces::WindowPieces(const ConvolutionSizes& sizes) : length(sizes.group_channels()) {
  const bool whole_rows = sizes.groups == 1 && sizes.dilation == 1;
  if (whole_rows) length *= sizes.kernel;
  for (int64_t y = 0; y < sizes.kernel; ++y)
    for (int64_t x = 0; x < (whole_rows ? 1 : sizes.kernel); ++x)
      offsets.push_back(sizes.dilation * (y * sizes.padded_row() + x * sizes.channels));
}

void pad_image(const ConvolutionSizes& sizes, const float* x, float* padded) {
  if (sizes.padding > 0) std::fill_n(padded, sizes.padded_height() * sizes.padded_row(), 0.0f);
  fill_image(sizes, x, padded);
}

void fill_image(const ConvolutionSizes& sizes, const float* x, float* padded) {
  const int64_t row = sizes.padded_row(), own = sizes.width * sizes.channels;
  for (int64_t y = 0; y < sizes.height; ++y)
    std::memcpy(padded + (y + sizes.padding) * row + sizes.padding * sizes.channels, x + y * own,
                static_cast<size_t>(own * kNumberBytes));
}

int64_t pixels_at_once(const ConvolutionSizes& sizes) {
  return std::clamp<int64_t>(kCachedNumbers / (panels_of(sizes.window()) * kPanelColumns), 1, sizes.pixels());
}

void copy_windows(const ConvolutionSizes& sizes, const WindowPieces& pieces, const float* padded,
                  int64_t first, int64_t count, float* windows) {
  const int64_t row = sizes.padded_row(), length = pieces.length;
  const int64_t step = sizes.stride * sizes.channels, stride = window_stride(sizes);
  for (int64_t done = 0; done < count;) {
    const int64_t y = (first + done) / sizes.out_width, x = (first + done) % sizes.out_width;
    const int64_t run = std::min(count - done, sizes.out_width - x);
    float* to = windows + done * stride;
    for (const int64_t offset : pieces.offsets) {
      const float* from = padded + y * sizes.stride * row + x * step + offset;
      length <= 16 ? copy_pieces<true>(from, step, to, stride, run, length)
                   : copy_pieces<false>(from, step, to, stride, run, length);
      to += length;
    }
    done += run;
  }
}

}  // namespace lockstep::ops
