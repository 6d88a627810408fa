#include <algorithm>

#include "device/cuda/kernel.h"
#include "ops/cuda/columns.h"

namespace lockstep {
namespace {

constexpr unsigned kThreads = 256;
constexpr int64_t kMostBlocks = 132 * 64;  // of an H200's multiprocessors, several times over

/// A block's threads: along a row of `length` packs, and over several rows where rows are short.
dim3 threads_for(int64_t length) {
  unsigned along = 8;
  while (along < kThreads && along < length) along *= 2;
  return dim3(along, kThreads / along);
}

/// Writes the columns once; a pixel is read for each window over it, all but once from a cache.
template <class T, int N>
__global__ void images_to_columns_kernel(const T* images, Windows s, int64_t rows, T* columns) {
  const unsigned packs = static_cast<unsigned>(s.channels) / N, kernel = static_cast<unsigned>(s.kernel);
  const unsigned length = kernel * kernel * packs;
  const unsigned out_width = static_cast<unsigned>(s.out_width),
                 per_image = static_cast<unsigned>(s.out_height) * out_width;
  for (int64_t row = int64_t{blockIdx.x} * blockDim.y + threadIdx.y; row < rows;
       row += int64_t{gridDim.x} * blockDim.y) {
    const int64_t image = row / per_image;
    const unsigned window = static_cast<unsigned>(row - image * per_image);
    const int top = static_cast<int>(window / out_width) * s.stride - s.padding;
    const int left = static_cast<int>(window % out_width) * s.stride - s.padding;
    const auto* from = reinterpret_cast<const Pack<T, N>*>(images) + image * s.height * s.width * packs;
    auto* to = reinterpret_cast<Pack<T, N>*>(columns) + row * length;
    for (unsigned i = threadIdx.x; i < length; i += blockDim.x) {
      const unsigned element = i / packs, channel = i % packs;
      const int y = top + static_cast<int>(element / kernel), x = left + static_cast<int>(element % kernel);
      Pack<T, N> pixel{};
      if (y >= 0 && y < s.height && x >= 0 && x < s.width)
        pixel = from[(int64_t{y} * s.width + x) * packs + channel];
      to[i] = pixel;
    }
  }
}

/// Reads the columns once and writes the images once: every element of a column belongs to one pixel.
template <class T, int N>
__global__ void columns_to_images_kernel(const float* columns, Windows s, int64_t pixels, T* images) {
  const unsigned packs = static_cast<unsigned>(s.channels) / N;
  const unsigned width = static_cast<unsigned>(s.width), per_image = static_cast<unsigned>(s.height) * width;
  for (int64_t pixel = int64_t{blockIdx.x} * blockDim.y + threadIdx.y; pixel < pixels;
       pixel += int64_t{gridDim.x} * blockDim.y) {
    const int64_t image = pixel / per_image;
    const unsigned place = static_cast<unsigned>(pixel - image * per_image);
    const int y = static_cast<int>(place / width) + s.padding,
              x = static_cast<int>(place % width) + s.padding;
    const auto* from = reinterpret_cast<const Pack<float, N>*>(columns) +
                       image * s.out_height * s.out_width * s.kernel * s.kernel * packs;
    for (unsigned channel = threadIdx.x; channel < packs; channel += blockDim.x) {
      float sum[N] = {};
      // Windows over the pixel begin a multiple of the stride away from it.
      for (int i = y % s.stride; i < s.kernel && i <= y; i += s.stride) {
        const int row = (y - i) / s.stride;
        if (row >= s.out_height) continue;
        for (int j = x % s.stride; j < s.kernel && j <= x; j += s.stride) {
          const int column = (x - j) / s.stride;
          if (column >= s.out_width) continue;
          const int64_t window = int64_t{row} * s.out_width + column;
          const Pack<float, N> part = from[((window * s.kernel + i) * s.kernel + j) * packs + channel];
          for (int n = 0; n < N; ++n) sum[n] += part.value[n];
        }
      }
      Pack<T, N> result;
      for (int n = 0; n < N; ++n) result.value[n] = T(sum[n]);
      reinterpret_cast<Pack<T, N>*>(images)[pixel * packs + channel] = result;
    }
  }
}

template <class T, int N>
void launch_to_columns(const Windows& windows, const void* images, int64_t count, void* columns,
                       Stream& stream) {
  if constexpr (N > 1)
    if (windows.channels % N != 0)
      return launch_to_columns<T, N / 2>(windows, images, count, columns, stream);
  const int64_t rows = count * windows.per_image();
  const dim3 threads = threads_for(windows.row_length() / N);
  launch(stream, {.blocks = blocks_for(rows, threads.y, kMostBlocks), .threads = threads},
         images_to_columns_kernel<T, N>, static_cast<const T*>(images), windows, rows,
         static_cast<T*>(columns));
}

template <class T, int N>
void launch_to_images(const Windows& windows, const float* columns, int64_t count, void* images,
                      Stream& stream) {
  if constexpr (N > 1)
    if (windows.channels % N != 0) return launch_to_images<T, N / 2>(windows, columns, count, images, stream);
  const int64_t pixels = count * windows.height * windows.width;
  const dim3 threads = threads_for(windows.channels / N);
  launch(stream, {.blocks = blocks_for(pixels, threads.y, kMostBlocks), .threads = threads},
         columns_to_images_kernel<T, N>, columns, windows, pixels, static_cast<T*>(images));
}

}  // namespace

int64_t chunk_size(int64_t batch, int64_t image_bytes, int64_t budget) {
  const int64_t most = std::max<int64_t>(1, budget / image_bytes), chunks = (batch + most - 1) / most;
  return (batch + chunks - 1) / chunks;
}

void images_to_columns(const Windows& windows, DType dtype, const void* images, int64_t count, void* columns,
                       Stream& stream) {
  // What matters of an element is its size: nothing is computed.
  if (size_of(dtype) == 2)
    launch_to_columns<uint16_t, 8>(windows, images, count, columns, stream);
  else
    launch_to_columns<float, 4>(windows, images, count, columns, stream);
}

void columns_to_images(const Windows& windows, const float* columns, int64_t count, DType dtype, void* images,
                       Stream& stream) {
  if (dtype == DType::bfloat16)
    launch_to_images<bfloat16, 4>(windows, columns, count, images, stream);
  else if (dtype == DType::float16)
    launch_to_images<float16, 4>(windows, columns, count, images, stream);
  else
    launch_to_images<float, 4>(windows, columns, count, images, stream);
}

}  // namespace lockstep
