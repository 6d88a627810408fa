#include <cstdint>

#include "ops/cuda/epilogue.h"
#include "ops/cuda/formulas.h"
#include "ops/cuda/map.h"

namespace lockstep::ops {
namespace {

/// Reads and writes c once; biases come from a cache but for the first time. Packs run on over the ends of
/// rows, so that rows of odd lengths move by 16 bytes too. `packed`: c is aligned to packs.
template <class T>
__global__ void __launch_bounds__(kMapThreads)
    add_bias_kernel(T* c, const T* bias, int64_t count, int64_t columns, bool packed) {
  constexpr int kElements = kPackElements<T>;
  constexpr int64_t kStep = int64_t{kMapThreads} * kElements;
  const int64_t begin = blockIdx.x * kStep * kMapPacks + int64_t{threadIdx.x} * kElements;
  const bool rows_are_packs = columns % kElements == 0;
  ElementPack<T> sums[kMapPacks];
#pragma unroll
  for (int p = 0; p < kMapPacks; ++p) {
    const int64_t at = begin + p * kStep;
    if (at < count) sums[p] = load_elements(c + at, count - at, packed);
  }
#pragma unroll
  for (int p = 0; p < kMapPacks; ++p) {
    const int64_t at = begin + p * kStep;
    if (at >= count) continue;
    int64_t column = at % columns;
    ElementPack<T> added;
    if (rows_are_packs) {
      added = load_elements(bias + column, kElements);
    } else {
#pragma unroll
      for (int e = 0; e < kElements; ++e) {
        added.value[e] = bias[column];
        column = column + 1 == columns ? 0 : column + 1;
      }
    }
#pragma unroll
    for (int e = 0; e < kElements; ++e)
      sums[p].value[e] = T(static_cast<float>(sums[p].value[e]) + static_cast<float>(added.value[e]));
    store_elements(c + at, sums[p], count - at, packed);
  }
}

}  // namespace

void add_bias(const void* bias, int64_t rows, int64_t columns, DType dtype, void* c, device::Stream& stream) {
  const bool packed = reinterpret_cast<uintptr_t>(c) % 16 == 0;
  with_element_type(dtype, [&]<class T>(T) {
    device::launch(stream, map_grid(rows * columns, kPackElements<T>), add_bias_kernel<T>, static_cast<T*>(c),
                   static_cast<const T*>(bias), rows * columns, columns, packed);
  });
}

void apply_gelu(const void* kept, int64_t count, DType dtype, void* c, device::Stream& stream) {
  with_element_type(dtype, [&]<class T>(T) {
    launch_map(stream, static_cast<T*>(c), static_cast<const T*>(kept), count,
               Forward<GeluFormula, MathFor<T>>{});
  });
}

void apply_gelu_gradient(const void* kept, int64_t count, DType dtype, void* c, device::Stream& stream) {
  with_element_type(dtype, [&]<class T>(T) {
    launch_map(stream, static_cast<T*>(c), static_cast<const T*>(c), static_cast<const T*>(kept), count,
               Backward<GeluFormula, MathFor<T>>{});
  });
}

}  // namespace lockstep::ops
