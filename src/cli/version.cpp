#include "cli/version.h"

#include <dnnl.h>
#include <fmt/format.h>
#include <google/protobuf/stubs/common.h>

#include "cli/commit.h"
#include "comm/communicator.h"
#include "comm/mpi_library.h"
#include "device/device.h"

namespace lockstep::cli {
namespace {

std::string compiler() {
#if defined(__clang__)
  return fmt::format("clang {}.{}.{}", __clang_major__, __clang_minor__, __clang_patchlevel__);
#else
  return fmt::format("g++ {}.{}.{}", __GNUC__, __GNUC_MINOR__, __GNUC_PATCHLEVEL__);
#endif
}

std::string devices() {
  const std::string gpu = device::gpu_libraries();
  return gpu.empty() ? "CPUs"
                     : fmt::format("CPUs, GPUs by CUDA ({} {})", gpu, comm::gpu_communication_library());
}

}  // namespace

std::string version_text() {
  const dnnl_version_t* dnnl = dnnl_version();
  const std::string mpi = comm::mpi_library();
  return fmt::format(
      "lockstep {}, commit {}\ncompiled by {} ({}) for {}\ncomputes on {}\nlibraries: {}, oneDNN {}.{}.{}, "
      "Protocol Buffers {}\n",
      LOCKSTEP_VERSION, kCommit, compiler(), LOCKSTEP_BUILD_TYPE, LOCKSTEP_CPU_ARCH, devices(),
      mpi.substr(0, mpi.find(',')), dnnl->major, dnnl->minor, dnnl->patch,
      google::protobuf::internal::VersionString(GOOGLE_PROTOBUF_VERSION));
}

}  // namespace lockstep::cli
