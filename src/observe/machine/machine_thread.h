#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "observe/machine/report.h"
#include "observe/machine/sampler.h"

namespace lockstep::observe {

/// Who samples, in the words of the job.
struct MachineIdentity {
  std::string host;
  int rank = 0;
  bool samples_host = false;  ///< one process of each host does
};

struct MachineThreadOptions {
  double every_seconds = 0;
  std::string gpu_uuid;  ///< that this process computes on; empty: none
  MachinePlaces places{};
};

/// A thread of low priority that samples this process, its GPU and, on one process of each host, the host.
/// Reading a GPU may take long, or never end if that has failed, and holds no lock: nobody waits for it.
class MachineThread {
 public:
  /// Called with each sample, from the thread; never after stop() or abandon() has returned. It must not
  /// throw.
  using Publish = std::function<void(const std::vector<MachineSample>& samples)>;

  MachineThread(MachineThreadOptions options, MachineIdentity identity, Publish publish);
  ~MachineThread();  ///< as abandon()
  MachineThread(const MachineThread&) = delete;
  MachineThread& operator=(const MachineThread&) = delete;

  /// From now on samples are of this.
  void follow(MachineIdentity identity);
  /// Takes a last sample, and ends. Waits for two seconds at most. Once only.
  void stop() noexcept;
  /// Ends without a last sample, and without waiting for one.
  void abandon() noexcept;
  /// Of all samples so far.
  std::vector<MachineReport> reports() const;

 private:
  struct Body;
  std::shared_ptr<Body> body_;  // the thread's, too, which may outlive this
  std::thread thread_;
};

}  // namespace lockstep::observe
