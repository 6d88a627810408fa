#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "layout/byte_span.h"

namespace lockstep::program {

/// Bytes [begin, end) of an operand, cut from `begin` on into pieces of `each` bytes; the last piece may be
/// smaller. The pieces belong to rank `owner` of a group and the ranks after it, wrapping around. So equal
/// blocks of any number of ranks take a few bytes instead of one number per rank.
struct BlockRun {
  int64_t begin = 0, end = 0;
  int64_t each = 0;
  int owner = 0;
  int64_t pieces() const { return (end - begin - 1) / each + 1; }  ///< REQUIRES: begin < end, each > 0
  bool operator==(const BlockRun&) const = default;
};

/// The blocks of all ranks. Runs ascend and do not overlap; bytes outside of all runs belong to no rank. A
/// rank's block may have several pieces, and may be empty. For the functions below, a run has at most one
/// piece per rank.
using Blocks = std::vector<BlockRun>;

/// What is wrong with them as blocks of `ranks` ranks within `size_bytes`, cut on borders of `element_bytes`;
/// "" if nothing is.
std::string fault_of(const Blocks& blocks, int64_t size_bytes, int ranks, int64_t element_bytes);

/// The pieces of one rank's block, ascending.
std::vector<layout::ByteSpan> block_of(const Blocks& blocks, int owner, int ranks);
/// The bytes of one rank's block, of the largest block, and of all blocks.
int64_t block_bytes(const Blocks& blocks, int owner, int ranks);
int64_t largest_block_bytes(const Blocks& blocks, int ranks);
int64_t bytes_of(const Blocks& blocks);
/// The bytes that are in any block; adjacent runs are one span.
std::vector<layout::ByteSpan> covered_by(const Blocks& blocks);

/// "0+4096/1024@3,4096+64@0": bytes from 0 on, of 1,024 each, the first of rank 3; then 64 of rank 0.
std::string to_text(const Blocks& blocks);

}  // namespace lockstep::program
