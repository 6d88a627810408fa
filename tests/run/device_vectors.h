#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "device/device.h"

namespace lockstep::run {

/// Vectors in a device's memory, for tests that call kernels.
class DeviceVectors {
 public:
  explicit DeviceVectors(device::DeviceKind kind)
      : device_(kind == device::DeviceKind::cuda ? device::make_cuda_device(0) : device::make_cpu_device()),
        stream_(device_->create_stream("compute")) {}

 protected:
  template <class T>
  T* put(const std::vector<T>& values) {
    buffers_.push_back(device_->allocate(static_cast<int64_t>(values.size() * sizeof(T))));
    T* at = reinterpret_cast<T*>(buffers_.back().data());
    fill(at, values);
    return at;
  }
  template <class T>
  void fill(T* at, const std::vector<T>& values) {
    stream_->synchronize();
    device_->copy_now(reinterpret_cast<std::byte*>(at), values.data(),
                      static_cast<int64_t>(values.size() * sizeof(T)));
  }
  template <class T>
  std::vector<T> get(const T* at, size_t count) {
    stream_->synchronize();
    std::vector<T> values(count);
    device_->copy_now(values.data(), at, static_cast<int64_t>(count * sizeof(T)));
    return values;
  }

  std::unique_ptr<device::Device> device_;
  std::unique_ptr<device::Stream> stream_;

 private:
  std::vector<device::Buffer> buffers_;
};

}  // namespace lockstep::run
