#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "lockstep/ops.h"
#include "lockstep/tensor.h"

// The formulas of the ops once more, in double precision and as plainly as they can be written: what the
// kernels of all devices are compared with in whole models. Nothing here knows segments, buckets or fusion.

namespace lockstep::net {

using Values = std::vector<double>;

/// Where a formula has no derivative: rounding may carry values to its other side.
struct Kinks {
  double nearest = 1;   ///< the smallest distance to one, relative to the largest value there
  bool on_one = false;  ///< some value is exactly there, and stays there unless a parameter is moved
};

/// One op on a micro-batch. Whole numbers (tokens, labels) are values, too.
struct OpCall {
  int64_t samples = 0;
  bool training = true;
  std::vector<Shape> input_shapes;  ///< of one sample
  std::vector<DType> input_types;
  Shape output_shape;
  std::vector<const Values*> inputs, parameters;
  // The key of its random numbers.
  uint64_t seed = 0, step = 0;
  uint32_t op_number = 0;
  int64_t first_sample = 0;
  Kinks* kinks = nullptr;  ///< told by forward
  /// The rounding error of an intermediate number from terms of this size, which many results share; empty:
  /// 0.
  std::function<double(double size)> error;

  int64_t rows() const { return samples * input_shapes[0].count() / input_shapes[0][-1]; }
};

/// The output. Losses: the sum over positions that count, and how many these are.
Values forward(const Op& op, const OpCall& call);

struct OpGradients {
  std::vector<Values> inputs;      ///< one per input; empty where none can flow
  std::vector<Values> parameters;  ///< one per parameter; of statistics: what the micro-batch says of them
};
/// `gradient` is that of the output; empty for losses, whose sum is derived.
OpGradients backward(const Op& op, const OpCall& call, const Values& gradient);

/// Factors of dropout of `count` elements of each sample: 0 or 1 / (1 - rate). As documented: Philox keyed by
/// (seed, step, op, sample in the global batch, element).
Values dropout_factors(float rate, const OpCall& call, int64_t count);

}  // namespace lockstep::net
