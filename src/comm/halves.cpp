#include "comm/halves.h"

#include <cstring>

#include "base/half.h"

namespace lockstep::comm {
namespace {

template <class Half>
void widen(const std::byte* halves, std::byte* wide, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    Half half;
    std::memcpy(&half, halves + i * sizeof half, sizeof half);
    const auto value = static_cast<float>(half);
    std::memcpy(wide + i * sizeof value, &value, sizeof value);
  }
}

template <class Half>
void round(const std::byte* wide, std::byte* halves, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    float value = 0;
    std::memcpy(&value, wide + i * sizeof value, sizeof value);
    const Half half(value);
    std::memcpy(halves + i * sizeof half, &half, sizeof half);
  }
}

}  // namespace

bool is_half(DType dtype) { return dtype == DType::bfloat16 || dtype == DType::float16; }

std::vector<std::byte> widened(const void* halves, int64_t size_bytes, DType dtype) {
  std::vector<std::byte> wide(static_cast<size_t>(size_bytes) * 2);
  const auto* from = static_cast<const std::byte*>(halves);
  const auto count = static_cast<size_t>(size_bytes) / 2;
  dtype == DType::bfloat16 ? widen<bfloat16>(from, wide.data(), count)
                           : widen<float16>(from, wide.data(), count);
  return wide;
}

void narrow(const std::vector<std::byte>& wide, void* halves, DType dtype) {
  auto* to = static_cast<std::byte*>(halves);
  const size_t count = wide.size() / sizeof(float);
  dtype == DType::bfloat16 ? round<bfloat16>(wide.data(), to, count) : round<float16>(wide.data(), to, count);
}

}  // namespace lockstep::comm
