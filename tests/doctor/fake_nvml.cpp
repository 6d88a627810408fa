// Functions of NVIDIA's management library with the signatures that it documents, over GPUs that the
// environment describes: FAKE_GPUS says how many there are; FAKE_NVML_STATUS what initialisation returns;
// FAKE_ECC, FAKE_MIG, FAKE_POWER (watts of 700), FAKE_PERSISTENT, FAKE_PENDING, FAKE_BROKEN and FAKE_NVLINK
// how they are.

#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace {

constexpr int kNotFound = 6;

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

int nvmlInit_v2() { return setting("FAKE_NVML_STATUS", 0); }
int nvmlShutdown() { return 0; }
int nvmlSystemGetDriverVersion(char* to, unsigned size) { return write_text(to, size, "580.65.06"); }
int nvmlSystemGetCudaDriverVersion_v2(int* version) { return give(version, 13000); }
int nvmlDeviceGetCount_v2(unsigned* count) {
  return give(count, static_cast<unsigned>(setting("FAKE_GPUS", 0)));
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, Gpu* gpu) {
  if (static_cast<int>(index) == setting("FAKE_LOST", -1)) return kNotFound;
  return give(gpu, reinterpret_cast<Gpu>(static_cast<uintptr_t>(index + 1)));
}
int nvmlDeviceGetName(Gpu, char* to, unsigned size) { return write_text(to, size, "NVIDIA H100"); }
int nvmlDeviceGetMemoryInfo(Gpu, Memory* memory) {
  *memory = {80ULL << 30, 79ULL << 30, 1ULL << 30};
  return 0;
}
int nvmlDeviceGetPersistenceMode(Gpu, int* mode) { return give(mode, setting("FAKE_PERSISTENT", 1)); }
int nvmlDeviceGetMigMode(Gpu, unsigned* now, unsigned* later) {
  return give(now, static_cast<unsigned>(setting("FAKE_MIG", 0))) + give(later, 0U);
}
int nvmlDeviceGetTotalEccErrors(Gpu, int kind, int counter, unsigned long long* errors) {
  const bool asked_for = kind == 1 && counter == 0;
  return give(errors, asked_for ? static_cast<unsigned long long>(setting("FAKE_ECC", 0)) : 12345ULL);
}
int nvmlDeviceGetPowerManagementLimit(Gpu, unsigned* milliwatts) {
  return give(milliwatts, static_cast<unsigned>(setting("FAKE_POWER", 700)) * 1000U);
}
int nvmlDeviceGetPowerManagementDefaultLimit(Gpu, unsigned* milliwatts) { return give(milliwatts, 700000U); }
int nvmlDeviceGetRemappedRows(Gpu, unsigned* corrected, unsigned* uncorrected, unsigned* pending,
                              unsigned* failed) {
  *corrected = 7;
  *uncorrected = 7;
  *pending = static_cast<unsigned>(setting("FAKE_PENDING", 0));
  *failed = static_cast<unsigned>(setting("FAKE_BROKEN", 0));
  return 0;
}
int nvmlDeviceGetP2PStatus(Gpu, Gpu, int capability, int* status) {
  return give(status, capability == 2 && setting("FAKE_NVLINK", 0) == 1 ? 0 : 5);
}
int nvmlDeviceGetTopologyCommonAncestor(Gpu, Gpu, int* level) { return give(level, 50); }

}  // extern "C"
