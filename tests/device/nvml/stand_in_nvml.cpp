// Functions of NVIDIA's management library with the signatures that it documents, over GPUs that the
// environment describes: STAND_IN_GPUS says how many there are; STAND_IN_NVML_STATUS what initialization
// returns; STAND_IN_ECC, STAND_IN_MIG, STAND_IN_POWER (watts of 700), STAND_IN_PERSISTENT, STAND_IN_PENDING,
// STAND_IN_BROKEN and STAND_IN_NVLINK how they are. STAND_IN_SLICED and STAND_IN_HOT are the indices of one
// with two MIG slices, and of one that is slowed down by heat. STAND_IN_OLD: an older driver, without the
// newer functions. STAND_IN_USE and STAND_IN_GIB_USED: how much they are used. STAND_IN_XID: an error that
// each GPU reports once.

#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace {

constexpr int kNotSupported = 3, kNotFound = 6, kTimeout = 10;

int setting(const char* name, int otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : std::atoi(value);
}

int write_text(char* to, unsigned size, const char* text) {
  std::strncpy(to, text, size - 1);
  to[size - 1] = '\0';
  return 0;
}

template <class Number>
int give(Number* to, Number value) {
  *to = value;
  return 0;
}

}  // namespace

extern "C" {

using Gpu = void*;
struct Memory {
  unsigned long long total, free, used;
};
struct MemoryWithReserved {
  unsigned version;
  unsigned long long total, reserved, free, used;
};
struct Utilization {
  unsigned gpu, memory;
};
struct FieldValue {
  unsigned field, scope;
  long long timestamp, latency;
  int type, status;
  unsigned long long value;
};
struct EventData {
  Gpu gpu;
  unsigned long long type, data;
  unsigned gpu_instance, compute_instance;
};

// A handle is the index of a GPU from 1, and for a MIG slice, 100 times its own index from 1 beside.
static unsigned gpu_of(Gpu gpu) { return static_cast<unsigned>(reinterpret_cast<uintptr_t>(gpu) % 100 - 1); }
static bool is_slice(Gpu gpu) { return reinterpret_cast<uintptr_t>(gpu) >= 100; }
static bool is_sliced(Gpu gpu) { return static_cast<int>(gpu_of(gpu)) == setting("STAND_IN_SLICED", -1); }
static bool is_hot(Gpu gpu) { return static_cast<int>(gpu_of(gpu)) == setting("STAND_IN_HOT", -1); }
static bool is_old() { return setting("STAND_IN_OLD", 0) != 0; }
static unsigned xids_told = 0;

int nvmlInit_v2() { return setting("STAND_IN_NVML_STATUS", 0); }
int nvmlShutdown() { return 0; }
int nvmlSystemGetDriverVersion(char* to, unsigned size) { return write_text(to, size, "580.65.06"); }
int nvmlSystemGetCudaDriverVersion_v2(int* version) { return give(version, 13000); }
int nvmlDeviceGetCount_v2(unsigned* count) {
  return give(count, static_cast<unsigned>(setting("STAND_IN_GPUS", 0)));
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, Gpu* gpu) {
  if (static_cast<int>(index) == setting("STAND_IN_LOST", -1)) return kNotFound;
  return give(gpu, reinterpret_cast<Gpu>(static_cast<uintptr_t>(index + 1)));
}
int nvmlDeviceGetName(Gpu, char* to, unsigned size) { return write_text(to, size, "NVIDIA H100"); }
int nvmlDeviceGetUUID(Gpu gpu, char* to, unsigned size) {
  if (is_slice(gpu)) {
    const bool first = reinterpret_cast<uintptr_t>(gpu) < 200;
    return write_text(
        to, size,
        first ? "MIG-00000000-0000-0000-0000-0000000000a1" : "MIG-00000000-0000-0000-0000-0000000000a2");
  }
  char text[] = "GPU-00000000-0000-0000-0000-00000000000X";
  text[sizeof(text) - 2] = static_cast<char>('0' + gpu_of(gpu));
  return write_text(to, size, text);
}
int nvmlDeviceGetMaxMigDeviceCount(Gpu gpu, unsigned* count) { return give(count, is_sliced(gpu) ? 7U : 0U); }
int nvmlDeviceGetMigDeviceHandleByIndex(Gpu gpu, unsigned index, Gpu* slice) {
  if (!is_sliced(gpu) || index > 1) return kNotFound;
  return give(slice, reinterpret_cast<Gpu>(reinterpret_cast<uintptr_t>(gpu) + 100 * (index + 1)));
}
int nvmlDeviceGetMemoryInfo_v2(Gpu gpu, MemoryWithReserved* memory) {
  if (is_old()) return kNotSupported;
  if (memory->version != (sizeof(MemoryWithReserved) | 2U << 24)) return 25;
  const unsigned version = memory->version;
  const auto used = static_cast<unsigned long long>(setting("STAND_IN_GIB_USED", 60));
  if (is_slice(gpu))
    *memory = {version, 10ULL << 30, 64ULL << 20, 7ULL << 30, 3ULL << 30};
  else
    *memory = {version, 80ULL << 30, 512ULL << 20, (79 - used) << 30, used << 30};
  return 0;
}
int nvmlDeviceGetUtilizationRates(Gpu gpu, Utilization* use) {
  if (is_slice(gpu) || is_sliced(gpu)) return kNotSupported;
  *use = {static_cast<unsigned>(setting("STAND_IN_USE", 80)) + gpu_of(gpu), 40 + gpu_of(gpu)};
  return 0;
}
int nvmlDeviceGetPowerUsage(Gpu gpu, unsigned* milliwatts) { return give(milliwatts, 350500U + gpu_of(gpu)); }
int nvmlDeviceGetEnforcedPowerLimit(Gpu, unsigned* milliwatts) { return give(milliwatts, 700000U); }
int nvmlDeviceGetTemperature(Gpu gpu, int sensor, unsigned* celsius) {
  return sensor != 0 ? kNotSupported : give(celsius, is_hot(gpu) ? 88U : 55U);
}
int nvmlDeviceGetClockInfo(Gpu gpu, int clock, unsigned* megahertz) {
  if (clock == 1) return give(megahertz, is_hot(gpu) ? 1200U : 1980U);
  return clock == 2 ? give(megahertz, 2619U) : kNotSupported;
}
int nvmlDeviceGetMaxClockInfo(Gpu, int clock, unsigned* megahertz) {
  return clock == 1 ? give(megahertz, 1980U) : kNotSupported;
}
int nvmlDeviceGetCurrentClocksEventReasons(Gpu gpu, unsigned long long* reasons) {
  // Software and hardware slow it down; 1 is that it is idle.
  return is_old() ? kNotSupported : give(reasons, is_hot(gpu) ? 0x60ULL : 0x1ULL);
}
int nvmlDeviceGetCurrentClocksThrottleReasons(Gpu, unsigned long long* reasons) {
  return give(reasons, 0x4ULL);
}
int nvmlDeviceGetPcieThroughput(Gpu, int counter, unsigned* kilobytes) {
  return give(kilobytes, counter == 0 ? 1000U : 2000U);
}
int nvmlDeviceGetPcieReplayCounter(Gpu, unsigned* count) { return give(count, 3U); }
int nvmlDeviceGetTotalEnergyConsumption(Gpu, unsigned long long* millijoules) {
  return give(millijoules, 5000ULL);
}
int nvmlDeviceGetFieldValues(Gpu gpu, int count, FieldValue* values) {
  for (int i = 0; i < count; ++i) {
    FieldValue& field = values[i];
    field.status = 0;
    if (field.field == 82) {  // temperature of memory, 32 bits
      field.type = 1;
      field.value = is_hot(gpu) ? 95 : 60;
    } else if ((field.field == 138 || field.field == 139) && field.scope == ~0U) {  // NVLink, 64 bits
      field.type = 3;
      field.value = field.field == 138 ? 10 : 20;
      if (setting("STAND_IN_NVLINK", 0) == 0) field.status = kNotSupported;
    } else {
      field.status = kNotSupported;
    }
  }
  return 0;
}
int nvmlEventSetCreate(void** set) { return give(set, reinterpret_cast<void*>(uintptr_t{1})); }
int nvmlDeviceRegisterEvents(Gpu, unsigned long long types, void*) {
  xids_told = 0;
  return is_old() || types != 8 ? kNotSupported : 0;
}
int nvmlEventSetWait_v2(void*, EventData* data, unsigned milliseconds) {
  const int xid = setting("STAND_IN_XID", 0);
  if (milliseconds != 0 || xid == 0 || xids_told++ > 0) return kTimeout;
  *data = {nullptr, 8, static_cast<unsigned long long>(xid), 0, 0};
  return 0;
}
int nvmlEventSetFree(void*) { return 0; }
int nvmlDeviceGetMemoryInfo(Gpu, Memory* memory) {
  *memory = {80ULL << 30, 79ULL << 30, 1ULL << 30};
  return 0;
}
int nvmlDeviceGetPersistenceMode(Gpu, int* mode) { return give(mode, setting("STAND_IN_PERSISTENT", 1)); }
int nvmlDeviceGetMigMode(Gpu, unsigned* now, unsigned* later) {
  return give(now, static_cast<unsigned>(setting("STAND_IN_MIG", 0))) + give(later, 0U);
}
int nvmlDeviceGetTotalEccErrors(Gpu, int kind, int counter, unsigned long long* errors) {
  const bool asked_for = kind == 1 && counter == 0;
  return give(errors, asked_for ? static_cast<unsigned long long>(setting("STAND_IN_ECC", 0)) : 12345ULL);
}
int nvmlDeviceGetPowerManagementLimit(Gpu, unsigned* milliwatts) {
  return give(milliwatts, static_cast<unsigned>(setting("STAND_IN_POWER", 700)) * 1000U);
}
int nvmlDeviceGetPowerManagementDefaultLimit(Gpu, unsigned* milliwatts) { return give(milliwatts, 700000U); }
int nvmlDeviceGetRemappedRows(Gpu, unsigned* corrected, unsigned* uncorrected, unsigned* pending,
                              unsigned* failed) {
  *corrected = 7;
  *uncorrected = 7;
  *pending = static_cast<unsigned>(setting("STAND_IN_PENDING", 0));
  *failed = static_cast<unsigned>(setting("STAND_IN_BROKEN", 0));
  return 0;
}
int nvmlDeviceGetP2PStatus(Gpu, Gpu, int capability, int* status) {
  return give(status, capability == 2 && setting("STAND_IN_NVLINK", 0) == 1 ? 0 : 5);
}
int nvmlDeviceGetTopologyCommonAncestor(Gpu, Gpu, int* level) { return give(level, 50); }

}  // extern "C"
