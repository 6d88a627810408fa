#pragma once

#include "base/simd.h"

namespace lockstep::ops {

struct ChannelProduct;
struct ChannelFold;

inline namespace LOCKSTEP_SIMD {

void channel_product(const ChannelProduct& product);
void channel_fold(const ChannelFold& fold);

}  // namespace LOCKSTEP_SIMD
}  // namespace lockstep::ops
