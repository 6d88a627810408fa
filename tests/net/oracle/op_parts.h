#pragma once

#include <algorithm>

#include "net/oracle/ops.h"

namespace lockstep::net {

// What ops.cpp calls of the other files.
Values forward_of(const Conv2d& op, const OpCall& call);
OpGradients backward_of(const Conv2d& op, const OpCall& call, const Values& gradient);
Values forward_of(const Pool2d& op, const OpCall& call);
OpGradients backward_of(const Pool2d& op, const OpCall& call, const Values& gradient);
Values forward_of(const Upsample2d& op, const OpCall& call);
OpGradients backward_of(const Upsample2d& op, const OpCall& call, const Values& gradient);
Values forward_of(const BatchNorm& op, const OpCall& call);
OpGradients backward_of(const BatchNorm& op, const OpCall& call, const Values& gradient);
Values forward_of(const LayerNorm& op, const OpCall& call);
OpGradients backward_of(const LayerNorm& op, const OpCall& call, const Values& gradient);
Values forward_of(const RmsNorm& op, const OpCall& call);
OpGradients backward_of(const RmsNorm& op, const OpCall& call, const Values& gradient);
Values forward_of(const RotaryEmbedding& op, const OpCall& call);
OpGradients backward_of(const RotaryEmbedding& op, const OpCall& call, const Values& gradient);
Values forward_of(const Attention& op, const OpCall& call);
OpGradients backward_of(const Attention& op, const OpCall& call, const Values& gradient);
Values forward_of(const Lstm& op, const OpCall& call);
OpGradients backward_of(const Lstm& op, const OpCall& call, const Values& gradient);
Values forward_of(const SequencePool& op, const OpCall& call);
OpGradients backward_of(const SequencePool& op, const OpCall& call, const Values& gradient);
Values forward_of(const Concatenate& op, const OpCall& call);
OpGradients backward_of(const Concatenate& op, const OpCall& call, const Values& gradient);
Values forward_of(const Slice& op, const OpCall& call);
OpGradients backward_of(const Slice& op, const OpCall& call, const Values& gradient);
Values forward_of(const Transpose& op, const OpCall& call);
OpGradients backward_of(const Transpose& op, const OpCall& call, const Values& gradient);
Values forward_of(const PrependToken& op, const OpCall& call);
OpGradients backward_of(const PrependToken& op, const OpCall& call, const Values& gradient);
Values forward_of(const SoftmaxCrossEntropy& op, const OpCall& call);
OpGradients backward_of(const SoftmaxCrossEntropy& op, const OpCall& call);

inline void near_kink(const OpCall& call, double distance, double scale) {
  if (call.kinks == nullptr) return;
  // If all values are small, they may be nothing but the rounding errors of equal numbers less their mean, or
  // what is left of numbers that cancel: a small step of a parameter then carries them far.
  scale = std::max(scale, 0.1);
  if (distance == 0)
    call.kinks->on_one = true;
  else if (distance < call.kinks->nearest * scale)
    call.kinks->nearest = distance / scale;
}

}  // namespace lockstep::net
