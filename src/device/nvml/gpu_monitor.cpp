#include "device/nvml/gpu_monitor.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <string_view>
#include <utility>

namespace lockstep::device {
namespace {

// Values and structures of nvml.h.
constexpr int kTemperatureOfGpu = 0;                          // nvmlTemperatureSensors_t
constexpr int kSmClock = 1, kMemoryClock = 2;                 // nvmlClockType_t
constexpr int kCorrectedErrors = 0, kUncorrectedErrors = 1;   // nvmlMemoryErrorType_t
constexpr int kSinceDriver = 0;                               // nvmlEccCounterType_t
constexpr int kSent = 0, kReceived = 1;                       // nvmlPcieUtilCounter_t
constexpr unsigned long long kXidEvent = 8;                   // nvmlEventTypeXidCriticalError
constexpr unsigned kMemoryTemperature = 82;                   // NVML_FI_DEV_MEMORY_TEMP
constexpr unsigned kNvlinkSent = 138, kNvlinkReceived = 139;  // NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_*
constexpr unsigned kAllLinks = ~0U;

struct Utilization {
  unsigned gpu, memory;
};
struct Memory {
  unsigned long long total, free, used;
};
struct MemoryWithReserved {
  unsigned version;
  unsigned long long total, reserved, free, used;
};
constexpr unsigned kMemoryVersion = sizeof(MemoryWithReserved) | 2U << 24;
struct FieldValue {
  unsigned field, scope;
  long long timestamp, latency_us;
  int type, status;
  union {
    double real;
    unsigned whole;
    unsigned long wide;
    unsigned long long widest;
    long long with_sign;
  } value;
};
static_assert(sizeof(FieldValue) == 40);
struct EventData {
  Nvml::Device gpu;
  unsigned long long type, data;
  unsigned gpu_instance, compute_instance;
};

double number_of(const FieldValue& field) {
  switch (field.type) {  // nvmlValueType_t
    case 0:
      return field.value.real;
    case 1:
      return field.value.whole;
    case 2:
      return static_cast<double>(field.value.wide);
    case 3:
      return static_cast<double>(field.value.widest);
    default:
      return static_cast<double>(field.value.with_sign);
  }
}

std::optional<double> field_value(const Nvml& nvml, Nvml::Device gpu, unsigned id, unsigned scope = 0) {
  FieldValue field{};
  field.field = id;
  field.scope = scope;
  if (!nvml.call("nvmlDeviceGetFieldValues", gpu, 1, &field) || field.status != 0) return std::nullopt;
  return number_of(field);
}

/// What `name` writes, times `factor`.
template <class Number, class... Before>
std::optional<double> scaled(const Nvml& nvml, double factor, const char* name, Before... before) {
  const auto number = nvml.number<Number>(name, before...);
  return number ? std::optional(static_cast<double>(*number) * factor) : std::nullopt;
}

/// The digits alone: CUDA's are written without dashes.
std::string digits_of(std::string_view uuid) {
  for (const std::string_view prefix : {"GPU-", "MIG-"})
    if (uuid.starts_with(prefix)) uuid.remove_prefix(prefix.size());
  std::string digits;
  for (const char c : uuid)
    if (c != '-') digits += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return digits;
}

constexpr std::pair<uint64_t, const char*> kReasons[] = {
    {0x04, "software power cap"},        {0x08, "hardware slowdown"},         {0x10, "sync boost"},
    {0x20, "software thermal slowdown"}, {0x40, "hardware thermal slowdown"}, {0x80, "hardware power brake"},
};

}  // namespace

std::vector<std::string> held_down_by(uint64_t clock_event_reasons) {
  std::vector<std::string> names;
  for (const auto& [bit, name] : kReasons)
    if ((clock_event_reasons & bit) != 0) names.emplace_back(name);
  return names;
}

GpuMonitor::GpuMonitor(const std::string& uuid) {
  if (nvml_.answers()) find(digits_of(uuid));
  if (found()) watch_errors();
}

GpuMonitor::~GpuMonitor() {
  if (events_ != nullptr) nvml_.call("nvmlEventSetFree", events_);
}

void GpuMonitor::find(const std::string& wanted) {
  for (unsigned index = 0; index < nvml_.device_count(); ++index) {
    const auto gpu = nvml_.device(index);
    if (!gpu) continue;
    uuid_ = nvml_.text("nvmlDeviceGetUUID", *gpu);
    if (digits_of(uuid_) != wanted && !find_slice(*gpu, wanted)) continue;
    gpu_ = *gpu;
    index_ = static_cast<int>(index);
    name_ = nvml_.text("nvmlDeviceGetName", *gpu);
    return;
  }
}

bool GpuMonitor::find_slice(Nvml::Device gpu, const std::string& wanted) {
  const unsigned most = nvml_.number<unsigned>("nvmlDeviceGetMaxMigDeviceCount", gpu).value_or(0);
  for (unsigned index = 0; index < most; ++index) {
    const auto slice = nvml_.number<Nvml::Device>("nvmlDeviceGetMigDeviceHandleByIndex", gpu, index);
    if (!slice) continue;
    std::string uuid = nvml_.text("nvmlDeviceGetUUID", *slice);
    if (digits_of(uuid) != wanted) continue;
    uuid_ = std::move(uuid);
    slice_device_ = *slice;
    slice_ = static_cast<int>(index);
    return true;
  }
  return false;
}

void GpuMonitor::watch_errors() {
  const auto set = nvml_.number<void*>("nvmlEventSetCreate");
  if (!set) return;
  if (nvml_.call("nvmlDeviceRegisterEvents", gpu_, kXidEvent, *set)) {
    events_ = *set;
    xid_ = 0;
  } else {
    nvml_.call("nvmlEventSetFree", *set);
  }
}

void GpuMonitor::hear_of_errors() {
  constexpr unsigned kWithoutWaiting = 0;
  constexpr int kMostAtOnce = 64;
  for (int event = 0; events_ != nullptr && event < kMostAtOnce; ++event) {
    EventData data{};
    if (!nvml_.call("nvmlEventSetWait_v2", events_, &data, kWithoutWaiting)) return;
    if (data.type == kXidEvent) xid_ = static_cast<double>(data.data);
  }
}

void GpuMonitor::read_memory(GpuReading& reading) const {
  const Nvml::Device whose = slice_ ? slice_device_ : gpu_;
  MemoryWithReserved memory{.version = kMemoryVersion, .total = 0, .reserved = 0, .free = 0, .used = 0};
  if (nvml_.call("nvmlDeviceGetMemoryInfo_v2", whose, &memory)) {
    reading.memory_reserved_bytes = static_cast<double>(memory.reserved);
  } else if (const auto older = nvml_.number<Memory>("nvmlDeviceGetMemoryInfo", whose)) {
    memory.total = older->total;
    memory.free = older->free;
    memory.used = older->used;
  } else {
    return;
  }
  reading.memory_total_bytes = static_cast<double>(memory.total);
  reading.memory_used_bytes = static_cast<double>(memory.used);
  reading.memory_free_bytes = static_cast<double>(memory.free);
}

void GpuMonitor::read_clocks(GpuReading& reading) const {
  reading.sm_clock_megahertz = scaled<unsigned>(nvml_, 1, "nvmlDeviceGetClockInfo", gpu_, kSmClock);
  reading.memory_clock_megahertz = scaled<unsigned>(nvml_, 1, "nvmlDeviceGetClockInfo", gpu_, kMemoryClock);
  reading.sm_clock_limit_megahertz = scaled<unsigned>(nvml_, 1, "nvmlDeviceGetMaxClockInfo", gpu_, kSmClock);
  using Bits = unsigned long long;
  // The second is its name in drivers before 535.
  for (const char* name :
       {"nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"})
    if (!reading.clock_event_reasons)
      if (const auto bits = nvml_.number<Bits>(name, gpu_)) reading.clock_event_reasons = *bits;
}

void GpuMonitor::read_traffic(GpuReading& reading) const {
  constexpr double kKibibyte = 1024, kKilobyte = 1000;
  reading.pcie_sent_bytes_per_second =
      scaled<unsigned>(nvml_, kKilobyte, "nvmlDeviceGetPcieThroughput", gpu_, kSent);
  reading.pcie_received_bytes_per_second =
      scaled<unsigned>(nvml_, kKilobyte, "nvmlDeviceGetPcieThroughput", gpu_, kReceived);
  if (const auto sent = field_value(nvml_, gpu_, kNvlinkSent, kAllLinks))
    reading.nvlink_sent_bytes = *sent * kKibibyte;
  if (const auto received = field_value(nvml_, gpu_, kNvlinkReceived, kAllLinks))
    reading.nvlink_received_bytes = *received * kKibibyte;
}

GpuReading GpuMonitor::read() {
  constexpr double kMilli = 0.001;
  GpuReading reading;
  if (!found()) return reading;
  if (!slice_) {
    if (const auto use = nvml_.number<Utilization>("nvmlDeviceGetUtilizationRates", gpu_)) {
      reading.utilization_percent = use->gpu;
      reading.memory_utilization_percent = use->memory;
    }
    read_traffic(reading);
  }
  read_memory(reading);
  read_clocks(reading);
  reading.power_watts = scaled<unsigned>(nvml_, kMilli, "nvmlDeviceGetPowerUsage", gpu_);
  reading.power_limit_watts = scaled<unsigned>(nvml_, kMilli, "nvmlDeviceGetEnforcedPowerLimit", gpu_);
  reading.temperature_celsius =
      scaled<unsigned>(nvml_, 1, "nvmlDeviceGetTemperature", gpu_, kTemperatureOfGpu);
  reading.memory_temperature_celsius = field_value(nvml_, gpu_, kMemoryTemperature);
  using Counter = unsigned long long;
  reading.ecc_corrected_errors =
      scaled<Counter>(nvml_, 1, "nvmlDeviceGetTotalEccErrors", gpu_, kCorrectedErrors, kSinceDriver);
  reading.ecc_uncorrected_errors =
      scaled<Counter>(nvml_, 1, "nvmlDeviceGetTotalEccErrors", gpu_, kUncorrectedErrors, kSinceDriver);
  reading.pcie_replays = scaled<unsigned>(nvml_, 1, "nvmlDeviceGetPcieReplayCounter", gpu_);
  reading.energy_joules = scaled<Counter>(nvml_, kMilli, "nvmlDeviceGetTotalEnergyConsumption", gpu_);
  hear_of_errors();
  reading.xid = xid_;
  return reading;
}

}  // namespace lockstep::device
