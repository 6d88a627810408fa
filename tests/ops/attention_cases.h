#pragma once

#include <cstdint>
#include <string>

#include "ops/op_testing.h"

namespace lockstep::testing {

/// A head size and an element type. GPUs multiply narrow heads of 32, 64 and 128 by kernels of their own.
struct AttentionForm {
  int64_t head_size;
  DType dtype;
};
inline constexpr AttentionForm kAttentionForms[] = {
    {8, DType::float32}, {64, DType::bfloat16}, {128, DType::float16}};

// Cases of attention with its reference, of numbers for which weights are far from uniform.
OpCase attention_case(std::string name, int64_t batch, int64_t positions, const Attention& op,
                      int64_t head_size, int threads = 1);
OpCase attention_case(std::string name, int64_t batch, int64_t positions, int64_t heads, int64_t head_size,
                      float dropout = 0, int threads = 1);
OpCase attention_case(const AttentionForm& form, int64_t batch, int64_t positions, int64_t heads,
                      float dropout = 0);

/// What an attention is given besides queries, keys and values.
enum class Marks { mask, documents, both };

/// The case with marks: four documents, the second of which is long; a mask without the last positions and
/// one more. Nothing of the second sample's mask counts.
OpCase marked_case(OpCase c, Marks marks);

}  // namespace lockstep::testing
