#pragma once

// What the GPU's attention kernels share: one call's tensors, and where a head's rows lie in them. Two
// families of kernels: attention_forward.cu and attention_backward.cu multiply on tensor cores (two-byte
// types, some head sizes, no documents); attention_general.cu takes every type, head sizes up to 256, any
// length and documents, and multiplies in float32.

#include <cmath>
#include <cstdint>

#include "device/cuda/kernel.h"
#include "ops/cuda/attention_order.h"
#include "ops/elementwise.h"
#include "ops/op.h"

namespace lockstep::ops {

inline constexpr int kLargestAttentionHead = 256;
// A head's tiles, of 16 rows at the least, are one dimension of the grid.
inline constexpr int64_t kMostAttentionPositions = 16 * 65535;
inline constexpr float kLog2E = 1.44269504f;

/// One forward or backward call, as ops/cpu/attention.cpp defines it. All pointers are the device's.
template <class T>
struct AttentionCall {
  int batch = 0, positions = 0, heads = 0, key_heads = 0, head_size = 0;
  int group = 1;  // heads / key_heads: queries that share a key
  bool causal = true;
  const T* qkv = nullptr;              // [batch, T, heads + 2 key heads, head size]: query, key, value
  T* output = nullptr;                 // [batch, T, C]; backward reads it
  float* log_sum_exp = nullptr;        // [batch, heads, T]; backward reads it
  const T* output_gradient = nullptr;  // [batch, T, C]
  T* qkv_gradient = nullptr;           // as qkv
  const int32_t* documents = nullptr;  // [batch, T] (ops/attention_documents.h); null: all are of one
  float* dots = nullptr;               // [batch, heads, T]: rows' sums of output times its gradient
  const StepConstants* constants = nullptr;
  float dropout = 0;
  uint32_t op_number = 0, first_sample = 0;

  __host__ __device__ int channels() const { return heads * head_size; }                  // C
  __host__ __device__ int stride() const { return (heads + 2 * key_heads) * head_size; }  // of rows of qkv
  /// The last key that `query` sees.
  __device__ int last_seen(int query) const { return causal ? query : positions - 1; }
  float scale() const { return 1.0f / std::sqrt(static_cast<float>(head_size)); }
};

/// Where one head of one sample lies.
struct AttentionHead {
  int64_t query, key, value;  // its first rows in qkv, and the gradients there
  int64_t output;             // its first row in the output and its gradient
  int64_t row;                // in log_sum_exp and dots
  int head;
  uint32_t sample;  // in the global batch

  /// `unit`: sample * heads + head.
  template <class T>
  __device__ AttentionHead(const AttentionCall<T>& call, unsigned unit) {
    const int64_t of_sample = unit / static_cast<unsigned>(call.heads);
    head = static_cast<int>(unit % static_cast<unsigned>(call.heads));
    output = of_sample * call.positions * call.channels() + static_cast<int64_t>(head) * call.head_size;
    const int64_t first = of_sample * call.positions * call.stride();
    query = first + int64_t{head} * call.head_size;
    key = first + int64_t{call.heads + head / call.group} * call.head_size;
    value = key + int64_t{call.key_heads} * call.head_size;
    row = static_cast<int64_t>(unit) * call.positions;
    sample = call.first_sample + static_cast<uint32_t>(of_sample);
  }
};

/// The blocks of a kernel whose blocks own `tile_rows` queries of one head, or keys of one, and meet the
/// others of that head, or of its group. REQUIRES: units of the order are sample * heads + head, or sample *
/// key_heads + head of keys.
template <class T>
AttentionOrder order_of(const AttentionCall<T>& call, int tile_rows, bool owns_keys, HeaviestTiles heaviest) {
  // Met are keys and values, or queries and gradients of the output of a group.
  const int64_t unit_bytes = int64_t{2} * call.positions * call.head_size * (owns_keys ? call.group : 1) *
                             static_cast<int64_t>(sizeof(T));
  return {static_cast<unsigned>(call.batch * (owns_keys ? call.key_heads : call.heads)),
          device::blocks_for(call.positions, tile_rows), heaviest, unit_bytes};
}
inline dim3 blocks_of(const AttentionOrder& order) {
  return {order.section_units(), order.tiles(), order.sections()};
}

/// Which weights of a head dropout keeps. Four neighbouring keys share one number of the random stream.
class AttentionDropout {
 public:
  template <class T>
  __device__ AttentionDropout(const AttentionCall<T>& call, const AttentionHead& head)
      : mask_{.seed = call.constants->seed,
              .step = static_cast<uint32_t>(call.constants->step),
              .purpose = DropoutMask::purpose_of(call.op_number),
              .rate = call.dropout,
              .scale = 1.0f / (1.0f - call.dropout)},
        sample_(head.sample),
        groups_(static_cast<uint32_t>((call.positions + 3) / 4)),
        first_group_(static_cast<uint32_t>(head.head) * static_cast<uint32_t>(call.positions) * groups_) {}

  /// By what kept weights are multiplied.
  __device__ float scale() const { return mask_.scale; }
  /// Bit i: whether the weight of `query` and key 4 group + i is kept.
  __device__ uint32_t kept(int query, int group) const {
    float factor[4];
    mask_.factors(first_group_ + static_cast<uint32_t>(query) * groups_ + static_cast<uint32_t>(group),
                  sample_, factor);
    uint32_t bits = 0;
    for (int i = 0; i < 4; ++i) bits |= factor[i] != 0.0f ? 1u << i : 0u;
    return bits;
  }

 private:
  DropoutMask mask_;
  uint32_t sample_, groups_, first_group_;
};

/// Whether the kernels that multiply on tensor cores take heads of this size.
constexpr bool on_tensor_cores(int64_t head_size) {
  return head_size == 32 || head_size == 64 || head_size == 128;
}

// REQUIRES: on_tensor_cores(head_size); qkv, output and gradients are aligned to 16 bytes.
template <class T>
void attention_forward(const AttentionCall<T>& call, device::Stream& stream);
template <class T>
void attention_backward(const AttentionCall<T>& call,
                        device::Stream& stream);  ///< after `dots` were computed

// REQUIRES: head_size <= kLargestAttentionHead.
template <class T>
void general_attention_forward(const AttentionCall<T>& call, device::Stream& stream);
template <class T>
void general_attention_backward(const AttentionCall<T>& call,
                                device::Stream& stream);  ///< after `dots` were computed

}  // namespace lockstep::ops
