#pragma once

#include <cstdint>

#include "device/device.h"

namespace lockstep::ops {

/// Positions sorted by their tokens, those of one token in ascending order; in device memory.
struct TokenOrder {
  const int32_t* tokens;     ///< ascending; those outside the vocabulary as `vocabulary`, at the end
  const int32_t* positions;  ///< where they stood
};

int64_t token_order_bytes(int64_t count);  ///< of workspace

/// Sorts `count` tokens, stably and without atomics, so that what is summed in this order has the same bits
/// in every run. REQUIRES: workspace is aligned to 256 bytes; count < 2^31.
TokenOrder launch_token_order(device::Stream& stream, const int32_t* tokens, int64_t count,
                              int64_t vocabulary, void* workspace);

}  // namespace lockstep::ops
