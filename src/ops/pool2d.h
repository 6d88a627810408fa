#pragma once

#include "lockstep/ops.h"

namespace lockstep {

inline int64_t pool_stride(const Pool2d& op) { return op.stride == 0 ? op.kernel : op.stride; }

}  // namespace lockstep
