#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace lockstep::comm {

// The layout of the memory that the ranks of one host share. Everything is zero at first. Each counter has
// one writer, and is in a cache line that only this writer writes.

/// Rounds that may be in flight at the same time: while peers still read round t, a rank fills the slots of
/// rounds t + 1 to t + kDepth - 1. If ranks only wait for each other, 2, 3 and 4 were measured equal within 5
/// %. If they compute and poll now and then, one poll moves as much as there are slots.
inline constexpr int kDepth = 4;
inline constexpr int64_t kLineBytes = 64;
/// The overhead of a cell, or of a piece of a collective, expressed in bytes.
inline constexpr int64_t kPieceBytes = 256;

/// A rank's progress in the group's collectives, counted in rounds since the group was made.
struct alignas(kLineBytes) RankLine {
  std::atomic<uint64_t> posted;    ///< rounds for which its slot holds its contribution
  std::atomic<uint64_t> reduced;   ///< rounds for which its slot holds its share of the result, too
  std::atomic<uint64_t> finished;  ///< rounds for which it will not read any slot again
  std::array<std::atomic<uint64_t>, kDepth> signatures;  ///< of the operation that a posted round belongs to
};
static_assert(sizeof(RankLine) == kLineBytes && std::atomic<uint64_t>::is_always_lock_free);

/// Messages from one rank to another, in cells; each end counts the cells that it is through with.
struct Ring {
  struct alignas(kLineBytes) End {
    std::atomic<uint64_t> cells;
  };
  End sent, received;
};

/// Precedes the bytes of a cell.
struct alignas(kLineBytes) CellHeader {
  int64_t message_bytes;  ///< of the whole message that the cell is a part of
};

/// Why the group is dead.
struct alignas(kLineBytes) Obituary {
  enum State : uint32_t { alive, being_written, dead };
  std::atomic<uint32_t> state;
  int32_t exit_code;  // both: written before `dead`, constant from then on
  std::array<char, 2040> reason;
};

/// The places of all parts. Memory up to reserved_bytes() is allocated from the start. The rest are outboxes;
/// each is allocated when its rank first sends.
class SharedLayout {
 public:
  /// `chunk_bytes`: what a slot holds, and the most that a cell holds.
  SharedLayout(int size, int64_t chunk_bytes);

  int size() const { return size_; }
  int64_t chunk_bytes() const { return chunk_bytes_; }
  int64_t cell_bytes() const { return cell_bytes_; }  ///< without the header
  static constexpr int kCells = 8;                    ///< of a ring

  int64_t reserved_bytes() const { return outboxes_; }
  int64_t total_bytes() const { return outboxes_ + outbox_bytes() * size_; }
  int64_t outbox(int rank) const { return outboxes_ + outbox_bytes() * rank; }  ///< an offset, as all below
  int64_t outbox_bytes() const;
  int64_t line(int rank) const { return lines_ + rank * kLineBytes; }
  int64_t ring(int from, int to) const;
  int64_t slot(int rank, uint64_t round) const {
    return slots_ + (rank * kDepth + static_cast<int64_t>(round % kDepth)) * slot_bytes_;
  }
  int64_t cell(int from, int to, uint64_t index) const;

 private:
  int size_;
  int64_t chunk_bytes_, slot_bytes_, cell_bytes_;
  int64_t lines_, rings_, slots_, outboxes_;
};

/// The layout at the address of this rank or, if ranks are threads, of this process.
class SharedArea {
 public:
  SharedArea(const SharedLayout& layout, std::byte* base) : layout_(layout), base_(base) {}
  const SharedLayout& layout() const { return layout_; }

  Obituary& obituary() const { return at<Obituary>(0); }
  RankLine& line(int rank) const { return at<RankLine>(layout_.line(rank)); }
  Ring& ring(int from, int to) const { return at<Ring>(layout_.ring(from, to)); }
  std::byte* slot(int rank, uint64_t round) const { return base_ + layout_.slot(rank, round); }
  CellHeader& cell(int from, int to, uint64_t index) const {
    return at<CellHeader>(layout_.cell(from, to, index));
  }

 private:
  template <class T>
  T& at(int64_t offset) const {
    return *reinterpret_cast<T*>(base_ + offset);
  }
  SharedLayout layout_;
  std::byte* base_;
};

}  // namespace lockstep::comm
