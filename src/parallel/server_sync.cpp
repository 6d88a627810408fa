#include "parallel/server_sync.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/ensure.h"
#include "base/index.h"
#include "parallel/bucket_writer.h"

namespace lockstep::parallel {
namespace {

/// Where a rank holds the gradients of a shard: a worker in their places, a server that is no worker one
/// after the other, since it holds nothing else.
Spans held(const BucketSync& sync, const Spans& shard) {
  return sync.worker < sync.workers ? shard : BucketWriter::packed(shard);
}

/// Empty where all of its parts are.
Spans slice_of(const Spans& spans, const layout::Slice& slice) {
  Spans result;
  for (const layout::ByteSpan& span : spans)
    if (const layout::ByteSpan part = layout::slice_of(span, slice); !part.empty()) result.push_back(part);
  return result;
}

bool contributes(const Contributions& contributions, int rank) {
  return std::any_of(contributions.from.begin(), contributions.from.end(),
                     [rank](const Contributor& one) { return one.rank == rank; });
}

std::string arrival_name(int rank, size_t node, const layout::Slice& slice) {
  return slice.count == 1 ? fmt::format("w{}.{}", rank, node)
                          : fmt::format("w{}.{}.{}", rank, node, slice.index);
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

Spans summed_here(const BucketSync& sync, const layout::RankRange& servers, const layout::Slice& slice) {
  if (!servers.contains(sync.worker)) return {};
  return slice_of(held(sync, BucketWriter(sync).shard_of(sync.worker)), slice);
}

void write_server_gather(const BucketSync& sync, const layout::RankRange& servers,
                         const std::vector<Recipient>& recipients, const layout::ByteSpan& held, int buffer,
                         const layout::Slice& slice) {
  BucketWriter writer(sync);
  const int me = sync.worker;
  const auto within = [&](const Spans& shard, const layout::ByteSpan& wanted) {
    Spans here;
    for (const layout::ByteSpan& part : slice_of(shard, slice))
      if (const layout::ByteSpan both = intersection(part, wanted); !both.empty())
        here.push_back({both.begin - held.begin, both.end - held.begin});
    return here;
  };
  writer.begin_exchange();
  for (const Recipient& to : recipients) {
    if (to.rank != me) {
      if (servers.contains(me)) writer.send(to.rank, buffer, within(writer.shard_of(me), to.held));
      continue;
    }
    for (int server = servers.first; server < servers.end(); ++server)
      if (server != me) writer.receive(server, buffer, within(writer.shard_of(server), held));
  }
  writer.end_exchange();
}

void write_server_fold(const BucketSync& sync, const Servers& servers, const layout::Slice& slice) {
  BucketWriter writer(sync);
  const int me = sync.worker;
  const bool sends = contributes(servers.contributions, me);
  const Spans shard = servers.ranks.contains(me) ? writer.shard_of(me) : Spans{};
  const Spans mine = summed_here(sync, servers.ranks, slice);
  const Spans arriving = slice_of(shard, slice), packed = BucketWriter::packed(arriving);

  // All contributors' nodes of my shard come to me; my nodes of every other shard go to its server.
  struct Part {
    int buffer;
    const Spans* spans;
  };
  std::vector<Part> parts;
  std::vector<layout::TreeNode> nodes;
  writer.begin_exchange();
  for (int server = servers.ranks.first; server < servers.ranks.end() && sends; ++server) {
    if (server == me) continue;
    for (const int slot : sync.slots) writer.send(server, slot, slice_of(writer.shard_of(server), slice));
  }
  int root_part = -1;  // where the sum shall be: the first of my own, or else the first that arrives
  for (const Contributor& from : servers.contributions.from) {
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
        parts.push_back({nth(servers.arrivals, static_cast<int>(parts.size()) - 1), &packed});
      else
        parts.push_back({writer.receive_buffer(arrival_name(from.rank, i, slice), arriving), &packed});
      writer.receive(from.rank, parts.back().buffer, *parts.back().spans);
    }
  }
  writer.end_exchange();
  if (mine.empty()) return;

  // Whichever of the two already holds my slot 0 takes the sum, so that the root ends up there.
  const int add_lane = servers.add_lane >= 0 ? servers.add_lane : sync.lane;
  const int root = layout::fold_parts(servers.contributions.leaves, nodes, [&](int a, int b) {
    const int to = b == root_part ? b : a;
    const Part &destination = nth(parts, to), &source = nth(parts, to == a ? b : a);
    writer.add_on(add_lane, destination.buffer, *destination.spans, source.buffer, *source.spans);
    return to;
  });
  ensure(root == root_part, "the folded tree must end in the server's slot 0");
}

Contributions contributions_of_workers(const layout::BatchDivision& division) {
  Contributions contributions{.from = {}, .leaves = division.leaves};
  for (int worker = 0; worker < division.workers; ++worker) {
    const layout::TreeNode leaves = division.leaves_of(worker);
    contributions.from.push_back({worker, layout::nodes_within(division.leaves, leaves.begin, leaves.end)});
  }
  return contributions;
}

std::vector<int> write_host_fold(const BucketSync& sync, const std::vector<int>& host,
                                 const layout::BatchDivision& division, bool any_order) {
  if (host.size() == 1) return {sync.slots.begin(), sync.slots.end()};
  BucketWriter writer(sync);
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
  BucketWriter writer(sync);
  // Behind what owners have updated lies what is frozen.
  layout::ByteSpan all{};
  for (const layout::ByteSpan& part : writer.shards(0, owners.count)) all.end = std::max(all.end, part.end);
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
