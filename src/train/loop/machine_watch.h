#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "control/mailbox.h"
#include "observe/machine/machine_thread.h"
#include "observe/sinks/sink.h"

namespace lockstep::train {

struct MachineWatchOptions {
  double every_seconds = 0;
  std::string gpu_uuid;                 ///< that this rank computes on; empty: none
  bool is_told = false;                 ///< whether the run has sinks: what nobody reads is not sent
  control::Mailbox* mailbox = nullptr;  ///< of all processes that the job began with; outlives it
  /// On rank 0, for every record; from a thread. It must neither wait for long nor throw.
  std::function<void(observe::MetricsRecord)> write;
};

/// Figures of machines, on every rank: each samples itself, and one of each host the host. Rank 0 writes what
/// it samples and what the others send. A rank that sends nothing, or is lost, is missed by nobody, and what
/// arrives late replaces what arrived before.
class MachineWatch {
 public:
  MachineWatch(MachineWatchOptions options, observe::MachineIdentity identity);

  /// From now on this rank is another one, or samples the host.
  void follow(const observe::MachineIdentity& identity) { thread_.follow(identity); }
  /// What this rank samples from now on is of this step. Waits for nothing.
  void set_step(int64_t step) { step_.store(step, std::memory_order_relaxed); }
  /// A last sample, then no more. Waits for two seconds at most.
  void stop() noexcept { thread_.stop(); }
  /// No more, at once.
  void abandon() noexcept { thread_.abandon(); }
  /// Of what this rank has sampled.
  std::vector<observe::MachineReport> reports() const { return thread_.reports(); }

 private:
  void publish(const std::vector<observe::MachineSample>& samples);
  void write_received();

  MachineWatchOptions options_;
  std::atomic<int64_t> step_{0};
  observe::MachineThread thread_;  // last: it uses the others
};

}  // namespace lockstep::train
