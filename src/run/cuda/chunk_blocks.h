#pragma once

// Kernels whose blocks take chunks of layout::kNormChunk elements of several parameters.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "device/cuda/kernel.h"
#include "layout/norm_chunks.h"

namespace lockstep::run {

inline constexpr unsigned kChunkThreads = 1024;

/// Pieces that one launch takes in its parameters. A piece has `count` elements and a `first_chunk`; the
/// chunks of pieces follow each other.
template <class Piece, int kMost>
struct ChunkedList {
  static constexpr int kMostPieces = kMost;
  int count;
  Piece piece[kMost];
  int64_t first_chunk;  // of the first piece: that of block 0
};

struct BlockChunk {
  int64_t index;
  int piece;             // of the list
  int64_t begin, count;  // elements within the piece
};

/// A block takes a chunk.
template <class List>
__device__ inline BlockChunk chunk_of_block(const List& list) {
  const int64_t chunk = list.first_chunk + blockIdx.x;
  int p = 0;
  while (p + 1 < list.count && list.piece[p + 1].first_chunk <= chunk) ++p;
  const auto& piece = list.piece[p];
  const int64_t begin = (chunk - piece.first_chunk) * layout::kNormChunk, rest = piece.count - begin;
  return {chunk, p, begin, rest < layout::kNormChunk ? rest : layout::kNormChunk};
}

/// Calls `launch(list, grid)` for lists of all pieces, with a block for each chunk.
template <class List, class Piece, class Launch>
void for_lists(const std::vector<Piece>& pieces, int64_t chunks, const Launch& launch) {
  constexpr size_t kMost = List::kMostPieces;
  for (size_t first = 0; first < pieces.size(); first += kMost) {
    List list{.count = 0, .piece = {}, .first_chunk = pieces[first].first_chunk};
    const size_t last = std::min(first + kMost, pieces.size());
    for (size_t p = first; p < last; ++p) list.piece[list.count++] = pieces[p];
    const int64_t blocks = (last < pieces.size() ? pieces[last].first_chunk : chunks) - list.first_chunk;
    if (blocks > 0)
      launch(list, device::Grid{.blocks = static_cast<unsigned>(blocks), .threads = kChunkThreads});
  }
}

}  // namespace lockstep::run
