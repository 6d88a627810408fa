#include "comm/shared/memory_layout.h"

#include <algorithm>

namespace lockstep::comm {
namespace {

constexpr int64_t kPageBytes = 4096;

/// What one rank may have on its way to all others, so that the memory of a group grows with its size and not
/// with the number of its pairs (beyond a KiB a cell).
constexpr int64_t kOutboxBytes = int64_t{1} << 20;
constexpr int64_t kLargestCell = 32 << 10, kSmallestCell = 1 << 10;

int64_t rounded_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

}  // namespace

SharedLayout::SharedLayout(int size, int64_t chunk_bytes) : size_(size), chunk_bytes_(chunk_bytes) {
  // Room for one element, however small the chunks are.
  slot_bytes_ = rounded_up(std::max<int64_t>(chunk_bytes, 8), kLineBytes);
  const int64_t cell = kOutboxBytes / std::max(1, size - 1) / kCells;
  cell_bytes_ = std::min(std::clamp(cell, kSmallestCell, kLargestCell), chunk_bytes);
  lines_ = static_cast<int64_t>(sizeof(Obituary));
  rings_ = lines_ + size * kLineBytes;
  // A group of one moves nothing.
  slots_ = rounded_up(rings_ + int64_t{size} * size * static_cast<int64_t>(sizeof(Ring)), kPageBytes);
  outboxes_ = rounded_up(slots_ + (size > 1 ? size * kDepth * slot_bytes_ : 0), kPageBytes);
}

int64_t SharedLayout::ring(int from, int to) const {
  return rings_ + (int64_t{from} * size_ + to) * static_cast<int64_t>(sizeof(Ring));
}

int64_t SharedLayout::outbox_bytes() const {
  const int64_t cell = rounded_up(cell_bytes_, kLineBytes) + static_cast<int64_t>(sizeof(CellHeader));
  return rounded_up(cell * kCells * (size_ - 1), kPageBytes);
}

int64_t SharedLayout::cell(int from, int to, uint64_t index) const {
  const int64_t cell = rounded_up(cell_bytes_, kLineBytes) + static_cast<int64_t>(sizeof(CellHeader));
  const int64_t which = int64_t{to < from ? to : to - 1} * kCells + static_cast<int64_t>(index % kCells);
  return outbox(from) + which * cell;
}

}  // namespace lockstep::comm
