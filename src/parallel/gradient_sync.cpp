#include "parallel/gradient_sync.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "lockstep/error.h"

namespace lockstep {
namespace {

/// Below this many bytes a round trip costs more than the bytes that halving saves.
constexpr int64_t kExchangeWholeBytes = 16 * 1024;
constexpr int64_t kShardAlignment = 64;

struct Region {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
};

/// Shard `index` of `count` of a bucket, on aligned borders; later shards may be smaller or empty.
Region shard(int64_t size_bytes, int index, int count) {
  const int64_t step = (size_bytes / count + kShardAlignment - 1) / kShardAlignment * kShardAlignment;
  return {std::min(index * step, size_bytes), index + 1 == count ? size_bytes : std::min((index + 1) * step, size_bytes)};
}

class Writer {
 public:
  explicit Writer(const BucketSync& sync)
      : sync_(sync), size_bytes_(sync.program.buffers[static_cast<size_t>(sync.slots[0])].size_bytes) {}

  int64_t size_bytes() const { return size_bytes_; }

  int receive_buffer(std::string_view what, int64_t bytes) {
    return sync_.program.add_buffer(fmt::format("receive.{}.{}", sync_.segment, what), Space::arena, Category::workspace, bytes);
  }

  void begin_exchange() { exchange_ = instruction(InstructionKind::exchange); }
  void send(int peer, int buffer, Region region) { transfer(Role::send, Access::read, peer, buffer, region); }
  void receive(int peer, int buffer, Region region) { transfer(Role::receive, Access::write, peer, buffer, region); }
  void end_exchange() {
    if (!exchange_.operands.empty()) sync_.program.instructions.push_back(std::move(exchange_));
    exchange_ = {};
  }

  void add(int destination, Region to, int source, Region from) {
    if (to.size() == 0) return;
    Instruction add = instruction(InstructionKind::add);
    add.group = -1;
    add.deadline = DeadlineClass::compute;
    add.operands.push_back({Role::destination, 0, Access::read_write, {destination, to.begin, to.size()}});
    add.operands.push_back({Role::source, 0, Access::read, {source, from.begin, from.size()}});
    sync_.program.instructions.push_back(std::move(add));
  }

  Instruction instruction(InstructionKind kind) const {
    Instruction result;
    result.kind = kind;
    result.lane = sync_.lane;
    result.segment = sync_.segment;
    result.group = sync_.group;
    result.deadline = DeadlineClass::communication;
    return result;
  }

 private:
  void transfer(Role role, Access access, int peer, int buffer, Region region) {
    if (region.size() == 0) return;
    const int index = static_cast<int>(exchange_.operands.size());
    exchange_.operands.push_back({role, index, access, {buffer, region.begin, region.size()}, peer});
  }

  const BucketSync& sync_;
  int64_t size_bytes_;
  Instruction exchange_;
};

void write_halving_and_doubling(const BucketSync& sync, int workers) {
  Writer writer(sync);
  const int grad = sync.slots[0], me = sync.worker;
  if (writer.size_bytes() <= kExchangeWholeBytes) {
    const Region all{0, writer.size_bytes()};
    for (int distance = 1; distance < workers; distance *= 2) {
      const int received = writer.receive_buffer(fmt::format("d{}", distance), all.size());
      writer.begin_exchange();
      writer.send(me ^ distance, grad, all);
      writer.receive(me ^ distance, received, all);
      writer.end_exchange();
      writer.add(grad, all, received, all);
    }
    return;
  }
  Region mine{0, writer.size_bytes()};
  std::vector<Region> kept;     // before each halving
  for (int distance = 1; distance < workers; distance *= 2) {
    kept.push_back(mine);
    const Region halves[2] = {shard(mine.size(), 0, 2), shard(mine.size(), 1, 2)};
    const int upper = (me & distance) != 0 ? 1 : 0;
    const Region keep{mine.begin + halves[upper].begin, mine.begin + halves[upper].end};
    const Region give{mine.begin + halves[1 - upper].begin, mine.begin + halves[1 - upper].end};
    const int received = writer.receive_buffer(fmt::format("d{}", distance), std::max(keep.size(), int64_t{1}));
    writer.begin_exchange();
    writer.send(me ^ distance, grad, give);
    writer.receive(me ^ distance, received, {0, keep.size()});
    writer.end_exchange();
    writer.add(grad, keep, received, {0, keep.size()});
    mine = keep;
  }
  for (int distance = workers / 2; distance >= 1; distance /= 2) {
    const Region whole = kept.back();
    kept.pop_back();
    const Region other = mine.begin == whole.begin ? Region{mine.end, whole.end} : Region{whole.begin, mine.begin};
    writer.begin_exchange();
    writer.send(me ^ distance, grad, mine);
    writer.receive(me ^ distance, grad, other);
    writer.end_exchange();
    mine = whole;
  }
}

void write_gather_of_shards(Writer& writer, int grad, int me, int workers) {
  writer.begin_exchange();
  for (int peer = 0; peer < workers; ++peer)
    if (peer != me) writer.send(peer, grad, shard(writer.size_bytes(), me, workers));
  for (int peer = 0; peer < workers; ++peer)
    if (peer != me) writer.receive(peer, grad, shard(writer.size_bytes(), peer, workers));
  writer.end_exchange();
}

void write_owner_fold(const BucketSync& sync, const BatchDivision& division) {
  Writer writer(sync);
  const int me = sync.worker, workers = division.workers;
  const Region mine = shard(writer.size_bytes(), me, workers);

  // Every worker's nodes of my shard come to me; my nodes of every other shard go to its owner.
  struct Part {
    TreeNode node;
    int buffer;
    Region region;
  };
  std::vector<Part> parts;
  std::vector<TreeNode> nodes;
  writer.begin_exchange();
  for (int peer = 0; peer < workers; ++peer) {
    if (peer == me) continue;
    for (const int slot : sync.slots) writer.send(peer, slot, shard(writer.size_bytes(), peer, workers));
  }
  int first_own = -1;
  for (int peer = 0; peer < workers; ++peer) {
    const auto leaves = division.leaves_of(peer);
    const auto held = nodes_within(division.leaves, leaves.begin, leaves.end);
    if (peer == me) first_own = static_cast<int>(parts.size());
    for (size_t i = 0; i < held.size(); ++i) {
      nodes.push_back(held[i]);
      if (peer == me) {
        parts.push_back({held[i], sync.slots[i], mine});
      } else {
        const int buffer = writer.receive_buffer(fmt::format("w{}.{}", peer, i), std::max(mine.size(), int64_t{1}));
        parts.push_back({held[i], buffer, {0, mine.size()}});
        writer.receive(peer, buffer, {0, mine.size()});
      }
    }
  }
  writer.end_exchange();

  // Whichever of the two already holds my slot 0 takes the sum, so that the root ends up there.
  const int root = fold_parts(division.leaves, nodes, [&](int a, int b) {
    const int to = b == first_own ? b : a;
    const int from = to == a ? b : a;
    writer.add(parts[static_cast<size_t>(to)].buffer, parts[static_cast<size_t>(to)].region,
               parts[static_cast<size_t>(from)].buffer, parts[static_cast<size_t>(from)].region);
    return to;
  });
  ensure(root == first_own, "the folded tree must end in the owner's slot 0");
  write_gather_of_shards(writer, sync.slots[0], me, workers);
}

void write_all_reduce(const BucketSync& sync, int workers, bool ordered) {
  if (workers == 1) return;
  Instruction reduce = Writer(sync).instruction(InstructionKind::all_reduce);
  reduce.ordered = ordered;
  reduce.operands.push_back({Role::data, 0, Access::read_write, sync.program.whole(sync.slots[0])});
  sync.program.instructions.push_back(std::move(reduce));
}

}  // namespace

void write_library_all_reduce(const BucketSync& sync, int workers) { write_all_reduce(sync, workers, false); }

void write_ordered_all_reduce(const BucketSync& sync, int workers) { write_all_reduce(sync, workers, true); }

void write_ring_all_reduce(const BucketSync& sync, int workers) {
  if (workers == 1) return;
  Writer writer(sync);
  const int grad = sync.slots[0], me = sync.worker;
  const int next = (me + 1) % workers, previous = (me + workers - 1) % workers;
  const auto region = [&](int index) { return shard(writer.size_bytes(), (index % workers + workers) % workers, workers); };
  for (int round = 0; round + 1 < workers; ++round) {
    const Region incoming = region(me - round - 1);
    const int received = writer.receive_buffer(fmt::format("r{}", round), std::max(incoming.size(), int64_t{1}));
    writer.begin_exchange();
    writer.send(next, grad, region(me - round));
    writer.receive(previous, received, {0, incoming.size()});
    writer.end_exchange();
    writer.add(grad, incoming, received, {0, incoming.size()});
  }
  for (int round = 0; round + 1 < workers; ++round) {
    writer.begin_exchange();
    writer.send(next, grad, region(me + 1 - round));
    writer.receive(previous, grad, region(me - round));
    writer.end_exchange();
  }
}

void write_tree_reduction(const BucketSync& sync, const BatchDivision& division) {
  if (division.workers == 1) return;
  std::vector<TreeNode> ranges;
  for (int worker = 0; worker < division.workers; ++worker) ranges.push_back(division.leaves_of(worker));
  if (folds_by_halving(division.leaves, ranges)) {
    write_halving_and_doubling(sync, division.workers);
  } else {
    write_owner_fold(sync, division);
  }
}

}  // namespace lockstep
