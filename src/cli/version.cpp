#include "cli/version.h"

#include <fmt/format.h>

#include "cli/commit.h"
#include "comm/communicator.h"
#include "comm/mpi_library.h"
#include "config/text_library.h"
#include "device/device.h"
#include "train/worker/fingerprint.h"

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

std::string commit_text() { return fmt::format("{}, commit {}", LOCKSTEP_VERSION, kCommit); }

std::string version_text() {
  const std::string mpi = comm::mpi_library();
  return fmt::format("lockstep {}\ncompiled by {} ({}) for {}\ncomputes on {}; {}\nlibraries: {}, {}\n",
                     commit_text(), compiler(), LOCKSTEP_BUILD_TYPE, LOCKSTEP_CPU_ARCH, devices(),
                     train::arithmetic_fingerprint(), mpi.substr(0, mpi.find(',')), config::text_library());
}

}  // namespace lockstep::cli
