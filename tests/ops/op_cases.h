#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "ops/op_testing.h"

namespace lockstep::testing {

// The cases of each op, defined in its test file beside its double-precision reference.
std::vector<OpCase> linear_cases();
std::vector<OpCase> conv2d_cases();
std::vector<OpCase> pool2d_cases();
std::vector<OpCase> global_pool2d_cases();
std::vector<OpCase> batch_norm_cases();
std::vector<OpCase> layer_norm_cases();
std::vector<OpCase> embedding_cases();
std::vector<OpCase> position_embedding_cases();
std::vector<OpCase> attention_cases();
std::vector<OpCase> dropout_cases();
std::vector<OpCase> relu_cases();
std::vector<OpCase> gelu_cases();
std::vector<OpCase> sigmoid_cases();
std::vector<OpCase> tanh_cases();
std::vector<OpCase> add_cases();
std::vector<OpCase> fork_cases();
std::vector<OpCase> flatten_cases();
std::vector<OpCase> reshape_cases();
std::vector<OpCase> softmax_cross_entropy_cases();
std::vector<OpCase> mean_squared_error_cases();

/// One line per op. The suite fails where an op of op_table() has no line here, or no case.
struct OpCasesRow {
  std::string_view op;
  std::vector<OpCase> (*cases)();
};
std::span<const OpCasesRow> op_cases();

/// Those of every op, under names that begin with the op's.
std::vector<OpCase> all_cases();
/// The same cases with two-byte storage. A result is off by its own rounding and by what rounding within the
/// op does: backward reads outputs that were rounded.
std::vector<OpCase> narrow_cases(DType dtype, double tolerance);

}  // namespace lockstep::testing
