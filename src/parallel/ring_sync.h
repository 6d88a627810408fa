#pragma once

#include "parallel/gradient_sync.h"
#include "program/blocks.h"

namespace lockstep::parallel {

/// Blocks of `size_bytes`, of equal size except the last, on borders of 64 bytes; later ones may be empty.
/// Worker w's block is at position w + 1, modulo their number, so that the sum of the first block begins with
/// worker 0.
program::Blocks equal_blocks(int64_t size_bytes, int workers);

/// Shards as blocks. REQUIRES: position(position(worker)) is the worker.
program::Blocks blocks_of(const Shards& shards, int workers);

/// FAST: sums around a ring in n - 1 rounds; every worker sends (n-1)/n of the bucket. Afterwards each
/// worker's block of `data`, which is its slot 0 or a part of it, holds the sum.
void write_ring_reduce_scatter(const BucketSync& sync, program::ByteRange data, program::Blocks blocks);

/// Sends every worker's block of `data` to all others, in as many rounds and bytes.
void write_ring_all_gather(const BucketSync& sync, program::ByteRange data, program::Blocks blocks);

}  // namespace lockstep::parallel
