#pragma once

#include <cmath>
#include <memory>
#include <vector>

#include "base/half.h"
#include "device/device.h"
#include "lockstep/tensor.h"

namespace lockstep::testing {

/// The GPU that the program is linked to, with a stream, for tests of what GPU kernels are made of.
struct TestedGpu {
  std::unique_ptr<device::Device> device = device::make_cuda_device(0);
  std::unique_ptr<device::Stream> stream = device->create_stream("compute");

  /// Values rounded to `dtype`, one of the floating-point types of kernels.
  device::Buffer upload(const std::vector<float>& values, DType dtype = DType::float32) const {
    if (dtype == DType::bfloat16) return upload_as<bfloat16>(values);
    if (dtype == DType::float16) return upload_as<float16>(values);
    return upload_as<float>(values);
  }
  /// All that the stream was given is done first.
  std::vector<float> download(const device::Buffer& buffer, size_t count,
                              DType dtype = DType::float32) const {
    stream->synchronize();
    if (dtype == DType::bfloat16) return download_as<bfloat16>(buffer, count);
    if (dtype == DType::float16) return download_as<float16>(buffer, count);
    return download_as<float>(buffer, count);
  }

 private:
  template <class T>
  device::Buffer upload_as(const std::vector<float>& values) const {
    const std::vector<T> rounded(values.begin(), values.end());
    device::Buffer buffer = device->allocate(static_cast<int64_t>(rounded.size() * sizeof(T)));
    device->copy_now(buffer.data(), rounded.data(), buffer.size_bytes());
    return buffer;
  }
  template <class T>
  std::vector<float> download_as(const device::Buffer& buffer, size_t count) const {
    std::vector<T> values(count);
    device->copy_now(values.data(), buffer.data(), static_cast<int64_t>(count * sizeof(T)));
    std::vector<float> widened;
    for (const T value : values) widened.push_back(static_cast<float>(value));
    return widened;
  }
};

inline float* floats_of(const device::Buffer& buffer) { return reinterpret_cast<float*>(buffer.data()); }

/// Whole numbers in [-4, 4], whose sums and products are exact in any order.
inline std::vector<float> small_numbers(int64_t count, uint32_t seed) {
  std::vector<float> values;
  for (uint32_t i = 0; i < count; ++i) {
    uint32_t bits = (i + 1) * 2654435761u ^ seed * 40503u;
    bits = (bits ^ bits >> 15) * 2246822519u;
    values.push_back(static_cast<float>((bits >> 16) % 9) - 4);
  }
  return values;
}

}  // namespace lockstep::testing
