#include "base/ensure.h"
#include "device/cuda/kernel.h"
#include "pixels/expand.h"
#include "pixels/formulas.h"

namespace lockstep::pixels {
namespace {

constexpr int kThreads = 256;
static_assert(kThreads == kGrayParts);

/// The mean of the gray of an image whose pixels `pixel_at(y, x, pixel)` gives. All threads of the block get
/// it, and have done what was before.
template <class PixelAt>
__device__ float mean_gray(const Extent& extent, double* parts, const PixelAt& pixel_at) {
  const int thread = static_cast<int>(threadIdx.x);
  double sum = 0;
  for (int64_t i = thread; i < extent.pixels(); i += kGrayParts) {
    float pixel[3];
    pixel_at(static_cast<int32_t>(i / extent.width), static_cast<int32_t>(i % extent.width), pixel);
    sum += gray_term(pixel, extent.channels);
  }
  parts[thread] = sum;
  __syncthreads();
  for (int half = kGrayParts / 2; half > 0; half /= 2) {
    if (thread < half) parts[thread] += parts[thread + half];
    __syncthreads();
  }
  const auto mean = static_cast<float>(parts[0] / static_cast<double>(extent.pixels()));
  __syncthreads();
  return mean;
}

/// Finds the means of contrasts among `count` steps, each of which sees what the steps before it have made.
template <class PixelAfter>
__device__ void find_means(const Extent& extent, Step* steps, int32_t count, double* parts,
                           const PixelAfter& pixel_after_steps) {
  for (int32_t k = 0; k < count; ++k) {
    if (steps[k].kind != StepKind::contrast) continue;
    const float mean = mean_gray(
        extent, parts, [&](int32_t y, int32_t x, float* pixel) { pixel_after_steps(k, y, x, pixel); });
    if (threadIdx.x == 0) steps[k].value[1] = mean;
    __syncthreads();
  }
}

/// A block for each image of each sample.
__global__ void __launch_bounds__(kThreads) image_means_kernel(PackedLayout layout, std::byte* samples) {
  __shared__ double parts[kGrayParts];
  const int64_t sample = blockIdx.x / layout.images();
  const PackedSample packed = layout.parts(samples + sample * layout.sample_bytes());
  const bool is_partner = blockIdx.x % layout.images() != 0;
  if (is_partner && packed.mixing->kind == StepKind::none) return;  // there is none
  const uint8_t* image = is_partner ? packed.partner : packed.image;
  Step* steps = is_partner ? packed.partner_steps : packed.steps;
  find_means(layout.image, steps, layout.steps, parts,
             [&](int32_t count, int32_t y, int32_t x, float* pixel) {
               pixel_after(image, layout.image, steps, count, y, x, pixel);
             });
}

/// A block for each sample.
__global__ void __launch_bounds__(kThreads) mixed_means_kernel(PackedLayout layout, std::byte* samples) {
  __shared__ double parts[kGrayParts];
  const PackedSample packed = layout.parts(samples + int64_t{blockIdx.x} * layout.sample_bytes());
  find_means(layout.image, packed.after, layout.after, parts,
             [&](int32_t count, int32_t y, int32_t x, float* pixel) {
               packed_pixel(layout, packed, count, y, x, pixel);
             });
}

/// A thread for each pixel; blocks of a column of the grid take a sample, and those behind it.
template <class T>
__global__ void __launch_bounds__(kThreads)
    expand_kernel(PackedLayout layout, std::byte* samples, int64_t count, T* images) {
  const Extent& extent = layout.image;
  const int64_t index = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (index >= extent.pixels()) return;
  const auto y = static_cast<int32_t>(index / extent.width), x = static_cast<int32_t>(index % extent.width);
  for (int64_t sample = blockIdx.y; sample < count; sample += gridDim.y) {
    const PackedSample packed = layout.parts(samples + sample * layout.sample_bytes());
    float pixel[3];
    packed_pixel(layout, packed, layout.after, y, x, pixel);
    T* to = images + sample * extent.count() + index * extent.channels;
    for (int32_t c = 0; c < extent.channels; ++c) to[c] = T(pixel[c]);
  }
}

template <class T>
void launch_expand(const ExpandCall& call, device::Stream& stream) {
  const dim3 blocks(device::blocks_for(call.layout.image.pixels(), kThreads, 0x7fffffff),
                    device::blocks_for(call.count, 1));
  device::launch(stream, device::Grid{blocks, dim3(kThreads)}, expand_kernel<T>, call.layout, call.samples,
                 call.count, static_cast<T*>(call.images));
}

}  // namespace

void expand_on_gpu(const ExpandCall& call, device::Stream& stream) {
  if (call.count == 0) return;
  ensure(call.layout.image.channels == 1 || call.layout.image.channels == 3, "images have 1 or 3 channels");
  const auto blocks = static_cast<unsigned>(call.count);
  if (call.layout.sums)
    device::launch(stream,
                   device::Grid{dim3(blocks * static_cast<unsigned>(call.layout.images())), dim3(kThreads)},
                   image_means_kernel, call.layout, call.samples);
  if (call.layout.sums_after)
    device::launch(stream, device::Grid{dim3(blocks), dim3(kThreads)}, mixed_means_kernel, call.layout,
                   call.samples);
  switch (call.dtype) {
    case DType::bfloat16:
      return launch_expand<bfloat16>(call, stream);
    case DType::float16:
      return launch_expand<float16>(call, stream);
    default:
      ensure(call.dtype == DType::float32, "images are of a floating-point type");
      return launch_expand<float>(call, stream);
  }
}

}  // namespace lockstep::pixels
