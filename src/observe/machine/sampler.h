#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "device/nvml/gpu_monitor.h"
#include "observe/machine/control_group.h"
#include "observe/machine/rate.h"
#include "observe/machine/subject.h"

namespace lockstep::observe {

/// Figures of one subject at one time, by name, in the order of machine_figures().
struct MachineSample {
  MachineSubject subject;
  std::vector<std::pair<std::string, double>> figures;
  std::vector<std::string> held_down_by{};  ///< of a GPU: why its clocks are lower than they could be
  double seconds = 0;                       ///< that it is about, up to now
};

/// Where a process's figures come from.
struct MachinePlaces {
  std::string proc = "/proc", sys = "/sys";  ///< folders
};

/// Figures of this process, and of its host. Rates and shares are of the time between two samples, so the
/// first has none. Never throws. Used by one thread.
class HostSampler {
 public:
  explicit HostSampler(MachinePlaces places = {}) : places_(std::move(places)) {}

  /// `now_seconds`: of a clock that never goes back.
  std::vector<std::pair<std::string, double>> process(double now_seconds);
  std::vector<std::pair<std::string, double>> host(double now_seconds);

 private:
  using Figures = std::vector<std::pair<std::string, double>>;
  void add_processor(Figures& figures, const GroupLimits& limits, double now_seconds);
  void add_memory(Figures& figures, const GroupLimits& limits, double now_seconds);
  void add_traffic(Figures& figures, double now_seconds);
  void add_pressure(Figures& figures, double now_seconds);
  std::string text(const std::string& file) const;
  bool is_disk(const std::string& name) const;

  MachinePlaces places_;
  Rate process_time_, process_read_, process_written_;
  Rate total_time_, idle_time_, disk_wait_, group_time_;
  Rate swapped_, read_, written_, sent_, received_;
  Rate pressures_[5];
};

/// Figures of the GPU that this process computes on. Never throws. Used by one thread.
class GpuSampler {
 public:
  explicit GpuSampler(const std::string& uuid) : monitor_(uuid) {}

  bool found() const { return monitor_.found(); }
  /// Fills `sample`'s figures, and its subject but host and rank. Takes some 40 ms.
  void add_to(MachineSample& sample, double now_seconds);

 private:
  device::GpuMonitor monitor_;
  Rate nvlink_sent_, nvlink_received_;
};

}  // namespace lockstep::observe
