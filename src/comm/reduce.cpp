#include "comm/reduce.h"

#include <algorithm>
#include <type_traits>

#include "base/ensure.h"
#include "base/half.h"

namespace lockstep::comm {
namespace {

template <class T>
T sum_of(T a, T b) {
  if constexpr (std::is_integral_v<T>)
    return static_cast<T>(static_cast<std::make_unsigned_t<T>>(a) + static_cast<std::make_unsigned_t<T>>(b));
  else
    return a + b;
}

template <class T>
void reduce_typed(T* into, const T* from, int64_t count, ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
      for (int64_t i = 0; i < count; ++i) into[i] = sum_of(into[i], from[i]);
      return;
    case ReduceOp::max:
      for (int64_t i = 0; i < count; ++i) into[i] = std::max(into[i], from[i]);
      return;
    case ReduceOp::min:
      for (int64_t i = 0; i < count; ++i) into[i] = std::min(into[i], from[i]);
      return;
  }
}

/// Each result is rounded once.
template <class Half>
void reduce_halves(void* into, const void* from, int64_t count, ReduceOp op) {
  auto* const to = static_cast<Half*>(into);
  const auto* const other = static_cast<const Half*>(from);
  const auto combine = [&](auto combined) {
    for (int64_t i = 0; i < count; ++i)
      to[i] = Half(combined(static_cast<float>(to[i]), static_cast<float>(other[i])));
  };
  switch (op) {
    case ReduceOp::sum:
      return combine([](float a, float b) { return a + b; });
    case ReduceOp::max:
      return combine([](float a, float b) { return std::max(a, b); });
    case ReduceOp::min:
      return combine([](float a, float b) { return std::min(a, b); });
  }
}

}  // namespace

void reduce_into(void* into, const void* from, int64_t count, DType dtype, ReduceOp op) {
  switch (dtype) {
    case DType::float32:
      return reduce_typed(static_cast<float*>(into), static_cast<const float*>(from), count, op);
    case DType::float64:
      return reduce_typed(static_cast<double*>(into), static_cast<const double*>(from), count, op);
    case DType::int32:
      return reduce_typed(static_cast<int32_t*>(into), static_cast<const int32_t*>(from), count, op);
    case DType::bfloat16:
      return reduce_halves<bfloat16>(into, from, count, op);
    case DType::float16:
      return reduce_halves<float16>(into, from, count, op);
    default:
      ensure(false, "reduce_into takes float32, float64, int32, bfloat16 and float16");
  }
}

}  // namespace lockstep::comm
