#include "device/nvml/gpu_facts.h"

#include <fmt/format.h>

#include "device/nvml/nvml.h"

namespace lockstep::device {
namespace {

constexpr int kUncorrected = 1, kSinceStart = 0;  // nvmlMemoryErrorType_t, nvmlEccCounterType_t
constexpr int kByNvlink = 2, kUsable = 0;         // nvmlGpuP2PCapsIndex_t, nvmlGpuP2PStatus_t

struct MemoryUsed {
  unsigned long long total, free, used;
};

/// The first of two numbers: what holds now, before what holds after a restart.
std::optional<bool> mode(const Nvml& nvml, const char* name, Nvml::Device gpu) {
  unsigned now = 0, later = 0;
  return nvml.call(name, gpu, &now, &later) ? std::optional(now != 0) : std::nullopt;
}

GpuState state_of(const Nvml& nvml, int index, Nvml::Device gpu) {
  GpuState state{.index = index, .name = nvml.text("nvmlDeviceGetName", gpu)};
  if (const auto memory = nvml.number<MemoryUsed>("nvmlDeviceGetMemoryInfo", gpu))
    state.memory_bytes = static_cast<int64_t>(memory->total);
  if (const auto on = nvml.number<int>("nvmlDeviceGetPersistenceMode", gpu)) state.persistent = *on != 0;
  state.slices = mode(nvml, "nvmlDeviceGetMigMode", gpu);
  if (const auto errors =
          nvml.number<unsigned long long>("nvmlDeviceGetTotalEccErrors", gpu, kUncorrected, kSinceStart))
    state.uncorrected_errors = static_cast<int64_t>(*errors);
  if (const auto milliwatts = nvml.number<unsigned>("nvmlDeviceGetPowerManagementLimit", gpu))
    state.power_limit_watts = *milliwatts / 1000.0;
  if (const auto milliwatts = nvml.number<unsigned>("nvmlDeviceGetPowerManagementDefaultLimit", gpu))
    state.default_power_limit_watts = *milliwatts / 1000.0;
  unsigned corrected = 0, uncorrected = 0, pending = 0, failed = 0;
  if (nvml.call("nvmlDeviceGetRemappedRows", gpu, &corrected, &uncorrected, &pending, &failed)) {
    state.reset_pending = pending != 0;
    state.remapping_failed = failed != 0;
  }
  return state;
}

std::string kind_of_link(const Nvml& nvml, Nvml::Device first, Nvml::Device second) {
  if (nvml.number<int>("nvmlDeviceGetP2PStatus", first, second, kByNvlink) == kUsable) return "NVLink";
  // nvmlGpuTopologyLevel_t.
  switch (nvml.number<int>("nvmlDeviceGetTopologyCommonAncestor", first, second).value_or(-1)) {
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

}  // namespace

NvmlFacts nvml_facts() {
  NvmlFacts facts;
  const Nvml nvml;
  facts.present = nvml.present();
  facts.problem = nvml.problem();
  if (!nvml.answers()) return facts;
  facts.driver = nvml.text("nvmlSystemGetDriverVersion");
  facts.cuda_version = nvml.number<int>("nvmlSystemGetCudaDriverVersion_v2").value_or(0);
  std::vector<Nvml::Device> gpus;
  for (unsigned index = 0; index < nvml.device_count(); ++index) {
    const auto gpu = nvml.device(index);
    if (!gpu) {
      facts.problem = fmt::format("GPU {} does not answer: it may have fallen off the bus", index);
      continue;
    }
    facts.gpus.push_back(state_of(nvml, static_cast<int>(index), *gpu));
    for (size_t other = 0; other < gpus.size(); ++other)
      facts.links.push_back(
          {facts.gpus[other].index, static_cast<int>(index), kind_of_link(nvml, gpus[other], *gpu)});
    gpus.push_back(*gpu);
  }
  return facts;
}

}  // namespace lockstep::device
