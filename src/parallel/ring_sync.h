#pragma once

#include "parallel/gradient_sync.h"
#include "program/blocks.h"

namespace lockstep::parallel {

/// Equal blocks of `size_bytes`, on borders of 64 bytes, but for the last one; later ones may be empty.
/// Worker w's lies at position w + 1, around, so that the sum of the first begins with worker 0.
program::Blocks equal_blocks(int64_t size_bytes, int workers);

/// Shards as blocks. REQUIRES: position(position(worker)) is the worker.
program::Blocks blocks_of(const Shards& shards, int workers);

/// FAST: sums around a ring in n - 1 rounds, every worker sending (n-1)/n of the bucket. Afterwards each
/// worker's own block of its slot 0 holds the sum.
void write_ring_reduce_scatter(const BucketSync& sync, program::Blocks blocks);

/// Every worker's own block of `data` gets to all others. As many rounds, and bytes.
void write_ring_all_gather(const BucketSync& sync, program::ByteRange data, program::Blocks blocks);

}  // namespace lockstep::parallel
