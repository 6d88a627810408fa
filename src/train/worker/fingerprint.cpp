#include "train/worker/fingerprint.h"

#include <fmt/format.h>
#include <gnu/libc-version.h>

#include "base/hash.h"
#include "base/text.h"

namespace lockstep::train {
namespace {

/// Counted up when a kernel for CPUs adds in another order than before.
constexpr int kOrderOfSums = 2;
/// Likewise for GPUs. 2: biases before norms are summed with the norm's own gradients.
constexpr int kOrderOfSumsOnGpus = 2;

}  // namespace

std::string arithmetic_fingerprint() {
  std::string fingerprint = fmt::format("cpu sums={} libc={}", kOrderOfSums, gnu_get_libc_version());
#if defined(__x86_64__)
  // Without fused multiply-adds the C library has other code for its functions.
  if (!__builtin_cpu_supports("fma")) fingerprint += " without fma";
#endif
  return fingerprint;
}

std::string arithmetic_fingerprint(const device::Device& device, int64_t summed_samples) {
  if (device.kind() != device::DeviceKind::cuda) return arithmetic_fingerprint();
  return fmt::format("gpu={} sums={} {} micro_batch={} libc={}", device.description(), kOrderOfSumsOnGpus,
                     device::gpu_libraries(), summed_samples, gnu_get_libc_version());
}

std::string libc_version() { return gnu_get_libc_version(); }

std::string binary_identity() { return to_hex(hash64(read_text_file("/proc/self/exe"))); }

}  // namespace lockstep::train
