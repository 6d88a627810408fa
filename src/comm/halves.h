#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lockstep/tensor.h"

namespace lockstep::comm {

// Host libraries reduce neither bfloat16 nor float16: communicators of devices reduce float32 in their place,
// and round once.

bool is_half(DType dtype);
/// REQUIRES: is_half(dtype). In float32.
std::vector<std::byte> widened(const void* halves, int64_t size_bytes, DType dtype);
/// Rounds float32 to `dtype`.
void narrow(const std::vector<std::byte>& wide, void* halves, DType dtype);

}  // namespace lockstep::comm
