#pragma once

#include <cstdint>
#include <cstring>

namespace lockstep::comm {

/// memcpy; for 0 bytes either address may be null.
inline void copy_bytes(void* to, const void* from, int64_t size_bytes) {
  if (size_bytes > 0) std::memcpy(to, from, static_cast<size_t>(size_bytes));
}

}  // namespace lockstep::comm
