#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "ops/cpu/blocked_product.h"
#include "ops/cpu/convolution_sizes.h"
#include "ops/cpu/parallel.h"

namespace lockstep::ops {

// What the products of a convolution (convolution.h) read: padded images, and windows in them.

inline constexpr int64_t kNumberBytes = sizeof(float);

inline int64_t whole_line(int64_t numbers) { return divided_up(numbers, 16) * 16; }

/// An image with its padding, channels innermost: rows that windows read are side by side.
inline int64_t padded_image_floats(const ConvolutionSizes& sizes) {
  return whole_line(sizes.padded_height() * sizes.padded_row());
}
void pad_image(const ConvolutionSizes& sizes, const float* x, float* padded);

/// A window of one group, as pieces of numbers that lie side by side in a padded image: one for each row of
/// the kernel, or for each place of it, if channels of other groups or pixels between are not the window's.
struct WindowPieces {
  int64_t length;                ///< of each
  std::vector<int64_t> offsets;  ///< from the window's first number, in the order of the kernel

  explicit WindowPieces(const ConvolutionSizes& sizes);
  int64_t count() const { return static_cast<int64_t>(offsets.size()); }
};

/// So many pixels that their windows stay in the second cache.
int64_t pixels_at_once(const ConvolutionSizes& sizes);

/// Numbers of one window's row and of the next: sixteen more than panels take, which copies may overwrite.
inline int64_t window_stride(const ConvolutionSizes& sizes) {
  return panels_of(sizes.window()) * kPanelColumns + 16;
}

/// The windows of `count` pixels from `first` on, a row of window_stride() for each. `padded`: begins with
/// the group's first channel. Reads up to 15 numbers behind a window's last one.
void copy_windows(const ConvolutionSizes& sizes, const WindowPieces& pieces, const float* padded,
                  int64_t first, int64_t count, float* windows);

/// Some pixels, image after image and row after row, and where their windows and results are.
struct WindowRun {
  static constexpr int64_t kMost = 48;
  int64_t count = 0;
  int64_t image[kMost], y[kMost], x[kMost], from[kMost], to[kMost];
};

/// work(run) for all pixels of `images` images of `height` rows of `width` pixels.
template <class Work>
void for_each_run(int64_t images, int64_t height, int64_t width, const Work& work) {
  WindowRun run;
  int64_t left = images * height * width;
  for (int64_t image = 0; image < images; ++image)
    for (int64_t y = 0; y < height; ++y)
      for (int64_t x = 0; x < width; ++x) {
        run.image[run.count] = image;
        run.y[run.count] = y;
        run.x[run.count++] = x;
        --left;
        if (run.count < WindowRun::kMost && left > 0) continue;
        work(run);
        run.count = 0;
      }
}

/// Images of so few pixels that several make up a run.
inline int64_t images_of_run(int64_t pixels, int64_t batch) {
  return std::clamp<int64_t>(WindowRun::kMost / pixels, 1, batch);
}

/// work(first image, how many, thread) for `at_once` images at a time, which threads share.
template <class Work>
void for_images(int threads, int64_t batch, int64_t at_once, const Work& work) {
  parallel_for(threads, threads, [&](int64_t thread) {
    const int64_t end = batch * (thread + 1) / threads;
    for (int64_t first = batch * thread / threads; first < end; first += at_once)
      work(first, std::min(at_once, end - first), thread);
  });
}

}  // namespace lockstep::ops
