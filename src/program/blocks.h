#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "layout/byte_span.h"

namespace lockstep::program {

/// Bytes [begin, end) of an operand, cut from `begin` on into pieces of `each` bytes, the last of which may
/// be smaller: they belong to rank `owner` of a group and those after it, around. So equal blocks of any
/// number of ranks take a few bytes, and not one number for each rank.
struct BlockRun {
  int64_t begin = 0, end = 0;
  int64_t each = 0;
  int owner = 0;
  int64_t pieces() const { return (end - begin - 1) / each + 1; }  ///< REQUIRES: begin < end, each > 0
  bool operator==(const BlockRun&) const = default;
};

/// Every rank's block: runs ascend and do not overlap; what lies in none of them belongs to nobody. A rank's
/// block may be in several pieces, and may be empty. For the functions below, a run has at most a piece for
/// each rank.
using Blocks = std::vector<BlockRun>;

/// What is wrong with them as blocks of `ranks` ranks within `size_bytes`, cut on borders of `element_bytes`;
/// "" if nothing is.
std::string fault_of(const Blocks& blocks, int64_t size_bytes, int ranks, int64_t element_bytes);

/// The pieces of one rank's block, ascending.
std::vector<layout::ByteSpan> block_of(const Blocks& blocks, int owner, int ranks);
/// Of one rank's block, of the largest block, and of all of them.
int64_t block_bytes(const Blocks& blocks, int owner, int ranks);
int64_t largest_block_bytes(const Blocks& blocks, int ranks);
int64_t bytes_of(const Blocks& blocks);
/// What is in some block, runs that follow each other being one span.
std::vector<layout::ByteSpan> covered_by(const Blocks& blocks);

/// "0+4096/1024@3,4096+64@0": bytes from 0 on, of 1,024 each, the first of rank 3; then 64 of rank 0.
std::string to_text(const Blocks& blocks);

}  // namespace lockstep::program
