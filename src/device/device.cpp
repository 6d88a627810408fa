#include "device/device.h"

#include <algorithm>
#include <cstring>

#include "base/ensure.h"
#include "base/index.h"
#include "device/cpu/host_memory.h"
#include "lockstep/error.h"

namespace lockstep::device {

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
  if (data_ != nullptr) device_->release(data_, size_bytes_, kind_);
}

void Stream::copy(void* to, const void* from, int64_t size_bytes) {
  if (size_bytes > 0) launch([=] { std::memcpy(to, from, static_cast<size_t>(size_bytes)); });
}

void Stream::write_word(std::atomic<uint64_t>& word, uint64_t value) {
  launch([&word, value] { word.store(value, std::memory_order_release); });
}

void Stream::wait_word(const std::atomic<uint64_t>&, uint64_t) {
  throw InternalError("streams that run on the host's memory wait for no word of it");
}

void Device::copy_now(void* to, const void* from, int64_t size_bytes) {
  if (size_bytes > 0) std::memcpy(to, from, static_cast<size_t>(size_bytes));
}

void* Device::allocate_host_bytes(int64_t size_bytes) { return device::allocate_host_bytes(size_bytes); }
void Device::free_host_bytes(void* data) noexcept { device::free_host_bytes(data); }

Buffer Device::allocate_host(int64_t size_bytes) {
  ensure(size_bytes >= 0, "a buffer of negative size is asked for");
  if (size_bytes == 0) return {};
  return counted(allocate_host_bytes(size_bytes), size_bytes, MemoryKind::host);
}

Buffer Device::allocate(int64_t size_bytes) {
  ensure(size_bytes >= 0, "a buffer of negative size is asked for");
  if (size_bytes == 0) return {};
  return counted(allocate_bytes(size_bytes), size_bytes, MemoryKind::device);
}

Buffer Device::counted(void* data, int64_t size_bytes, MemoryKind kind) {
  std::lock_guard lock(mutex_);
  MemoryUse& use = nth(memory_use_, kind);
  use.current_bytes += size_bytes;
  use.peak_bytes = std::max(use.peak_bytes, use.current_bytes);
  ++use.allocations;
  return Buffer(*this, data, size_bytes, kind);
}

MemoryUse Device::memory_use(MemoryKind kind) const {
  std::lock_guard lock(mutex_);
  return nth(memory_use_, kind);
}

void Device::release(void* data, int64_t size_bytes, MemoryKind kind) noexcept {
  if (kind == MemoryKind::host)
    free_host_bytes(data);
  else
    free_bytes(data, size_bytes);
  std::lock_guard lock(mutex_);
  nth(memory_use_, kind).current_bytes -= size_bytes;
}

}  // namespace lockstep::device
