#include "comm/shared/tree_reduce.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <type_traits>

#include "base/ensure.h"
#include "base/half.h"

namespace lockstep::comm {
namespace {

/// Partial results of this many elements stay in the first-level cache.
constexpr int64_t kBlock = 1024;
constexpr int kLevels = 10;

/// An element at any address: callers' buffers need not be aligned, and bytes alias everything.
template <class T>
struct Anywhere {
  using type [[gnu::aligned(1), gnu::may_alias]] = T;
};

struct Sum {
  template <class T>
  T operator()(T a, T b) const {
    if constexpr (std::is_integral_v<T>)
      return static_cast<T>(static_cast<std::make_unsigned_t<T>>(a) +
                            static_cast<std::make_unsigned_t<T>>(b));
    else
      return a + b;
  }
};
struct Max {
  template <class T>
  T operator()(T a, T b) const {
    return a < b ? b : a;
  }
};
struct Min {
  template <class T>
  T operator()(T a, T b) const {
    return b < a ? b : a;
  }
};

/// Of two-byte numbers, as their bits: each result of `Op` on float32 is rounded once.
template <class Half, class Op>
struct Rounded {
  uint16_t operator()(uint16_t a, uint16_t b) const { return Half(Op{}(value_of(a), value_of(b))).bits; }

 private:
  static float value_of(uint16_t bits) {
    Half half;
    half.bits = bits;
    return static_cast<float>(half);
  }
};

/// `to` may be `left`: element i is read before it is written, and none other touches it (hence the pragma).
template <class T, class Op>
void combine(std::byte* to, const std::byte* left, const std::byte* right, int64_t count, Op op) {
  using Element = typename Anywhere<T>::type;
  auto* const result = reinterpret_cast<Element*>(to);
  const auto* const a = reinterpret_cast<const Element*>(left);
  const auto* const b = reinterpret_cast<const Element*>(right);
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) result[i] = op(static_cast<T>(a[i]), static_cast<T>(b[i]));
}

/// One block of all inputs, from byte `offset` on.
template <class T, class Op>
class Folder {
 public:
  Folder(std::span<const std::byte* const> inputs, Op op) : inputs_(inputs), op_(op) {}

  void fold(size_t first, size_t last, int64_t offset, int64_t count, std::byte* to,
            std::byte* scratch) const {
    const size_t middle = first + std::bit_floor(last - first - 1);
    const std::byte* const left = child(first, middle, offset, count, to, scratch);
    const std::byte* const right =
        child(middle, last, offset, count, scratch, scratch + kBlock * static_cast<int64_t>(sizeof(T)));
    combine<T>(to, left, right, count, op_);
  }

 private:
  const std::byte* child(size_t first, size_t last, int64_t offset, int64_t count, std::byte* to,
                         std::byte* scratch) const {
    if (last - first == 1) return inputs_[first] + offset;
    fold(first, last, offset, count, to, scratch);
    return to;
  }

  std::span<const std::byte* const> inputs_;
  Op op_;
};

template <class T, class Op>
void reduce_typed(std::span<const std::byte* const> inputs, std::byte* result, int64_t count, Op op) {
  constexpr auto kBytes = static_cast<int64_t>(sizeof(T));
  if (inputs.size() == 1) {
    if (count > 0) std::memcpy(result, inputs[0], static_cast<size_t>(count * kBytes));
    return;
  }
  if (inputs.size() == 2) return combine<T>(result, inputs[0], inputs[1], count, op);
  // A level of the tree holds one partial result while its right half is evaluated.
  alignas(64) std::array<std::byte, kLevels * kBlock * sizeof(T)> scratch;
  ensure(inputs.size() <= size_t{1} << kLevels, "more ranks on one host than their sums have room for");
  const Folder<T, Op> folder(inputs, op);
  for (int64_t first = 0; first < count; first += kBlock) {
    const int64_t length = std::min(kBlock, count - first);
    folder.fold(0, inputs.size(), first * kBytes, length, result + first * kBytes, scratch.data());
  }
}

template <class T>
void reduce_typed(std::span<const std::byte* const> inputs, std::byte* result, int64_t count, ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
      return reduce_typed<T>(inputs, result, count, Sum{});
    case ReduceOp::max:
      return reduce_typed<T>(inputs, result, count, Max{});
    case ReduceOp::min:
      return reduce_typed<T>(inputs, result, count, Min{});
  }
}

template <class Half>
void reduce_rounded(std::span<const std::byte* const> inputs, std::byte* result, int64_t count, ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
      return reduce_typed<uint16_t>(inputs, result, count, Rounded<Half, Sum>{});
    case ReduceOp::max:
      return reduce_typed<uint16_t>(inputs, result, count, Rounded<Half, Max>{});
    case ReduceOp::min:
      return reduce_typed<uint16_t>(inputs, result, count, Rounded<Half, Min>{});
  }
}

}  // namespace

void reduce_along_tree(std::span<const std::byte* const> inputs, std::byte* result, int64_t count,
                       DType dtype, ReduceOp op) {
  switch (dtype) {
    case DType::float32:
      return reduce_typed<float>(inputs, result, count, op);
    case DType::float64:
      return reduce_typed<double>(inputs, result, count, op);
    case DType::int32:
      return reduce_typed<int32_t>(inputs, result, count, op);
    case DType::bfloat16:
      return reduce_rounded<bfloat16>(inputs, result, count, op);
    case DType::float16:
      return reduce_rounded<float16>(inputs, result, count, op);
    default:
      ensure(false, "reduce_along_tree takes float32, float64, int32, bfloat16 and float16");
  }
}

}  // namespace lockstep::comm
