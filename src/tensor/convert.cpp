#include "tensor/convert.h"

#include <fmt/format.h>

#include <cstring>
#include <type_traits>

#include "base/half.h"
#include "lockstep/error.h"

namespace lockstep::tensor {
namespace {

template <class To, class From>
void convert_elements(void* to_data, const void* from_data, int64_t count) {
  auto* __restrict to = static_cast<To*>(to_data);
  const auto* __restrict from = static_cast<const From*>(from_data);
  for (int64_t i = 0; i < count; ++i) to[i] = static_cast<To>(static_cast<float>(from[i]));
}

/// Calls `work` with a value of the C++ type that `dtype` stands for.
template <class Work>
void with_type(DType dtype, const Work& work) {
  switch (dtype) {
    case DType::float32:
      return work(float{});
    case DType::bfloat16:
      return work(bfloat16{});
    case DType::float16:
      return work(float16{});
    default:
      throw InternalError(
          fmt::format("elements of {} are not converted; float32, bfloat16 and float16 are", name_of(dtype)));
  }
}

}  // namespace

void convert(void* to, DType to_type, const void* from, DType from_type, int64_t count) {
  with_type(to_type, [&](auto target) {
    with_type(from_type, [&](auto source) {
      if constexpr (std::is_same_v<decltype(target), decltype(source)>) {
        std::memcpy(to, from, static_cast<size_t>(count) * sizeof target);
      } else {
        convert_elements<decltype(target), decltype(source)>(to, from, count);
      }
    });
  });
}

}  // namespace lockstep::tensor
