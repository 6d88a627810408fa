#include "tensor/convert.h"

#include <fmt/format.h>

#include <cstring>
#include <type_traits>

#include "base/half.h"
#include "lockstep/error.h"
#include "tensor/error_feedback.h"

namespace lockstep::tensor {
namespace {

template <class To, class From>
void convert_elements(void* to_data, const void* from_data, int64_t count) {
  auto* __restrict to = static_cast<To*>(to_data);
  const auto* __restrict from = static_cast<const From*>(from_data);
  for (int64_t i = 0; i < count; ++i) to[i] = static_cast<To>(static_cast<float>(from[i]));
}

template <class To>
void round_elements(void* to_data, const float* __restrict from, float* __restrict residuals, int64_t count) {
  auto* __restrict to = static_cast<To*>(to_data);
  for (int64_t i = 0; i < count; ++i) to[i] = round_with_feedback<To>(from[i], residuals[i]);
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

void round_with_feedback(void* to, DType to_type, const float* from, float* residuals, int64_t count) {
  if (!is_narrow(to_type))
    throw InternalError(fmt::format("elements of {} are not rounded with feedback; bfloat16 and float16 are",
                                    name_of(to_type)));
  if (to_type == DType::bfloat16)
    round_elements<bfloat16>(to, from, residuals, count);
  else
    round_elements<float16>(to, from, residuals, count);
}

}  // namespace lockstep::tensor
