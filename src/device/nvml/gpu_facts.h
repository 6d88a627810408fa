#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::device {

/// One GPU according to the driver's management library; values that it does not state are empty.
struct GpuState {
  int index = 0;
  std::string name;
  int64_t memory_bytes = 0;
  std::optional<bool> persistent, slices;     ///< persistence mode; MIG mode
  std::optional<int64_t> uncorrected_errors;  ///< of ECC, since the driver was loaded
  std::optional<bool> reset_pending;          ///< rows of memory wait for a reset to be remapped
  std::optional<bool> remapping_failed;       ///< no spare rows are left
  std::optional<double> power_limit_watts, default_power_limit_watts;
};

/// How two GPUs are connected.
struct GpuLink {
  int first = 0, second = 0;
  std::string
      kind;  ///< "NVLink", or the nearest thing that both hang on: "one PCIe switch", "processors' link"
};

struct NvmlFacts {
  std::string problem;   ///< why nothing is known; empty if the library answered
  bool present = false;  ///< whether there is such a library at all
  std::string driver;    ///< "580.65.06"
  int cuda_version = 0;  ///< that the driver supports: 13000 is 13.0
  std::vector<GpuState> gpus;
  std::vector<GpuLink> links;
};
/// Loads libnvidia-ml.so.1 and queries it. Never throws.
NvmlFacts nvml_facts();

}  // namespace lockstep::device
