#include "comm/shared/collective.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "base/index.h"
#include "comm/copy_bytes.h"
#include "comm/shared/tree_reduce.h"
#include "lockstep/error.h"

namespace lockstep::comm {
namespace {

/// Up to here every rank adds everything itself, which costs n times the additions and saves one meeting.
/// Measured, us in one phase and in two: 2 ranks on 2 cores, 1 KiB 0.2 and 0.3, 4 KiB 0.5 and 0.4, 16 KiB 1.3
/// and 0.9; 4 ranks on 2 cores, 1 KiB 2.3 and 5.7, 16 KiB 5.1 and 5.7, 64 KiB 11.9 and 9.3.
constexpr int64_t kSinglePhaseBytes = 8 << 10;

/// Shares begin at multiples of this many elements: two ranks do not write one cache line.
constexpr int64_t kShareElements = 16;

// An operation in 64 bits: what all ranks must agree on, and what errors tell of another rank's.
struct Signature {
  static constexpr int kCountBits = 40, kRootBits = 15, kOpBits = 2, kTypeBits = 4;
};

uint64_t signature_of(const Operation& operation) {
  uint64_t bits = static_cast<uint64_t>(operation.kind);
  bits = bits << Signature::kTypeBits | static_cast<uint64_t>(operation.dtype);
  bits = bits << Signature::kOpBits | static_cast<uint64_t>(operation.reduce_op);
  bits = bits << Signature::kRootBits | static_cast<uint64_t>(operation.root + 1);
  const uint64_t count = static_cast<uint64_t>(operation.count);
  return bits << Signature::kCountBits | (count & ((uint64_t{1} << Signature::kCountBits) - 1));
}

Operation operation_of(uint64_t bits) {
  const auto take = [&bits](int width) {
    const uint64_t field = bits & ((uint64_t{1} << width) - 1);
    bits >>= width;
    return field;
  };
  Operation operation{OperationKind::barrier};
  operation.count = static_cast<int64_t>(take(Signature::kCountBits));
  operation.root = static_cast<int>(take(Signature::kRootBits)) - 1;
  operation.reduce_op = static_cast<ReduceOp>(take(Signature::kOpBits));
  operation.dtype = static_cast<DType>(take(Signature::kTypeBits));
  operation.kind = static_cast<OperationKind>(bits);
  return operation;
}

int64_t divided_up(int64_t value, int64_t by) { return (value + by - 1) / by; }

}  // namespace

Collective::Collective(const SharedArea& area, int rank)
    : area_(area), rank_(rank), size_(area.layout().size()), own_(area.line(rank)) {
  inputs_.resize(static_cast<size_t>(size_));
}

void Collective::begin(const Operation& operation) {
  operation_ = operation;
  signature_ = signature_of(operation);
  element_bytes_ = size_of(operation.dtype);
  const int64_t chunk = area_.layout().chunk_bytes();
  single_phase_ = operation.block_bytes() <= std::min(chunk, kSinglePhaseBytes);
  const int64_t most = std::max<int64_t>(1, chunk / element_bytes_);
  // An operation of nothing has a round, too: it checks that all ranks are in it.
  const int64_t rounds = std::max<int64_t>(1, divided_up(operation.count, most));
  elements_per_round_ = std::clamp<int64_t>(
      divided_up(divided_up(operation.count, rounds), kShareElements) * kShareElements, 1, most);
  begin_ = finished_;
  end_ =
      begin_ + static_cast<uint64_t>(std::max<int64_t>(1, divided_up(operation.count, elements_per_round_)));
}

int64_t Collective::advance() {
  // What peers wait for comes first.
  if (posted_ < end_ && (posted_ < kDepth || all_finished(posted_ + 1 - kDepth))) {
    const int64_t bytes = post(posted_);
    own_.signatures[posted_ % kDepth].store(signature_, std::memory_order_relaxed);
    own_.posted.store(++posted_, std::memory_order_release);
    return bytes;
  }
  if (reduces_shares()) {
    if (reduced_ < posted_ && all_posted(reduced_ + 1)) {
      check_signatures(reduced_);
      const int64_t bytes = reduce_share(reduced_);
      own_.reduced.store(++reduced_, std::memory_order_release);
      return bytes;
    }
    if (finished_ == reduced_ || !all_reduced(finished_ + 1)) return kWaiting;
  } else {
    if (finished_ == posted_ || !all_posted(finished_ + 1)) return kWaiting;
    check_signatures(finished_);
    reduced_ = finished_ + 1;
    own_.reduced.store(reduced_, std::memory_order_relaxed);
  }
  const int64_t bytes = finish(finished_);
  own_.finished.store(++finished_, std::memory_order_release);
  return bytes;
}

/// Whether the operation takes data out of the slot of `peer`.
bool Collective::reads_from(int peer) const {
  if (peer == rank_) return false;
  return operation_.kind != OperationKind::broadcast || peer == operation_.root;
}

/// Whether a round is finished only once `peer` has come to it. The root of a broadcast reads nothing, but
/// nobody else would see that another rank takes itself for the root, too.
bool Collective::waits_for(int peer) const {
  return reads_from(peer) || (peer != rank_ && operation_.root == rank_);
}

bool Collective::all_posted(uint64_t rounds) {
  if (operation_.kind == OperationKind::broadcast && operation_.root != rank_)
    return area_.line(operation_.root).posted.load(std::memory_order_acquire) >= rounds;
  if (seen_.posted < rounds) look();
  return seen_.posted >= rounds;
}

bool Collective::all_reduced(uint64_t rounds) {
  if (seen_.reduced < rounds) look();
  return seen_.reduced >= rounds;
}

bool Collective::all_finished(uint64_t rounds) {
  if (seen_.finished < rounds) look();
  return seen_.finished >= rounds;
}

/// Reads all three counters of a peer at once: they share a cache line, which may have to come from another
/// core.
void Collective::look() {
  constexpr uint64_t kAll = std::numeric_limits<uint64_t>::max();
  seen_ = {kAll, kAll, kAll};
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    const RankLine& line = area_.line(peer);
    seen_.posted = std::min(seen_.posted, line.posted.load(std::memory_order_acquire));
    seen_.reduced = std::min(seen_.reduced, line.reduced.load(std::memory_order_acquire));
    seen_.finished = std::min(seen_.finished, line.finished.load(std::memory_order_acquire));
  }
}

void Collective::check_signatures(uint64_t round) const {
  for (int peer = 0; peer < size_; ++peer) {
    if (!waits_for(peer)) continue;
    const uint64_t theirs = area_.line(peer).signatures[round % kDepth].load(std::memory_order_relaxed);
    if (theirs != signature_)
      throw CommError(fmt::format("collectives do not match: rank {} started {}, rank {} started {}", rank_,
                                  describe(operation_), peer, describe(operation_of(theirs))),
                      ExitCode::internal);
  }
}

std::vector<std::string> Collective::pending() const {
  std::vector<std::string> names;
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    const RankLine& line = area_.line(peer);
    const uint64_t posted = line.posted.load(std::memory_order_relaxed);
    const bool late = (waits_for(peer) && posted <= finished_) ||
                      (reduces_shares() && line.reduced.load(std::memory_order_relaxed) <= finished_) ||
                      line.finished.load(std::memory_order_relaxed) + kDepth <= posted_;
    if (!late) continue;
    if (posted <= begin_)
      names.push_back(fmt::format("rank {}, which has not reached it", peer));
    else
      names.push_back(
          fmt::format("rank {}, which has reached chunk {} of {}", peer, posted - begin_, end_ - begin_));
  }
  return names;
}

// Rounds and their parts.

Collective::Range Collective::part_of(uint64_t round) const {
  const int64_t first = static_cast<int64_t>(round - begin_) * elements_per_round_;
  return {first, std::min(elements_per_round_, operation_.count - first)};
}

Collective::Range Collective::share_of(int rank, Range part) const {
  const int64_t share = divided_up(divided_up(part.count, size_), kShareElements) * kShareElements;
  const int64_t first = std::min(part.count, share * rank);
  return {first, std::min(share, part.count - first)};
}

/// If there are blocks: that one; otherwise the whole.
std::byte* Collective::block(int index) const {
  return static_cast<std::byte*>(operation_.data) + index * operation_.block_bytes();
}

int64_t Collective::post(uint64_t round) {
  switch (operation_.kind) {
    case OperationKind::all_reduce:
      if (!single_phase_) return copy_shares_in(round);
      break;
    case OperationKind::all_gather:
      break;
    case OperationKind::broadcast:
      if (operation_.root != rank_) return kPieceBytes;
      break;
    default:
      return kPieceBytes;
  }
  const Range part = part_of(round);
  const int own_block = operation_.kind == OperationKind::all_gather ? rank_ : 0;
  copy_bytes(area_.slot(rank_, round), block(own_block) + part.first * element_bytes_,
             part.count * element_bytes_);
  return part.count * element_bytes_ + kPieceBytes;
}

int64_t Collective::finish(uint64_t round) {
  switch (operation_.kind) {
    case OperationKind::all_reduce:
      return single_phase_ ? reduce_all(round) : copy_shares_out(round);
    case OperationKind::all_gather:
    case OperationKind::broadcast:
      return copy_slots_out(round);
    default:
      return kPieceBytes;
  }
}

/// All of the chunk but the own share: what lies before it and what lies behind it.
int64_t Collective::copy_shares_in(uint64_t round) {
  const Range part = part_of(round), own = share_of(rank_, part);
  std::byte* const slot = area_.slot(rank_, round);
  const std::byte* const data = block(0) + part.first * element_bytes_;
  const int64_t behind = (own.first + own.count) * element_bytes_;
  copy_bytes(slot, data, own.first * element_bytes_);
  copy_bytes(slot + behind, data + behind, part.count * element_bytes_ - behind);
  return part.count * element_bytes_ + kPieceBytes;
}

int64_t Collective::reduce_share(uint64_t round) {
  const Range part = part_of(round), own = share_of(rank_, part);
  const int64_t offset = own.first * element_bytes_;
  std::byte* const data = block(0) + part.first * element_bytes_ + offset;
  for (int peer = 0; peer < size_; ++peer)
    nth(inputs_, peer) = peer == rank_ ? data : area_.slot(peer, round) + offset;
  std::byte* const result = area_.slot(rank_, round) + offset;
  reduce_along_tree(inputs_, result, own.count, operation_.dtype, operation_.reduce_op);
  copy_bytes(data, result, own.count * element_bytes_);
  return own.count * element_bytes_ * size_ + kPieceBytes;
}

int64_t Collective::copy_shares_out(uint64_t round) {
  const Range part = part_of(round);
  std::byte* const data = block(0) + part.first * element_bytes_;
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    const Range share = share_of(peer, part);
    const int64_t offset = share.first * element_bytes_;
    copy_bytes(data + offset, area_.slot(peer, round) + offset, share.count * element_bytes_);
  }
  return part.count * element_bytes_ + kPieceBytes;
}

int64_t Collective::reduce_all(uint64_t round) {
  for (int peer = 0; peer < size_; ++peer) nth(inputs_, peer) = area_.slot(peer, round);
  reduce_along_tree(inputs_, block(0), operation_.count, operation_.dtype, operation_.reduce_op);
  return operation_.block_bytes() * size_ + kPieceBytes;
}

int64_t Collective::copy_slots_out(uint64_t round) {
  const Range part = part_of(round);
  int64_t bytes = kPieceBytes;
  for (int peer = 0; peer < size_; ++peer) {
    if (!reads_from(peer)) continue;
    const int to = operation_.kind == OperationKind::all_gather ? peer : 0;
    copy_bytes(block(to) + part.first * element_bytes_, area_.slot(peer, round), part.count * element_bytes_);
    bytes += part.count * element_bytes_;
  }
  return bytes;
}

}  // namespace lockstep::comm
