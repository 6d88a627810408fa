#include "comm/nccl/check.h"

#include <fmt/format.h>

#include <string_view>

#include "base/host_name.h"
#include "lockstep/error.h"

namespace lockstep::comm {
namespace {

std::string_view advice_for(ncclResult_t status) {
  switch (status) {
    case ncclRemoteError:
      return "another rank is gone, or the network to it: look at the other ranks' messages";
    case ncclSystemError:
      return "often the network or /dev/shm: NCCL_DEBUG=INFO says which call failed, NCCL_SOCKET_IFNAME "
             "names the interface to use";
    case ncclUnhandledCudaError:
      return "often no memory left on the GPU, or a kernel that failed before: NCCL_DEBUG=INFO says more";
    default:
      return "NCCL_DEBUG=INFO says more";
  }
}

}  // namespace

void check(ncclResult_t status, std::source_location where) {
  if (status == ncclSuccess || status == ncclInProgress) return;
  std::string_view file = where.file_name();
  if (const auto slash = file.rfind("/src/"); slash != file.npos) file.remove_prefix(slash + 1);
  // NCCL keeps the last message of a process, not of a communicator.
  const std::string_view words = ncclGetLastError(nullptr);
  throw CommError(fmt::format("NCCL reports {}{}{} on host {}, at {}:{} in {}; {}",
                              ncclGetErrorString(status), words.empty() ? "" : ": ", words, host_name(), file,
                              where.line(), where.function_name(), advice_for(status)));
}

}  // namespace lockstep::comm
