#pragma once

#include <string>

#include "base/ensure.h"
#include "device/cuda/kernel.h"
#include "lockstep/error.h"

namespace lockstep::ops {

// How kernels move elements of any storage type: in packs of 16 bytes, the widest access there is. Tensors
// begin at multiples of 64 bytes, so packs of a whole tensor are aligned; those of a row are if its length is
// a multiple of their elements.

template <class T>
inline constexpr int kPackElements = 16 / sizeof(T);
template <class T>
using ElementPack = device::Pack<T, kPackElements<T>>;

/// A pack's worth of elements, of which the first `count` count: if these are fewer than a pack, or `packed`
/// is false, they are read one by one, and the others are 0.
template <class T>
__device__ inline ElementPack<T> load_elements(const T* from, int64_t count, bool packed = true) {
  if (packed && count >= kPackElements<T>) return *reinterpret_cast<const ElementPack<T>*>(from);
  ElementPack<T> pack;
#pragma unroll
  for (int e = 0; e < kPackElements<T>; ++e) pack.value[e] = e < count ? from[e] : T(0.0f);
  return pack;
}

/// The same the other way: at most the first `count` elements are written.
template <class T>
__device__ inline void store_elements(T* to, const ElementPack<T>& pack, int64_t count, bool packed = true) {
  if (packed && count >= kPackElements<T>) {
    *reinterpret_cast<ElementPack<T>*>(to) = pack;
    return;
  }
#pragma unroll
  for (int e = 0; e < kPackElements<T>; ++e)
    if (e < count) to[e] = pack.value[e];
}

/// Rows of equal length cut into packs, numbered row by row.
struct RowPacks {
  int64_t row_elements = 0;
  uint32_t row_packs = 0, packs = 0;
  bool packed = false;  ///< whether packs of all rows are whole and aligned
};
inline RowPacks row_packs_of(int64_t rows, int64_t row_elements, int pack_elements) {
  const int64_t row_packs = (row_elements + pack_elements - 1) / pack_elements;
  ensure(rows * row_packs < int64_t{1} << 32, "a GPU kernel was given a tensor of more than 2^32 packs");
  return {row_elements, static_cast<uint32_t>(row_packs), static_cast<uint32_t>(rows * row_packs),
          row_elements % pack_elements == 0};
}

/// Calls `function` with a value of the type in which elements of `dtype` are stored.
template <class Function>
void with_element_type(DType dtype, const Function& function) {
  switch (dtype) {
    case DType::float32:
      return function(float{});
    case DType::bfloat16:
      return function(bfloat16{});
    case DType::float16:
      return function(float16{});
    default:
      throw InternalError("a GPU kernel takes elements of float32, bfloat16 and float16, was given " +
                          std::string(name_of(dtype)));
  }
}

}  // namespace lockstep::ops
