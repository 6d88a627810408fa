#include "doctor/nvml.h"

#include <fmt/format.h>

#include <array>

#include "doctor/shared_library.h"

namespace lockstep::doctor {
namespace {

// What is needed of NVML's documented interface (nvml.h of NVIDIA's driver); a status of 0 is success.
using DeviceHandle = void*;
constexpr unsigned kNameSize = 96;
constexpr int kUncorrected = 1, kSinceStart = 0;  // nvmlMemoryErrorType_t, nvmlEccCounterType_t
constexpr int kByNvlink = 2, kUsable = 0;         // nvmlGpuP2PCapsIndex_t, nvmlGpuP2PStatus_t

struct MemoryUsed {
  unsigned long long total, free, used;
};

class Nvml {
 public:
  explicit Nvml(const SharedLibrary& library) : library_(library) {}

  /// The text that `name` writes.
  template <class... Before>
  std::string text(const char* name, Before... before) const {
    std::array<char, kNameSize> buffer{};
    return library_.call(name, before..., buffer.data(), kNameSize) == 0 ? buffer.data() : "";
  }
  /// The number that `name` writes.
  template <class Number, class... Before>
  std::optional<Number> number(const char* name, Before... before) const {
    Number value{};
    return library_.call(name, before..., &value) == 0 ? std::optional(value) : std::nullopt;
  }
  /// The first of two numbers: what holds now, before what holds after a restart.
  std::optional<bool> mode(const char* name, DeviceHandle gpu) const {
    unsigned now = 0, later = 0;
    return library_.call(name, gpu, &now, &later) == 0 ? std::optional(now != 0) : std::nullopt;
  }

  GpuState state_of(int index, DeviceHandle gpu) const {
    GpuState state{.index = index, .name = text("nvmlDeviceGetName", gpu)};
    if (const auto memory = number<MemoryUsed>("nvmlDeviceGetMemoryInfo", gpu))
      state.memory_bytes = static_cast<int64_t>(memory->total);
    if (const auto on = number<int>("nvmlDeviceGetPersistenceMode", gpu)) state.persistent = *on != 0;
    state.slices = mode("nvmlDeviceGetMigMode", gpu);
    if (const auto errors =
            number<unsigned long long>("nvmlDeviceGetTotalEccErrors", gpu, kUncorrected, kSinceStart))
      state.uncorrected_errors = static_cast<int64_t>(*errors);
    if (const auto milliwatts = number<unsigned>("nvmlDeviceGetPowerManagementLimit", gpu))
      state.power_limit_watts = *milliwatts / 1000.0;
    if (const auto milliwatts = number<unsigned>("nvmlDeviceGetPowerManagementDefaultLimit", gpu))
      state.default_power_limit_watts = *milliwatts / 1000.0;
    unsigned corrected = 0, uncorrected = 0, pending = 0, failed = 0;
    if (library_.call("nvmlDeviceGetRemappedRows", gpu, &corrected, &uncorrected, &pending, &failed) == 0) {
      state.reset_pending = pending != 0;
      state.remapping_failed = failed != 0;
    }
    return state;
  }

  std::string kind_of_link(DeviceHandle first, DeviceHandle second) const {
    if (number<int>("nvmlDeviceGetP2PStatus", first, second, kByNvlink) == kUsable) return "NVLink";
    // nvmlGpuTopologyLevel_t.
    switch (number<int>("nvmlDeviceGetTopologyCommonAncestor", first, second).value_or(-1)) {
      case 0:
        return "one board";
      case 10:
        return "one PCIe switch";
      case 20:
        return "several PCIe switches";
      case 30:
        return "one host bridge";
      case 40:
        return "one NUMA node";
      case 50:
        return "the link between processors";
      default:
        return "unknown";
    }
  }

 private:
  const SharedLibrary& library_;
};

}  // namespace

NvmlFacts nvml_facts() {
  NvmlFacts facts;
  const SharedLibrary library("libnvidia-ml.so.1");
  if (!library.loaded()) {
    facts.problem = library.problem();
    return facts;
  }
  facts.present = true;
  if (const int status = library.call("nvmlInit_v2"); status != 0) {
    facts.problem = fmt::format("NVIDIA's driver does not answer (nvmlInit_v2 returns {})", status);
    return facts;
  }
  const Nvml nvml(library);
  facts.driver = nvml.text("nvmlSystemGetDriverVersion");
  facts.cuda_version = nvml.number<int>("nvmlSystemGetCudaDriverVersion_v2").value_or(0);
  std::vector<DeviceHandle> gpus;
  const unsigned count = nvml.number<unsigned>("nvmlDeviceGetCount_v2").value_or(0);
  for (unsigned index = 0; index < count; ++index) {
    const auto gpu = nvml.number<DeviceHandle>("nvmlDeviceGetHandleByIndex_v2", index);
    if (!gpu) {
      facts.problem = fmt::format("GPU {} does not answer: it may have fallen off the bus", index);
      continue;
    }
    facts.gpus.push_back(nvml.state_of(static_cast<int>(index), *gpu));
    for (size_t other = 0; other < gpus.size(); ++other)
      facts.links.push_back(
          {facts.gpus[other].index, static_cast<int>(index), nvml.kind_of_link(gpus[other], *gpu)});
    gpus.push_back(*gpu);
  }
  library.call("nvmlShutdown");
  return facts;
}

}  // namespace lockstep::doctor
