#pragma once

#include <cstdint>

#include "ops/replica_fold.h"

namespace lockstep::ops {

/// to[i] += from[i]; the two do not overlap.
void add_numbers(float* to, const float* from, int64_t count, int threads);

/// sums[column] (+)= the sum of each replica's rows of x, a chain in ascending order, added along the tree.
/// Accumulating goes on with the chain. Workspace: column_chain_bytes. REQUIRES: `replicas` divides `rows`;
/// one replica, if it accumulates.
void column_chains(const float* x, int64_t rows, int64_t columns, int replicas, bool accumulate, float* sums,
                   float* workspace);
int64_t column_chain_bytes(int64_t columns, int replicas);

}  // namespace lockstep::ops
