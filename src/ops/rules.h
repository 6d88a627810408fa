#pragma once

#include <span>

#include "ops/op.h"

namespace lockstep::ops {

// Shape rule and cost of each op, defined in ops/<op>.cpp; infer() and cost() dispatch to them.

using Inputs = std::span<const TensorSpec>;

OpSignature infer_op(const Linear& op, Inputs inputs);
OpSignature infer_op(const Conv2d& op, Inputs inputs);
OpSignature infer_op(const Pool2d& op, Inputs inputs);
OpSignature infer_op(const GlobalPool2d& op, Inputs inputs);
OpSignature infer_op(const BatchNorm& op, Inputs inputs);
OpSignature infer_op(const LayerNorm& op, Inputs inputs);
OpSignature infer_op(const Embedding& op, Inputs inputs);
OpSignature infer_op(const PositionEmbedding& op, Inputs inputs);
OpSignature infer_op(const Attention& op, Inputs inputs);
OpSignature infer_op(const Dropout& op, Inputs inputs);
OpSignature infer_op(const Relu& op, Inputs inputs);
OpSignature infer_op(const Gelu& op, Inputs inputs);
OpSignature infer_op(const Sigmoid& op, Inputs inputs);
OpSignature infer_op(const Tanh& op, Inputs inputs);
OpSignature infer_op(const Add& op, Inputs inputs);
OpSignature infer_op(const Fork& op, Inputs inputs);
OpSignature infer_op(const Flatten& op, Inputs inputs);
OpSignature infer_op(const Reshape& op, Inputs inputs);
OpSignature infer_op(const SoftmaxCrossEntropy& op, Inputs inputs);
OpSignature infer_op(const MeanSquaredError& op, Inputs inputs);

OpCost cost_op(const Linear& op, Inputs inputs, int64_t batch);
OpCost cost_op(const Conv2d& op, Inputs inputs, int64_t batch);
OpCost cost_op(const Pool2d& op, Inputs inputs, int64_t batch);
OpCost cost_op(const GlobalPool2d& op, Inputs inputs, int64_t batch);
OpCost cost_op(const BatchNorm& op, Inputs inputs, int64_t batch);
OpCost cost_op(const LayerNorm& op, Inputs inputs, int64_t batch);
OpCost cost_op(const Embedding& op, Inputs inputs, int64_t batch);
OpCost cost_op(const PositionEmbedding& op, Inputs inputs, int64_t batch);
OpCost cost_op(const Attention& op, Inputs inputs, int64_t batch);
OpCost cost_op(const Dropout& op, Inputs inputs, int64_t batch);
OpCost cost_op(const Relu& op, Inputs inputs, int64_t batch);
OpCost cost_op(const Gelu& op, Inputs inputs, int64_t batch);
OpCost cost_op(const Sigmoid& op, Inputs inputs, int64_t batch);
OpCost cost_op(const Tanh& op, Inputs inputs, int64_t batch);
OpCost cost_op(const Add& op, Inputs inputs, int64_t batch);
OpCost cost_op(const Fork& op, Inputs inputs, int64_t batch);
OpCost cost_op(const Flatten& op, Inputs inputs, int64_t batch);
OpCost cost_op(const Reshape& op, Inputs inputs, int64_t batch);
OpCost cost_op(const SoftmaxCrossEntropy& op, Inputs inputs, int64_t batch);
OpCost cost_op(const MeanSquaredError& op, Inputs inputs, int64_t batch);

}  // namespace lockstep::ops
