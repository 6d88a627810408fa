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
/// Where there are zeros around it already.
void fill_image(const ConvolutionSizes& sizes, const float* x, float* padded);

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

/// Where pixels' windows begin and their results belong: those of the first, and how far from one image, row
/// and pixel it is to the next.
struct WindowGrid {
  struct Place {
    int64_t first, image, row, pixel;
  };
  int64_t height, width;  ///< pixels
  Place from, to;
};

/// Some pixels, image after image and row after row.
struct WindowRun {
  static constexpr int64_t kMost = 48;
  int64_t count = 0;
  int64_t from[kMost], to[kMost];
};

/// work(run) for all pixels of `images` images.
template <class Work>
void for_each_run(int64_t images, const WindowGrid& grid, const Work& work) {
  WindowRun run;
  for (int64_t image = 0; image < images; ++image)
    for (int64_t y = 0; y < grid.height; ++y) {
      int64_t from = grid.from.first + image * grid.from.image + y * grid.from.row;
      int64_t to = grid.to.first + image * grid.to.image + y * grid.to.row;
      for (int64_t x = 0; x < grid.width; ++x, from += grid.from.pixel, to += grid.to.pixel) {
        run.from[run.count] = from;
        run.to[run.count++] = to;
        if (run.count < WindowRun::kMost) continue;
        work(run);
        run.count = 0;
      }
    }
  if (run.count > 0) work(run);
}

/// So many images that a part of a panel, once it is in a cache, meets many pixels, and that the images are a
/// megabyte at most.
inline int64_t images_at_once_of(int64_t pixels, int64_t image_floats, int64_t batch) {
  constexpr int64_t kPixels = 192, kFloats = 262144;
  return std::clamp<int64_t>(std::min(kPixels / pixels, kFloats / image_floats), 1, batch);
}

/// work(first piece, count) for pieces of windows whose part of a panel stays in the second cache.
template <class Work>
void for_pieces(int64_t pieces, int64_t length, const Work& work) {
  constexpr int64_t kFloats = 81920;
  const int64_t at_once = std::max<int64_t>(1, kFloats / (length * kPanelColumns));
  for (int64_t first = 0; first < pieces; first += at_once) work(first, std::min(at_once, pieces - first));
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
