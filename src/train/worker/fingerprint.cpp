#include "train/worker/fingerprint.h"

#include <fmt/format.h>
#include <gnu/libc-version.h>

#include <dnnl.hpp>

#include "base/hash.h"
#include "base/text.h"

namespace lockstep::train {

std::string arithmetic_fingerprint(int intra_op_threads) {
  const dnnl_version_t* version = dnnl_version();
  return fmt::format("cpu onednn={}.{}.{} isa={:#x} libc={} intra_op_threads={}", version->major,
                     version->minor, version->patch, static_cast<unsigned>(dnnl_get_effective_cpu_isa()),
                     gnu_get_libc_version(), intra_op_threads);
}

std::string arithmetic_fingerprint(const device::Device& device, int intra_op_threads) {
  if (device.kind() != device::DeviceKind::cuda) return arithmetic_fingerprint(intra_op_threads);
  return fmt::format("gpu={} {} libc={}", device.description(), device::gpu_libraries(),
                     gnu_get_libc_version());
}

std::string libc_version() { return gnu_get_libc_version(); }

std::string binary_identity() { return to_hex(hash64(read_text_file("/proc/self/exe"))); }

}  // namespace lockstep::train
