#pragma once

#include "lockstep/ops.h"
#include "ops/cuda/product_spec.h"
#include "ops/op.h"

namespace lockstep::ops {

/// The products that a linear op is computed by, its neighbours' GELUs included. `rows`: of `in` channels, in
/// a virtual replica; the first two have an item for each replica, the last one is of one of them.
struct LinearProducts {
  ProductSpec forward, input_gradient, weight_gradient;
};
LinearProducts linear_products(const Linear& op, int64_t rows, int64_t in, const KernelOptions& options);

}  // namespace lockstep::ops
