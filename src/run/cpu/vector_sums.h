#pragma once

#include <cstdint>

namespace lockstep::run {

/// destination[i] += source[i]: a node of the gradient tree.
void add_into(float* destination, const float* source, int64_t count);

/// Sum of squares in double precision, in a fixed order: 16 lanes, folded pairwise at the end.
double sum_of_squares(const float* data, int64_t count);

// In the order in which a block of the GPU's kernels adds (run/cuda/step_kernels.cu), to the same bits: for
// processors that update beside GPUs.

/// Of at most layout::kNormChunk elements.
double sum_of_squares_as_gpus(const float* data, int64_t count);
/// Of chunks' sums.
double sum_as_gpus(const double* sums, int64_t count);

/// Sum of digest_term() over the elements' bits: of at most layout::kNormChunk elements.
uint64_t digest_of(const float* data, int64_t count);

}  // namespace lockstep::run
