#pragma once

#include <cstddef>

#include "ops/parts.h"

namespace lockstep::ops {

/// Where the optional inputs are among an attention's inputs; 0: it has none of this kind.
struct AttentionInputs {
  size_t mask = 0;       ///< float32
  size_t documents = 0;  ///< int32
  explicit AttentionInputs(Inputs inputs) {
    for (size_t i = 1; i < inputs.size(); ++i) (inputs[i].dtype == DType::int32 ? documents : mask) = i;
  }
  bool are_given() const { return mask > 0 || documents > 0; }
};

}  // namespace lockstep::ops
