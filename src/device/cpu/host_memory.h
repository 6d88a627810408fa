#pragma once

#include <cstdint>

namespace lockstep::device {

/// Zero-filled memory aligned to 64 bytes. Throws DeviceError with the size if there is none.
void* allocate_host_bytes(int64_t size_bytes);
void free_host_bytes(void* data) noexcept;

}  // namespace lockstep::device
