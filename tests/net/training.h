#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "config/run_config.h"
#include "device/device.h"

namespace lockstep::net {

/// What training left behind that no layout may change: bits, since they are compared as numbers that equal
/// themselves.
struct Trained {
  std::vector<double> losses, norms;
  std::vector<std::pair<std::string, uint64_t>> hashes;  ///< of parameters and optimizer state, by name
  double eval_loss = 0;
  std::vector<std::vector<float>> parameters;        ///< if there is one rank, or sums are FAST
  std::map<std::string, std::vector<float>> states;  ///< "<parameter>.<slot>", likewise
  int64_t skipped_steps = 0;
};

struct RankFacts {
  int ranks = 1;
  device::DeviceKind device = device::DeviceKind::cpu;
  bool shared_memory = false;
  bool lanes_at_once = false;   ///< on the asynchronous CPU, of random delays
  std::vector<int> hosts = {};  ///< by rank; none: one host
};

/// Trains in this process, each rank on a thread of its own. What rank 0 saw, after looking whether the
/// others saw the same. Throws what a rank throws; then `until_failure`, unless it is null, has the steps
/// that the rank which came farthest has finished.
Trained train_here(const config::RunConfig& config, const RankFacts& facts, Trained* until_failure = nullptr);

/// The first thing that differs, in words; "" where nothing does.
std::string difference(const Trained& one, const Trained& other);
/// Likewise of the steps alone: losses, norms, and how many there are.
std::string difference_of_steps(const Trained& one, const Trained& other);

}  // namespace lockstep::net
