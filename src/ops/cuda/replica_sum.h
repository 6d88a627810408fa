#pragma once

#include <cstdint>

#include "device/device.h"

namespace lockstep::ops {

/// Launches to[i] += from[i].
void add_floats(float* to, const float* from, int64_t count, device::Stream& stream);

/// The most terms of sum_replicas.
inline constexpr int kMostReplicaTerms = 1024;

/// Launches sums[i] = the terms of all virtual replicas, added along the canonical tree, in one pass: term r
/// of element i is terms[r * stride + i]. `sums` may be the terms' memory. REQUIRES: at most
/// kMostReplicaTerms replicas.
void sum_replicas(const float* terms, int64_t stride, int replicas, int64_t count, float* sums,
                  device::Stream& stream);

}  // namespace lockstep::ops
