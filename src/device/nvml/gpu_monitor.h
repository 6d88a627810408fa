#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "device/nvml/nvml.h"

namespace lockstep::device {

/// A GPU now, in the units of nvidia-smi, but bytes. What the driver or the GPU does not state is absent.
struct GpuReading {
  std::optional<double> utilization_percent;         ///< time in which a kernel ran, as the driver samples it
  std::optional<double> memory_utilization_percent;  ///< time in which memory was read or written
  std::optional<double> memory_total_bytes, memory_used_bytes, memory_free_bytes;
  std::optional<double> memory_reserved_bytes;  ///< by the driver; not part of what is used
  std::optional<double> power_watts, power_limit_watts;
  std::optional<double> temperature_celsius, memory_temperature_celsius;
  std::optional<double> sm_clock_megahertz, memory_clock_megahertz;
  std::optional<double> sm_clock_limit_megahertz;                      ///< the highest that the GPU has
  std::optional<uint64_t> clock_event_reasons;                         ///< bits of NVML; see held_down_by
  std::optional<double> ecc_corrected_errors, ecc_uncorrected_errors;  ///< since the driver was loaded
  std::optional<double> xid;  ///< the last error since the monitor began; 0: none
  std::optional<double> pcie_sent_bytes_per_second, pcie_received_bytes_per_second;  ///< of the last 20 ms
  std::optional<double> pcie_replays;                                                ///< so far
  std::optional<double> nvlink_sent_bytes, nvlink_received_bytes;                    ///< so far, by all links
  std::optional<double> energy_joules;  ///< since the driver was loaded
};

/// Why clocks are lower than they could be, by NVIDIA's names: "software power cap", "hardware thermal
/// slowdown". Not what somebody has set, and not that the GPU is idle.
std::vector<std::string> held_down_by(uint64_t clock_event_reasons);

/// Reads one GPU, or one MIG slice of a GPU, by NVML. Of a slice there is its memory; what the driver only
/// has of the whole GPU (power, temperature, clocks, errors) is the GPU's; use and traffic are absent. Never
/// throws. Used by one thread.
class GpuMonitor {
 public:
  /// `uuid`: "GPU-..." or "MIG-...", with or without its dashes: CUDA's ordinals are not NVML's indices if
  /// CUDA_VISIBLE_DEVICES says so, and PCI addresses do not tell slices apart.
  explicit GpuMonitor(const std::string& uuid);
  ~GpuMonitor();
  GpuMonitor(const GpuMonitor&) = delete;
  GpuMonitor& operator=(const GpuMonitor&) = delete;

  bool found() const { return gpu_ != nullptr; }
  int index() const { return index_; }                        ///< as nvidia-smi counts GPUs
  const std::optional<int>& slice() const { return slice_; }  ///< as nvidia-smi counts MIG devices of it
  const std::string& uuid() const { return uuid_; }           ///< as nvidia-smi writes it
  const std::string& name() const { return name_; }
  /// Takes some 40 ms, because the driver watches PCIe for 20 ms in each direction.
  GpuReading read();

 private:
  void find(const std::string& uuid);
  bool find_slice(Nvml::Device gpu, const std::string& wanted);
  void watch_errors();
  void read_memory(GpuReading& reading) const;
  void read_clocks(GpuReading& reading) const;
  void read_traffic(GpuReading& reading) const;
  void hear_of_errors();

  Nvml nvml_;
  Nvml::Device gpu_ = nullptr, slice_device_ = nullptr;
  void* events_ = nullptr;  // nvmlEventSet_t
  std::optional<double> xid_;
  int index_ = 0;
  std::optional<int> slice_;
  std::string uuid_, name_;
};

}  // namespace lockstep::device
