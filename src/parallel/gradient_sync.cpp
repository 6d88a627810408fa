#include "parallel/gradient_sync.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <vector>

#include "base/index.h"
#include "lockstep/error.h"

namespace lockstep::parallel {
namespace {

/// Below this many bytes a round trip costs more than the bytes that halving saves.
constexpr int64_t kExchangeWholeBytes = 16 * 1024;
constexpr int64_t kShardAlignment = 64;

using Spans = std::vector<layout::ByteSpan>;

int64_t size_of(const Spans& spans) {
  int64_t size = 0;
  for (const auto& span : spans) size += span.size();
  return size;
}

class Writer {
 public:
  explicit Writer(const BucketSync& sync) : sync_(sync) {}

  int64_t bucket_bytes() const { return sync_.program.buffer(sync_.slots[0]).size_bytes; }

  int receive_buffer(std::string_view what, const Spans& spans) {
    return sync_.program.add_buffer(fmt::format("receive.{}.{}", sync_.segment, what), program::Space::arena,
                                    program::Category::workspace, std::max(size_of(spans), int64_t{1}));
  }
  /// The same bytes, one after the other.
  static Spans packed(const Spans& spans) {
    Spans result;
    int64_t at = 0;
    for (const auto& span : spans) {
      result.push_back({at, at + span.size()});
      at += span.size();
    }
    return result;
  }

  Spans shards(int first, int last) const { return sync_.shards.parts(first, last); }
  Spans shard_of(int owner) const {
    const int position = sync_.shards.position(owner);
    return shards(position, position + 1);
  }

  void begin_exchange() { exchange_ = instruction(program::InstructionKind::exchange); }
  void send(int peer, int buffer, const Spans& spans) {
    transfer(program::Role::send, program::Access::read, peer, buffer, spans);
  }
  void receive(int peer, int buffer, const Spans& spans) {
    transfer(program::Role::receive, program::Access::write, peer, buffer, spans);
  }
  void end_exchange() {
    if (!exchange_.operands.empty()) sync_.program.instructions.push_back(std::move(exchange_));
    exchange_ = {};
  }

  /// REQUIRES: `to` and `from` are spans of the same sizes.
  void add(int destination, const Spans& to, int source, const Spans& from) {
    add_on(sync_.lane, destination, to, source, from);
  }
  void add_on(int lane, int destination, const Spans& to, int source, const Spans& from) {
    for (size_t i = 0; i < to.size(); ++i) {
      program::Instruction add = instruction(program::InstructionKind::add);
      add.lane = lane;
      add.group = -1;
      add.deadline = program::DeadlineClass::compute;
      add.operands.push_back({program::Role::destination,
                              0,
                              program::Access::read_write,
                              {destination, to[i].begin, to[i].size()}});
      add.operands.push_back(
          {program::Role::source, 0, program::Access::read, {source, from[i].begin, from[i].size()}});
      sync_.program.instructions.push_back(std::move(add));
    }
  }

  program::Instruction instruction(program::InstructionKind kind) const {
    program::Instruction result;
    result.kind = kind;
    result.lane = sync_.lane;
    result.segment = sync_.segment;
    result.group = sync_.group;
    result.deadline = program::DeadlineClass::communication;
    return result;
  }

 private:
  void transfer(program::Role role, program::Access access, int peer, int buffer, const Spans& spans) {
    for (const auto& span : spans) {
      const int index = static_cast<int>(exchange_.operands.size());
      exchange_.operands.push_back(
          {role, index, access, {buffer, span.begin, span.size()}, sync_.first + peer});
    }
  }

  const BucketSync& sync_;
  program::Instruction exchange_;
};

/// What a worker still has to do with when all that differ from it in bits below `distance` have gone their
/// ways: the shards of those that have these bits alike, at positions next to each other.
Spans shards_alike(const BucketSync& sync, int worker, int distance) {
  const int alike = sync.workers / distance;  // so many workers
  const int first = layout::reversed_bits(worker & (distance - 1), sync.workers);
  return sync.shards.parts(first, first + alike);
}

/// `whole`: of all bytes in every round.
void write_halving(const BucketSync& sync, bool whole) {
  Writer writer(sync);
  const int grad = sync.slots[0], me = sync.worker;
  const Spans all{{0, writer.bucket_bytes()}};
  for (int distance = 1; distance < sync.workers; distance *= 2) {
    const int peer = me ^ distance;
    const Spans keep = whole ? all : shards_alike(sync, me, 2 * distance);
    const Spans give = whole ? all : shards_alike(sync, peer, 2 * distance);
    const int received = writer.receive_buffer(fmt::format("d{}", distance), keep);
    const Spans packed = Writer::packed(keep);
    writer.begin_exchange();
    writer.send(peer, grad, give);
    writer.receive(peer, received, packed);
    writer.end_exchange();
    writer.add(grad, keep, received, packed);
  }
}

void write_doubling(const BucketSync& sync, int buffer) {
  Writer writer(sync);
  for (int distance = sync.workers / 2; distance >= 1; distance /= 2) {
    const int peer = sync.worker ^ distance;
    writer.begin_exchange();
    writer.send(peer, buffer, shards_alike(sync, sync.worker, 2 * distance));
    writer.receive(peer, buffer, shards_alike(sync, peer, 2 * distance));
    writer.end_exchange();
  }
}

/// Where a rank holds the parts of a shard: a worker in their places, a server that is no worker one after
/// the other, since it holds nothing else.
Spans held(const BucketSync& sync, const Spans& shard) {
  return sync.worker < sync.workers ? shard : Writer::packed(shard);
}

bool contributes(const Contributions& contributions, int rank) {
  return std::any_of(contributions.from.begin(), contributions.from.end(),
                     [rank](const Contributor& one) { return one.rank == rank; });
}

void write_gather(const BucketSync& sync, const Servers& owners, int buffer) {
  Writer writer(sync);
  const int me = sync.worker;
  writer.begin_exchange();
  for (const Contributor& to : owners.contributions.from)
    if (owners.ranks.contains(me) && to.rank != me)
      writer.send(to.rank, buffer, held(sync, writer.shard_of(me)));
  for (int owner = owners.ranks.first; owner < owners.ranks.end(); ++owner)
    if (contributes(owners.contributions, me) && owner != me)
      writer.receive(owner, buffer, writer.shard_of(owner));
  writer.end_exchange();
}

void write_fold_at(const BucketSync& sync, const Servers& owners) {
  Writer writer(sync);
  const int me = sync.worker;
  const bool sends = contributes(owners.contributions, me);
  const Spans shard = owners.ranks.contains(me) ? writer.shard_of(me) : Spans{};
  const Spans mine = held(sync, shard), packed = Writer::packed(shard);

  // All contributors' nodes of my shard come to me; my nodes of every other shard go to its owner.
  struct Part {
    int buffer;
    const Spans* spans;
  };
  std::vector<Part> parts;
  std::vector<layout::TreeNode> nodes;
  writer.begin_exchange();
  for (int owner = owners.ranks.first; owner < owners.ranks.end() && sends; ++owner) {
    if (owner == me) continue;
    for (const int slot : sync.slots) writer.send(owner, slot, writer.shard_of(owner));
  }
  int root_part = -1;  // where the sum shall be: the first of my own, or else the first that arrives
  for (const Contributor& from : owners.contributions.from) {
    if (mine.empty()) break;
    if (from.rank == me || (!sends && root_part < 0)) root_part = static_cast<int>(parts.size());
    for (size_t i = 0; i < from.nodes.size(); ++i) {
      nodes.push_back(from.nodes[i]);
      if (from.rank == me) {
        parts.push_back({sync.slots[i], &mine});
        continue;
      }
      if (static_cast<int>(parts.size()) == root_part)
        parts.push_back({sync.slots[0], &mine});
      else if (sync.worker >= sync.workers)
        parts.push_back({nth(owners.arrivals, static_cast<int>(parts.size()) - 1), &packed});
      else
        parts.push_back({writer.receive_buffer(fmt::format("w{}.{}", from.rank, i), shard), &packed});
      writer.receive(from.rank, parts.back().buffer, *parts.back().spans);
    }
  }
  writer.end_exchange();
  if (mine.empty()) return;

  // Whichever of the two already holds my slot 0 takes the sum, so that the root ends up there.
  const int add_lane = owners.add_lane >= 0 ? owners.add_lane : sync.lane;
  const int root = layout::fold_parts(owners.contributions.leaves, nodes, [&](int a, int b) {
    const int to = b == root_part ? b : a;
    const Part &destination = nth(parts, to), &source = nth(parts, to == a ? b : a);
    writer.add_on(add_lane, destination.buffer, *destination.spans, source.buffer, *source.spans);
    return to;
  });
  ensure(root == root_part, "the folded tree must end in the owner's slot 0");
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

/// A tree over workers whose number is no power of two, block by block.
class BlockTree {
 public:
  explicit BlockTree(const BucketSync& sync)
      : sync_(sync),
        writer_(sync),
        blocks_(blocks_of(sync.workers)),
        shards_(equal_shards(writer_.bucket_bytes(), blocks_.front().size, true)) {
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
    const Spans mine = part_of(own_, sync_.worker - blocks_[own_].first), packed = Writer::packed(mine);
    const int received = writer_.receive_buffer("right", mine);
    writer_.begin_exchange();
    for_each_partner(own_ + 1, [&](int worker, const Spans&) { writer_.receive(worker, received, packed); });
    writer_.end_exchange();
    writer_.add(sync_.slots[0], mine, received, packed);
  }

  const BucketSync& sync_;
  Writer writer_;
  std::vector<Block> blocks_;
  Shards shards_;
  size_t own_ = 0;  // block
};

void write_all_reduce(const BucketSync& sync, bool ordered) {
  if (sync.workers == 1) return;
  program::Instruction reduce = Writer(sync).instruction(program::InstructionKind::all_reduce);
  reduce.ordered = ordered;
  reduce.operands.push_back(
      {program::Role::data, 0, program::Access::read_write, sync.program.whole(sync.slots[0])});
  sync.program.instructions.push_back(std::move(reduce));
}

Spans without(const layout::ByteSpan& whole, const Spans& left_out) {
  Spans rest;
  int64_t at = whole.begin;
  for (const layout::ByteSpan& span : left_out) {
    if (span.begin > at) rest.push_back({at, span.begin});
    at = std::max(at, span.end);
  }
  if (at < whole.end) rest.push_back({at, whole.end});
  return rest;
}

}  // namespace

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
  return division.folds_by_halving && Writer(sync).bucket_bytes() <= kExchangeWholeBytes;
}

void write_tree_reduce_scatter(const BucketSync& sync, const layout::BatchDivision& division) {
  if (sync.workers == 1) return;
  if (division.folds_by_halving) {
    write_halving(sync, sums_whole(sync, division));
  } else {
    const Contributions contributions = contributions_of_workers(division);
    write_fold_at(sync, {.ranks = {0, sync.workers}, .contributions = contributions, .arrivals = {}});
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
    const Contributions contributions = contributions_of_workers(division);
    write_gather(sync, {.ranks = {0, sync.workers}, .contributions = contributions, .arrivals = {}}, buffer);
  }
}

Contributions contributions_of_workers(const layout::BatchDivision& division) {
  Contributions contributions{.from = {}, .leaves = division.leaves};
  for (int worker = 0; worker < division.workers; ++worker) {
    const layout::TreeNode leaves = division.leaves_of(worker);
    contributions.from.push_back({worker, layout::nodes_within(division.leaves, leaves.begin, leaves.end)});
  }
  return contributions;
}

void write_server_fold(const BucketSync& sync, const Servers& servers) { write_fold_at(sync, servers); }

void write_server_gather(const BucketSync& sync, const Servers& servers, int buffer) {
  write_gather(sync, servers, buffer);
}

std::vector<int> write_host_fold(const BucketSync& sync, const std::vector<int>& host,
                                 const layout::BatchDivision& division, bool any_order) {
  if (host.size() == 1) return {sync.slots.begin(), sync.slots.end()};
  Writer writer(sync);
  const int me = sync.worker, leader = host.front();
  const Spans all{{0, writer.bucket_bytes()}};
  std::vector<int> buffers;
  std::vector<layout::TreeNode> nodes;
  writer.begin_exchange();
  for (const int worker : host) {
    const auto leaves = division.leaves_of(worker);
    const auto brought = layout::nodes_within(division.leaves, leaves.begin, leaves.end);
    for (size_t i = 0; i < brought.size(); ++i) {
      if (me != leader) {
        if (worker == me) writer.send(leader, sync.slots[i], all);
        continue;
      }
      nodes.push_back(brought[i]);
      buffers.push_back(worker == me ? sync.slots[i]
                                     : writer.receive_buffer(fmt::format("h{}.{}", worker, i), all));
      if (worker != me) writer.receive(worker, buffers.back(), all);
    }
  }
  writer.end_exchange();
  if (me != leader) return {};
  const auto add = [&](int a, int b) {
    writer.add(nth(buffers, a), all, nth(buffers, b), all);
    return a;
  };
  if (any_order) {
    for (int i = 1; i < static_cast<int>(buffers.size()); ++i) add(0, i);
    return {buffers[0]};
  }
  std::vector<int> left;
  for (const int part : layout::fold_within(division.leaves, nodes, add)) left.push_back(nth(buffers, part));
  return left;
}

void write_host_gather(const BucketSync& sync, const std::vector<int>& host, const layout::RankRange& owners,
                       int buffer) {
  if (host.size() == 1) return;
  Writer writer(sync);
  const layout::ByteSpan all{0, sync.program.buffer(buffer).size_bytes};
  const auto wanted_by = [&](int worker) {
    return without(all, owners.contains(worker) ? writer.shard_of(worker) : Spans{});
  };
  const int me = sync.worker, leader = host.front();
  writer.begin_exchange();
  for (const int worker : host)
    if (me == leader && worker != me) writer.send(worker, buffer, wanted_by(worker));
  if (me != leader) writer.receive(leader, buffer, wanted_by(me));
  writer.end_exchange();
}

Contributions contributions_of_hosts(const std::vector<std::vector<int>>& hosts,
                                     const layout::BatchDivision& division, bool any_order) {
  Contributions contributions{.from = {},
                              .leaves = any_order ? static_cast<int>(hosts.size()) : division.leaves};
  for (const auto& host : hosts) {
    Contributor& one = contributions.from.emplace_back(Contributor{host.front(), {}});
    if (any_order) {
      const int number = static_cast<int>(contributions.from.size()) - 1;
      one.nodes.push_back({number, number + 1});
      continue;
    }
    std::vector<layout::TreeNode> nodes;
    for (const int worker : host) {
      const auto leaves = division.leaves_of(worker);
      const auto brought = layout::nodes_within(division.leaves, leaves.begin, leaves.end);
      nodes.insert(nodes.end(), brought.begin(), brought.end());
    }
    // Sums of two siblings are their parent.
    const auto parent = [&](int a, int b) {
      nth(nodes, a) = {nth(nodes, a).begin, nth(nodes, b).end};
      return a;
    };
    for (const int part : layout::fold_within(division.leaves, std::vector(nodes), parent))
      one.nodes.push_back(nth(nodes, part));
  }
  return contributions;
}

}  // namespace lockstep::parallel
