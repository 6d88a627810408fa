#pragma once

#include <bit>
#include <cstdint>

#include "base/host_device.h"
#if defined(__CUDACC__)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif

namespace lockstep {

// Two-byte floating-point storage. Arithmetic is done in float32: values widen exactly and are rounded to
// nearest, ties to even, when they are stored. NaN stays NaN, overflow becomes infinity, and subnormal
// numbers are kept, with the same bits on CPUs and GPUs.

/// The upper half of a float32: 8 bits of exponent, 7 of fraction.
struct bfloat16 {
  uint16_t bits = 0;

  bfloat16() = default;
  LOCKSTEP_HOST_DEVICE explicit bfloat16(float value) {
#if defined(__CUDA_ARCH__)
    bits = __bfloat16_as_ushort(__float2bfloat16_rn(value));  // one instruction, and NaN becomes 0x7fff
#else
    const uint32_t word = std::bit_cast<uint32_t>(value);
    const bool is_nan = (word & 0x7fffffffu) > 0x7f800000u;
    bits = is_nan ? uint16_t{0x7fff} : static_cast<uint16_t>((word + 0x7fffu + ((word >> 16) & 1u)) >> 16);
#endif
  }
  LOCKSTEP_HOST_DEVICE explicit operator float() const { return std::bit_cast<float>(uint32_t{bits} << 16); }
};

/// IEEE 754 binary16: 5 bits of exponent, 10 of fraction; the largest number is 65,504.
struct float16 {
  uint16_t bits = 0;

  float16() = default;
  LOCKSTEP_HOST_DEVICE explicit float16(float value) {
#if defined(__CUDA_ARCH__)
    bits = __half_as_ushort(__float2half_rn(value));
#else
    const uint32_t word = std::bit_cast<uint32_t>(value);
    const uint16_t sign = static_cast<uint16_t>((word >> 16) & 0x8000u);
    const uint32_t magnitude = word & 0x7fffffffu;
    if (magnitude > 0x7f800000u) {
      bits = 0x7fff;
    } else if (magnitude >= 0x477ff000u) {  // 65,520 and above round to infinity
      bits = static_cast<uint16_t>(sign | 0x7c00u);
    } else if (magnitude <
               0x38800000u) {  // below 2^-14: adding 0.5 rounds to a multiple of 2^-24, in the low bits
      bits = static_cast<uint16_t>(
          sign | (std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u));
    } else {
      bits =
          static_cast<uint16_t>(sign | ((magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13));
    }
#endif
  }
  LOCKSTEP_HOST_DEVICE explicit operator float() const {
#if defined(__CUDA_ARCH__)
    return __half2float(__ushort_as_half(bits));
#else
    const uint32_t sign = uint32_t{bits & 0x8000u} << 16, magnitude = bits & 0x7fffu;
    if (magnitude >= 0x7c00u) return std::bit_cast<float>(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
    // A subnormal number is its fraction times 2^-24.
    if (magnitude < 0x0400u)
      return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(static_cast<float>(magnitude) * 0x1p-24f));
    return std::bit_cast<float>(sign | ((magnitude << 13) + 0x38000000u));
#endif
  }
};

static_assert(sizeof(bfloat16) == 2 && sizeof(float16) == 2);

}  // namespace lockstep
