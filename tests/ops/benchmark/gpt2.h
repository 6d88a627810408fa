#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "lockstep/ops.h"
#include "lockstep/tensor.h"

namespace lockstep::ops {

/// A linear op of configs/gpt2_124m.textproto.
struct GptLinear {
  std::string_view name;
  int64_t in = 0;
  Linear op;
  int count = 0;                                  ///< in the model
  bool gelu_behind = false, gelu_before = false;  ///< with precision.fused_gelu
};

/// The shapes of attention and linear ops of GPT-2 with 124 million parameters, at 64 samples of 1024
/// tokens.
struct GptShape {
  int64_t samples = 64, positions = 1024, heads = 12, head_size = 64, vocabulary = 50304;

  int64_t rows() const { return samples * positions; }
  int64_t width() const { return heads * head_size; }
  static GptShape tiny() {
    return {.samples = 2, .positions = 16, .heads = 2, .head_size = 32, .vocabulary = 104};
  }
  std::vector<GptLinear> linears() const {
    const int64_t c = width();
    return {{"qkv", c, {.units = 3 * c}, 12},
            {"projection", c, {.units = c}, 12},
            {"mlp up", c, {.units = 4 * c}, 12, true, false},
            {"mlp down", 4 * c, {.units = c}, 12, false, true},
            {"head", c, {.units = vocabulary, .bias = false}, 1}};
  }
  TensorSpec qkv() const { return {Shape({positions, 3 * width()})}; }  ///< attention's input, of a sample
  /// Of one attention's forward; its backward has five products where forward has two. Pairs that the causal
  /// mask leaves out do not count.
  double attention_flops() const {
    return 2.0 * static_cast<double>(samples * heads * positions * positions * head_size);
  }
};

}  // namespace lockstep::ops
