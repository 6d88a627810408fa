#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "comm/local_ranks.h"
#include "config/run_config.h"
#include "train/loop/trainer.h"
#include "train/worker/worker.h"

namespace lockstep::train {

using comm::run_ranks;

/// What one rank's training left behind: everything that must not depend on the layout.
struct Trace {
  std::vector<double> losses, norms;
  std::vector<std::vector<float>> parameters;  ///< of all ranks together
  double eval_loss = 0;
  std::vector<std::pair<std::string, uint64_t>> hashes;  ///< TraceOptions::hashes
  /// The norm of a step that overflowed may be no number, which equals itself here.
  bool operator==(const Trace& other) const {
    const auto same = [](double one, double two) {
      return one == two || (std::isnan(one) && std::isnan(two));
    };
    return std::ranges::equal(losses, other.losses, same) && std::ranges::equal(norms, other.norms, same) &&
           parameters == other.parameters && eval_loss == other.eval_loss && hashes == other.hashes;
  }
};

struct TraceOptions {
  std::optional<device::AsyncCpuOptions> asynchronous;
  bool shared_memory = false;  ///< programs are compiled as for workers that share a host's memory
  std::string output_directory;
  device::DeviceKind device = device::DeviceKind::cpu;
  std::vector<int> hosts = {};  ///< by rank: programs are compiled as for these
  bool hashes = false;          ///< those of parameters, optimizer state and residuals are traced, too
  bool watched = false;         ///< ranks tell where they are, as for a watchdog; nobody listens
};

/// As far as sums in other orders part within a few steps.
inline void expect_close_losses(const Trace& actual, const Trace& expected, const std::string& name) {
  ASSERT_EQ(actual.losses.size(), expected.losses.size()) << name;
  for (size_t i = 0; i < expected.losses.size(); ++i)
    EXPECT_NEAR(actual.losses[i], expected.losses[i], 1e-4) << name << ", step " << i;
}

/// Trains `config` on `ranks` threads; the trace of rank 0, after checking that all ranks agree, also on
/// parameters that several of them hold.
Trace train_on_threads(const config::RunConfig& config, int ranks, const TraceOptions& options = {});

/// What one rank makes of a config: trained once in a process, however many tests compare with it. REQUIRES:
/// the config is as it was parsed.
const Trace& trace_of_one_rank(const config::RunConfig& config,
                               device::DeviceKind device = device::DeviceKind::cpu);

}  // namespace lockstep::train
