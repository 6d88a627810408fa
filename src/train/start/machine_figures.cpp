#include "train/start/machine_figures.h"

#include <algorithm>

#include "base/index.h"

namespace lockstep::train {

std::vector<int> typical_peers(const std::vector<int>& hosts) {
  std::vector<int> peers;
  bool met[2] = {false, false};
  for (int rank = 1; rank < static_cast<int>(hosts.size()); ++rank) {
    bool& known = met[nth(hosts, rank) == hosts.front()];
    if (!known) peers.push_back(rank);
    known = true;
  }
  return peers;
}

plan::MachineFigures machine_figures(const std::vector<int>& hosts, const std::vector<comm::PairTimes>& pairs,
                                     const std::vector<comm::SumTime>& shared_sums,
                                     double addition_per_byte) {
  plan::MachineFigures figures{.addition_per_byte = addition_per_byte};
  for (const comm::PairTimes& pair : pairs)
    (nth(hosts, pair.peer) == hosts.front() ? figures.within_host : figures.between_hosts) = {
        .latency = pair.latency,
        .one_way_per_byte = pair.one_way_per_byte,
        .both_ways_per_byte = pair.both_ways_per_byte};
  if (shared_sums.empty()) return figures;
  const comm::SumTime &small = shared_sums.front(), &large = shared_sums.back();
  figures.shared_ranks = static_cast<int>(hosts.size());
  figures.shared_meeting = small.seconds;
  if (large.bytes > small.bytes)
    figures.shared_sum_per_byte =
        std::max(large.seconds - small.seconds, 0.0) / static_cast<double>(large.bytes - small.bytes);
  return figures;
}

}  // namespace lockstep::train
