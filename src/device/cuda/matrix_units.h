#pragma once

// The instructions that attention and other products of narrow numbers are built from: warp-wide products of
// small matrices, loads of their fragments from shared memory, and copies from device to shared memory beside
// the threads. Which lane holds which element is written out in device/emulated/matrix_units.h, where g++
// compiles them for the emulated GPU. All lanes of a warp call the warp-wide ones together.

#include <cstdint>

#include "device/cuda/kernel.h"

#if !defined(__CUDACC__)
#include "device/emulated/matrix_units.h"
#else

namespace lockstep::device {

__device__ inline uint32_t address_in_shared_memory(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

/// c += A B, with A 16×16 and B 16×8 of T and C 16×8 of float32. T is bfloat16 or float16.
template <class T>
__device__ inline void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (std::is_same_v<T, bfloat16>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    static_assert(std::is_same_v<T, float16>);
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

/// Four 8×8 matrices of 2-byte elements from shared memory, one register each: lane l gives the address of
/// row l % 8 of matrix l / 8, 16 bytes that are aligned to 16.
__device__ inline void load_matrices(uint32_t (&to)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address_in_shared_memory(row))
               : "memory");
}
/// The same, each matrix transposed.
__device__ inline void load_transposed(uint32_t (&to)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address_in_shared_memory(row))
               : "memory");
}

/// Starts to copy 4 or 16 aligned bytes to shared memory, or to write zeros there if not `wanted`; `from`
/// must be a valid address even then. This thread sees them after wait_for_copies(), other threads after a
/// barrier.
template <int kBytes>
__device__ inline void copy_async(void* shared, const void* from, bool wanted) {
  static_assert(kBytes == 4 || kBytes == 16);
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address_in_shared_memory(shared)),
                 "l"(from), "r"(wanted ? 16 : 0)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(address_in_shared_memory(shared)),
                 "l"(from), "r"(wanted ? 4 : 0)
                 : "memory");
  }
}
/// Ends a group: the copies that this thread started since the last one.
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// Returns when at most the last `kGroupsLeft` groups may be unfinished.
template <int kGroupsLeft>
__device__ inline void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroupsLeft) : "memory");
}

/// Two numbers rounded to T in one register, `low` in the lower half.
template <class T>
__device__ inline uint32_t pack_two(float low, float high) {
  uint32_t packed;
  if constexpr (std::is_same_v<T, bfloat16>) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  } else {
    static_assert(std::is_same_v<T, float16>);
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  }
  return packed;
}

/// The same number, of which the compiler does not know that it is: what is computed from it within a loop
/// stays there, rather than fill registers throughout.
__device__ inline int opaque(int value) {
  asm volatile("" : "+r"(value));
  return value;
}

}  // namespace lockstep::device

#endif
