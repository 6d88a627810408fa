#include "parallel/gradient_sync.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <utility>
#include <vector>

#include "base/index.h"
#include "lockstep/error.h"
#include "parallel/bucket_writer.h"
#include "parallel/server_sync.h"

namespace lockstep::parallel {
namespace {

/// Below this many bytes a round trip costs more than the bytes that halving saves.
constexpr int64_t kExchangeWholeBytes = 16 * 1024;
constexpr int64_t kShardAlignment = 64;

/// The shards that a worker still exchanges, once it has exchanged with all workers that differ from it in
/// bits below `distance`: those of workers that have these bits alike, at positions next to each other.
Spans shards_alike(const BucketSync& sync, int worker, int distance) {
  const int alike = sync.workers / distance;  // so many workers
  const int first = layout::reversed_bits(worker & (distance - 1), sync.workers);
  return sync.shards.parts(first, first + alike);
}

/// `whole`: of all bytes in every round.
void write_halving(const BucketSync& sync, bool whole) {
  BucketWriter writer(sync);
  const int grad = sync.slots[0], me = sync.worker;
  const Spans all{{0, writer.bucket_bytes()}};
  for (int distance = 1; distance < sync.workers; distance *= 2) {
    const int peer = me ^ distance;
    const Spans keep = whole ? all : shards_alike(sync, me, 2 * distance);
    const Spans give = whole ? all : shards_alike(sync, peer, 2 * distance);
    const int received = writer.receive_buffer(fmt::format("d{}", distance), keep);
    const Spans packed = BucketWriter::packed(keep);
    writer.begin_exchange();
    writer.send(peer, grad, give);
    writer.receive(peer, received, packed);
    writer.end_exchange();
    writer.add(grad, keep, received, packed);
  }
}

void write_doubling(const BucketSync& sync, int buffer) {
  BucketWriter writer(sync);
  for (int distance = sync.workers / 2; distance >= 1; distance /= 2) {
    const int peer = sync.worker ^ distance;
    writer.begin_exchange();
    writer.send(peer, buffer, shards_alike(sync, sync.worker, 2 * distance));
    writer.receive(peer, buffer, shards_alike(sync, peer, 2 * distance));
    writer.end_exchange();
  }
}

/// Workers of the tree over all of them that fold by halving: a perfect tree of their own.
struct Block {
  int first, size;
};

/// As the canonical tree splits: a block, and what is left of it to the right.
std::vector<Block> blocks_of(int workers) {
  std::vector<Block> blocks;
  for (int first = 0; first < workers; first += blocks.back().size)
    blocks.push_back({first, static_cast<int>(std::bit_floor(static_cast<unsigned>(workers - first)))});
  return blocks;
}

Shards shifted(Shards shards, int64_t begin) {
  if (begin == 0) return shards;
  return {.position = std::move(shards.position),
          .parts = [begin, parts = std::move(shards.parts)](int first, int last) {
            Spans spans = parts(first, last);
            for (layout::ByteSpan& span : spans) span = {span.begin + begin, span.end + begin};
            return spans;
          }};
}

/// A tree over workers whose number is no power of two, block by block.
class BlockTree {
 public:
  explicit BlockTree(const BucketSync& sync)
      : sync_(sync),
        writer_(sync),
        blocks_(blocks_of(sync.workers)),
        shards_(shifted(equal_shards(writer_.bucket_bytes(), blocks_.front().size, true), sync.begin)) {
    while (blocks_[own_].first + blocks_[own_].size <= sync.worker) ++own_;
  }

  /// Afterwards every worker of the first block has its part of the whole sum.
  void sum() {
    const BucketSync own = within_block();
    write_halving(own, false);
    if (own_ + 1 < blocks_.size()) add_from_right();
    if (own_ > 0) exchange_with(own_ - 1, Direction::send);
  }
  /// Afterwards every worker has all of it.
  void gather() {
    if (own_ > 0) exchange_with(own_ - 1, Direction::receive);
    if (own_ + 1 < blocks_.size()) exchange_with(own_ + 1, Direction::send);
    write_doubling(within_block(), sync_.slots[0]);
  }

 private:
  enum class Direction { send, receive };

  BucketSync within_block() const {
    const Block block = blocks_[own_];
    BucketSync own = sync_;
    own.first = block.first;
    own.worker = sync_.worker - block.first;
    own.workers = block.size;
    own.shards = {.position = [size = block.size](int worker) { return layout::reversed_bits(worker, size); },
                  .parts = [this, each = blocks_.front().size / block.size](
                               int first, int last) { return shards_.parts(first * each, last * each); }};
    return own;
  }
  /// What a worker of a block holds of its block's sum.
  Spans part_of(size_t block, int local) const {
    const int size = blocks_[block].size, each = blocks_.front().size / size;
    const int position = layout::reversed_bits(local, size);
    return shards_.parts(position * each, (position + 1) * each);
  }
  /// A worker of the smaller of two blocks holds what several of the larger one do: those whose numbers end
  /// with the same bits as its own. Calls visit(worker, the bytes that both hold).
  template <class Visit>
  void for_each_partner(size_t block, Visit&& visit) const {
    const int local = sync_.worker - blocks_[own_].first, size = blocks_[block].size,
              own_size = blocks_[own_].size;
    for (int other = local % size; other < size; other += std::min(own_size, size))
      visit(blocks_[block].first + other, size > own_size ? part_of(block, other) : part_of(own_, local));
  }
  void exchange_with(size_t block, Direction direction) {
    writer_.begin_exchange();
    for_each_partner(block, [&](int worker, const Spans& part) {
      if (direction == Direction::send)
        writer_.send(worker, sync_.slots[0], part);
      else
        writer_.receive(worker, sync_.slots[0], part);
    });
    writer_.end_exchange();
  }
  void add_from_right() {
    const Spans mine = part_of(own_, sync_.worker - blocks_[own_].first), packed = BucketWriter::packed(mine);
    const int received = writer_.receive_buffer("right", mine);
    writer_.begin_exchange();
    for_each_partner(own_ + 1, [&](int worker, const Spans&) { writer_.receive(worker, received, packed); });
    writer_.end_exchange();
    writer_.add(sync_.slots[0], mine, received, packed);
  }

  const BucketSync& sync_;
  BucketWriter writer_;
  std::vector<Block> blocks_;
  Shards shards_;
  size_t own_ = 0;  // block
};

void write_all_reduce(const BucketSync& sync, bool ordered) {
  if (sync.workers == 1) return;
  program::Instruction reduce = BucketWriter(sync).instruction(program::InstructionKind::all_reduce);
  reduce.ordered = ordered;
  reduce.operands.push_back(BucketWriter(sync).operand(program::Role::data, 0, program::Access::read_write,
                                                       sync.slots[0], {0, sync.size_bytes}));
  sync.program.instructions.push_back(std::move(reduce));
}

}  // namespace

Shards placed_shards(const layout::Ownership& ownership, int segment,
                     std::function<std::vector<layout::ByteSpan>(int first, int last)> parts) {
  const int first = ownership.rank_of(ownership.stage_of_segment(segment), 0);
  return {.position = [&ownership, first](int owner) { return ownership.position_of(first + owner); },
          .parts = std::move(parts)};
}

Shards parameter_shards(const layout::Ownership& ownership, int segment) {
  return placed_shards(ownership, segment, [&ownership, segment](int first, int last) {
    const layout::ByteSpan span = ownership.updated(segment, first, last);
    return span.empty() ? std::vector<layout::ByteSpan>{} : std::vector<layout::ByteSpan>{span};
  });
}

Shards equal_shards(int64_t size_bytes, int workers, bool reversed) {
  const int64_t step = (size_bytes / workers + kShardAlignment - 1) / kShardAlignment * kShardAlignment;
  return {.position = [=](int worker) { return reversed ? layout::reversed_bits(worker, workers) : worker; },
          .parts =
              [=](int first, int last) {
                const layout::ByteSpan span{std::min(first * step, size_bytes),
                                            last == workers ? size_bytes : std::min(last * step, size_bytes)};
                return span.empty() ? Spans{} : Spans{span};
              }};
}

void write_library_all_reduce(const BucketSync& sync) { write_all_reduce(sync, false); }

void write_ordered_all_reduce(const BucketSync& sync) { write_all_reduce(sync, true); }

bool sums_whole(const BucketSync& sync, const layout::BatchDivision& division) {
  return division.folds_by_halving && BucketWriter(sync).bucket_bytes() <= kExchangeWholeBytes;
}

void write_tree_reduce_scatter(const BucketSync& sync, const layout::BatchDivision& division) {
  if (sync.workers == 1) return;
  if (division.folds_by_halving) {
    write_halving(sync, sums_whole(sync, division));
  } else {
    const Contributions contributions = contributions_of_workers(division);
    write_server_fold(sync, {.ranks = {0, sync.workers}, .contributions = contributions, .arrivals = {}});
  }
}

void write_tree_all_reduce(const BucketSync& sync) {
  if (sync.workers == 1) return;
  BlockTree tree(sync);
  tree.sum();
  tree.gather();
}

void write_tree_all_gather(const BucketSync& sync, const layout::BatchDivision& division, int buffer) {
  if (sync.workers == 1) return;
  if (division.folds_by_halving) {
    write_doubling(sync, buffer);
  } else {
    const layout::ByteSpan whole{0, sync.program.buffer(buffer).size_bytes / size_of(sync.dtype) * 4};
    std::vector<Recipient> workers;
    for (int worker = 0; worker < sync.workers; ++worker) workers.push_back({worker, whole});
    write_server_gather(sync, {0, sync.workers}, workers, whole, buffer);
  }
}

}  // namespace lockstep::parallel
