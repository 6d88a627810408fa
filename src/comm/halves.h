#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lockstep/tensor.h"

namespace lockstep::comm {

// Host libraries cannot reduce bfloat16 and float16. Communicators of devices reduce float32 instead, and
// round once.

bool is_half(DType dtype);
/// REQUIRES: is_half(dtype). In float32.
std::vector<std::byte> widened(const void* halves, int64_t size_bytes, DType dtype);
/// Rounds float32 to `dtype`.
void narrow(const std::vector<std::byte>& wide, void* halves, DType dtype);

}  // namespace lockstep::comm
