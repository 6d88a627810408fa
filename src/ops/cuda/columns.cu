#include <algorithm>

#include "device/cuda/kernel.h"
#include "ops/cuda/columns.h"
#include "ops/cuda/divisor.h"

namespace lockstep::ops {
namespace {

constexpr unsigned kThreads = 256;
constexpr int64_t kMostBlocks = 132 * 64;  // of an H200's multiprocessors, several times over

/// Blocks take places (windows or pixels) of an image along x and images along y, and stride over the rest. A
/// block's threads lie along the `length` packs of a place, and over several places if those are few.
struct PlaceGrid {
  dim3 blocks, threads;

  PlaceGrid(int64_t places, int64_t length, int64_t images) {
    unsigned along = 8;
    while (along < kThreads && along < length) along *= 2;
    threads = dim3(along, kThreads / along);
    blocks.x = device::blocks_for(places, threads.y, kMostBlocks);
    blocks.y = device::blocks_for(images, 1, std::max<int64_t>(1, kMostBlocks / blocks.x));
  }
};

/// Where packs of a pixel's channels lie in columns of several groups.
struct GroupedPacks {
  unsigned packs;      ///< of a group
  int64_t group_size;  ///< packs of a group's columns
  Divisor by_packs;

  __device__ int64_t at(int64_t place, unsigned channel) const {
    const unsigned group = by_packs.quotient(channel);
    return group * group_size + place * packs + by_packs.remainder(channel, group);
  }
};

/// Writes the columns once; a pixel is read for each window over it, all but once from a cache.
template <class T, int N, bool kGrouped>
__global__ void images_to_columns_kernel(const T* images, Windows s, Divisor by_packs, Divisor by_kernel,
                                         Divisor by_out_width, GroupedPacks grouped, int64_t count,
                                         T* columns) {
  const unsigned packs = static_cast<unsigned>(s.channels) / N, kernel = static_cast<unsigned>(s.kernel);
  const unsigned length = kernel * kernel * packs;
  const unsigned per_image = static_cast<unsigned>(s.out_height) * static_cast<unsigned>(s.out_width);
  for (int64_t image = blockIdx.y; image < count; image += gridDim.y) {
    const auto* from =
        reinterpret_cast<const device::Pack<T, N>*>(images) + image * s.height * s.width * packs;
    for (unsigned window = blockIdx.x * blockDim.y + threadIdx.y; window < per_image;
         window += gridDim.x * blockDim.y) {
      const unsigned out_y = by_out_width.quotient(window), out_x = by_out_width.remainder(window, out_y);
      const int top = static_cast<int>(out_y) * s.stride - s.padding;
      const int left = static_cast<int>(out_x) * s.stride - s.padding;
      auto* to = reinterpret_cast<device::Pack<T, N>*>(columns);
      if (!kGrouped) to += (image * per_image + window) * length;
      const int64_t first_place = (image * per_image + window) * kernel * kernel;
      for (unsigned i = threadIdx.x; i < length; i += blockDim.x) {
        const unsigned element = by_packs.quotient(i), channel = by_packs.remainder(i, element);
        const unsigned down = by_kernel.quotient(element), right = by_kernel.remainder(element, down);
        const int y = top + static_cast<int>(down) * s.dilation;
        const int x = left + static_cast<int>(right) * s.dilation;
        device::Pack<T, N> pixel{};
        if (y >= 0 && y < s.height && x >= 0 && x < s.width)
          pixel = from[(int64_t{y} * s.width + x) * packs + channel];
        to[kGrouped ? grouped.at(first_place + element, channel) : i] = pixel;
      }
    }
  }
}

/// Rows of the kernel that hold a pixel, each in the window that it belongs to; columns likewise. With a
/// dilation of 1 they are a stride apart; otherwise all are tried, of which few kernels have many.
struct Places {
  int first, step, dilation, stride;
  unsigned pixel;  ///< with the padding

  __device__ Places(unsigned pixel_at, const Windows& s, Divisor by_stride)
      : first(s.dilation == 1 ? static_cast<int>(by_stride.remainder(pixel_at, by_stride.quotient(pixel_at)))
                              : 0),
        step(s.dilation == 1 ? s.stride : 1),
        dilation(s.dilation),
        stride(s.stride),
        pixel(pixel_at) {}

  /// The window that holds the pixel at that place; -1 if none does.
  __device__ int window(int place, int windows, Divisor by_stride) const {
    const int64_t begin = int64_t{pixel} - int64_t{place} * dilation;
    if (begin < 0) return -1;
    const unsigned at = by_stride.quotient(static_cast<unsigned>(begin));
    const bool belongs = by_stride.remainder(static_cast<unsigned>(begin), at) == 0;
    return belongs && static_cast<int>(at) < windows ? static_cast<int>(at) : -1;
  }
};

/// Reads the columns once and writes the images once: every element of a column belongs to one pixel.
template <class T, int N, bool kGrouped>
__global__ void columns_to_images_kernel(const float* columns, Windows s, Divisor by_width, Divisor by_stride,
                                         GroupedPacks grouped, int64_t count, T* images) {
  const unsigned packs = static_cast<unsigned>(s.channels) / N;
  const unsigned per_image = static_cast<unsigned>(s.height) * static_cast<unsigned>(s.width);
  for (int64_t image = blockIdx.y; image < count; image += gridDim.y) {
    const auto* from = reinterpret_cast<const device::Pack<float, N>*>(columns);
    const int64_t first_window = image * s.out_height * s.out_width;
    for (unsigned pixel = blockIdx.x * blockDim.y + threadIdx.y; pixel < per_image;
         pixel += gridDim.x * blockDim.y) {
      const unsigned above = by_width.quotient(pixel), padding = static_cast<unsigned>(s.padding);
      const unsigned y = above + padding, x = by_width.remainder(pixel, above) + padding;
      const Places rows(y, s, by_stride), columns_of(x, s, by_stride);
      for (unsigned channel = threadIdx.x; channel < packs; channel += blockDim.x) {
        float sum[N] = {};
        for (int i = rows.first; i < s.kernel; i += rows.step) {
          const int row = rows.window(i, s.out_height, by_stride);
          if (row < 0) continue;
          for (int j = columns_of.first; j < s.kernel; j += columns_of.step) {
            const int column = columns_of.window(j, s.out_width, by_stride);
            if (column < 0) continue;
            const int64_t window = first_window + int64_t{row} * s.out_width + column;
            const int64_t place = (window * s.kernel + i) * s.kernel + j;
            const device::Pack<float, N> part =
                from[kGrouped ? grouped.at(place, channel) : place * packs + channel];
            for (int n = 0; n < N; ++n) sum[n] += part.value[n];
          }
        }
        device::Pack<T, N> result;
        for (int n = 0; n < N; ++n) result.value[n] = T(sum[n]);
        reinterpret_cast<device::Pack<T, N>*>(images)[(image * per_image + pixel) * packs + channel] = result;
      }
    }
  }
}

Divisor divisor_of(int value) { return Divisor(static_cast<uint32_t>(value)); }

GroupedPacks grouped_packs(const Windows& windows, int64_t count, int pack) {
  return {.packs = static_cast<unsigned>(windows.group_channels() / pack),
          .group_size = count * windows.per_image() * windows.row_length() / pack,
          .by_packs = divisor_of(windows.group_channels() / pack)};
}

template <class T, int N>
void launch_to_columns(const Windows& windows, const void* images, int64_t count, void* columns,
                       device::Stream& stream) {
  if constexpr (N > 1)
    if (windows.group_channels() % N != 0)
      return launch_to_columns<T, N / 2>(windows, images, count, columns, stream);
  const PlaceGrid grid(windows.per_image(), windows.groups * windows.row_length() / N, count);
  device::launch(
      stream, {.blocks = grid.blocks, .threads = grid.threads},
      windows.groups > 1 ? images_to_columns_kernel<T, N, true> : images_to_columns_kernel<T, N, false>,
      static_cast<const T*>(images), windows, divisor_of(windows.channels / N), divisor_of(windows.kernel),
      divisor_of(windows.out_width), grouped_packs(windows, count, N), count, static_cast<T*>(columns));
}

template <class T, int N>
void launch_to_images(const Windows& windows, const float* columns, int64_t count, void* images,
                      device::Stream& stream) {
  if constexpr (N > 1)
    if (windows.group_channels() % N != 0)
      return launch_to_images<T, N / 2>(windows, columns, count, images, stream);
  const PlaceGrid grid(int64_t{windows.height} * windows.width, windows.channels / N, count);
  device::launch(
      stream, {.blocks = grid.blocks, .threads = grid.threads},
      windows.groups > 1 ? columns_to_images_kernel<T, N, true> : columns_to_images_kernel<T, N, false>,
      columns, windows, divisor_of(windows.width), divisor_of(windows.stride),
      grouped_packs(windows, count, N), count, static_cast<T*>(images));
}

}  // namespace

int64_t chunk_size(int64_t batch, int64_t image_bytes, int64_t budget) {
  const int64_t most = std::max<int64_t>(1, budget / image_bytes), chunks = (batch + most - 1) / most;
  return (batch + chunks - 1) / chunks;
}

void images_to_columns(const Windows& windows, DType dtype, const void* images, int64_t count, void* columns,
                       device::Stream& stream) {
  // What matters of an element is its size: nothing is computed.
  if (size_of(dtype) == 2)
    launch_to_columns<uint16_t, 8>(windows, images, count, columns, stream);
  else
    launch_to_columns<float, 4>(windows, images, count, columns, stream);
}

void columns_to_images(const Windows& windows, const float* columns, int64_t count, DType dtype, void* images,
                       device::Stream& stream) {
  if (dtype == DType::bfloat16)
    launch_to_images<bfloat16, 4>(windows, columns, count, images, stream);
  else if (dtype == DType::float16)
    launch_to_images<float16, 4>(windows, columns, count, images, stream);
  else
    launch_to_images<float, 4>(windows, columns, count, images, stream);
}

}  // namespace lockstep::ops
