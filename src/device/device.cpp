#include "device/device.h"

#include <algorithm>

#include "lockstep/error.h"

namespace lockstep {

std::string_view name_of(DeviceKind kind) {
  switch (kind) {
    case DeviceKind::cpu:
      return "cpu";
    case DeviceKind::async_cpu:
      return "async_cpu";
    case DeviceKind::cuda:
      return "cuda";
  }
  return "?";
}

Buffer::~Buffer() {
  if (data_ != nullptr) device_->release(data_, size_bytes_);
}

Buffer Device::allocate(int64_t size_bytes) {
  ensure(size_bytes >= 0, "a buffer of negative size is asked for");
  if (size_bytes == 0) return {};
  void* data = allocate_bytes(size_bytes);
  std::lock_guard lock(mutex_);
  memory_use_.current_bytes += size_bytes;
  memory_use_.peak_bytes = std::max(memory_use_.peak_bytes, memory_use_.current_bytes);
  ++memory_use_.allocations;
  return Buffer(*this, data, size_bytes);
}

MemoryUse Device::memory_use() const {
  std::lock_guard lock(mutex_);
  return memory_use_;
}

void Device::release(void* data, int64_t size_bytes) noexcept {
  free_bytes(data, size_bytes);
  std::lock_guard lock(mutex_);
  memory_use_.current_bytes -= size_bytes;
}

}  // namespace lockstep
