#include "device/host_window.h"

#include <fmt/format.h>

#include "base/ensure.h"

namespace lockstep::device {

HostWindow::HostWindow(Device& device, int64_t most_bytes)
    : device_(device), copy_(device.allocate_host(device.shares_host_memory() ? 0 : most_bytes)) {}

void* HostWindow::copy_of(int64_t size_bytes) const {
  ensure(size_bytes <= copy_.size_bytes(),
         fmt::format("a window of {} bytes is to show {}", copy_.size_bytes(), size_bytes));
  return copy_.data();
}

const void* HostWindow::read(const void* data, int64_t size_bytes) {
  if (device_.shares_host_memory()) return data;
  void* copy = copy_of(size_bytes);
  device_.copy_now(copy, data, size_bytes);
  return copy;
}

void HostWindow::write(void* data, int64_t size_bytes, const std::function<void(void*)>& fill) {
  if (device_.shares_host_memory()) return fill(data);
  void* copy = copy_of(size_bytes);
  fill(copy);
  device_.copy_now(data, copy, size_bytes);
}

}  // namespace lockstep::device
