#include "device/cuda/check.h"

#include <fmt/format.h>

#include <string>
#include <string_view>

#include "lockstep/error.h"

namespace lockstep::device {
namespace {

[[noreturn]] void fail(std::string_view library, std::string_view name, std::string_view words,
                       std::string_view advice, const std::source_location& where) {
  int device = -1;
  if (cudaGetDevice(&device) != cudaSuccess) device = -1;
  std::string_view file = where.file_name();
  if (const auto slash = file.rfind("/src/"); slash != file.npos) file.remove_prefix(slash + 1);
  throw DeviceError(fmt::format("{} reports {} ({}) on device {}, at {}:{} in {}{}{}", library, name, words,
                                device, file, where.line(), where.function_name(), advice.empty() ? "" : "; ",
                                advice));
}

std::string_view advice_for(cudaError_t status) {
  switch (status) {
    case cudaErrorMemoryAllocation:
      return "use a smaller trainer.micro_batch, or more workers";
    case cudaErrorNoKernelImageForDevice:
      return "this build has no kernels for this GPU: configure it with LOCKSTEP_CUDA_ARCHITECTURES";
    case cudaErrorInsufficientDriver:
      return "install a driver that is new enough for this build's CUDA";
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchFailure:
      return "a kernel failed: run a small config under compute-sanitizer, and look at the GPU's messages in "
             "the kernel log";
    default:
      return "";
  }
}

}  // namespace

void check(cudaError_t status, std::source_location where) {
  if (status == cudaSuccess) return;
  fail("CUDA", cudaGetErrorName(status), cudaGetErrorString(status), advice_for(status), where);
}

void check(cublasStatus_t status, std::source_location where) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  fail("cuBLAS", cublasLtGetStatusName(status), cublasLtGetStatusString(status), "", where);
}

}  // namespace lockstep::device
