#include "parallel/host_sync.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "base/index.h"
#include "parallel/bucket_writer.h"
#include "parallel/ring_sync.h"

namespace lockstep::parallel {
namespace {

/// Of the hosts: so many parts of a bucket are summed across them at once.
int smallest(const HostWorkers& hosts) {
  size_t least = hosts.front().size();
  for (const auto& host : hosts) least = std::min(least, host.size());
  return static_cast<int>(least);
}

program::Members ranks_of(const std::vector<int>& workers, int first_rank) {
  std::vector<int> ranks;
  for (const int worker : workers) ranks.push_back(first_rank + worker);
  return ranks;
}

}  // namespace

HostWorkers workers_by_host(const std::vector<int>& hosts, int first_rank, int workers) {
  std::map<int, std::vector<int>> by_host;
  for (int worker = 0; worker < workers; ++worker) by_host[nth(hosts, first_rank + worker)].push_back(worker);
  HostWorkers list;
  for (auto& [host, numbers] : by_host) list.push_back(std::move(numbers));
  std::ranges::sort(list);  // by their first workers
  return list;
}

bool sums_across_hosts(const HostWorkers& hosts) {
  return hosts.size() > 1 && std::ranges::any_of(hosts, [](const auto& host) { return host.size() > 1; });
}

bool hosts_follow_tree(const HostWorkers& hosts, const layout::BatchDivision& division) {
  std::vector<layout::TreeNode> ranges;
  for (const auto& host : hosts) {
    if (host.back() - host.front() + 1 != static_cast<int>(host.size())) return false;
    const layout::TreeNode whole{division.leaves_of(host.front()).begin, division.leaves_of(host.back()).end};
    std::vector<layout::TreeNode> within;
    for (const int worker : host) {
      const layout::TreeNode leaves = division.leaves_of(worker);
      within.push_back({leaves.begin - whole.begin, leaves.end - whole.begin});
    }
    if (!layout::follows_tree(whole.size(), within)) return false;
    ranges.push_back(whole);
  }
  return layout::follows_tree(division.leaves, ranges);
}

HostGroups add_host_groups(program::Program& program, const std::string& name, const HostWorkers& hosts,
                           int first_rank, int worker) {
  HostGroups groups;
  const auto add = [&](const std::string& what, const std::vector<int>& workers,
                       program::Transport transport) {
    program.groups.push_back({fmt::format("{}.{}", name, what), ranks_of(workers, first_rank), transport});
    const bool takes_part = std::ranges::find(workers, worker) != workers.end();
    return takes_part ? static_cast<int>(program.groups.size()) - 1 : -1;
  };
  for (size_t host = 0; host < hosts.size(); ++host)
    groups.host = std::max(groups.host,
                           add(fmt::format("host{}", host), hosts[host], program::Transport::shared_memory));
  for (int place = 0; place < smallest(hosts); ++place) {
    std::vector<int> workers;
    for (const auto& host : hosts) workers.push_back(nth(host, place));
    groups.across =
        std::max(groups.across, add(fmt::format("across{}", place), workers, program::Transport::host));
  }
  return groups;
}

void write_host_all_reduce(const BucketSync& sync, const HostWorkers& hosts, const HostGroups& groups,
                           bool ordered) {
  const auto host = std::ranges::find_if(hosts, [&](const std::vector<int>& workers) {
    return std::ranges::find(workers, sync.worker) != workers.end();
  });
  const auto place = static_cast<int>(std::ranges::find(*host, sync.worker) - host->begin());
  const int parts = smallest(hosts);
  const Shards shards = equal_shards(sync.size_bytes, parts, false);
  const auto part_of = [&](int position) { return shards.parts(position, position + 1); };

  BucketSync within = sync;
  within.group = groups.host;
  within.worker = place;
  within.workers = static_cast<int>(host->size());
  if (ordered)
    write_ordered_all_reduce(within);
  else
    write_library_all_reduce(within);

  if (const Spans mine = place < parts ? part_of(place) : Spans{}; !mine.empty()) {
    BucketSync across = sync;
    across.group = groups.across;
    across.worker = static_cast<int>(host - hosts.begin());
    across.workers = static_cast<int>(hosts.size());
    across.first = 0;
    across.begin = mine.front().begin;
    across.size_bytes = mine.front().size();
    if (ordered) {
      write_tree_all_reduce(across);
    } else {
      const program::ByteRange data{across.slots[0], across.begin, across.size_bytes};
      const program::Blocks blocks = equal_blocks(across.size_bytes, across.workers);
      write_ring_reduce_scatter(across, data, blocks);
      write_ring_all_gather(across, data, blocks);
    }
  }

  BucketWriter writer(sync);
  writer.begin_exchange();
  for (int other = 0; other < static_cast<int>(host->size()); ++other) {
    if (other == place) continue;
    if (place < parts) writer.send(nth(*host, other), sync.slots[0], part_of(place));
    if (other < parts) writer.receive(nth(*host, other), sync.slots[0], part_of(other));
  }
  writer.end_exchange();
}

}  // namespace lockstep::parallel
