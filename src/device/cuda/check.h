#pragma once

#include <cublasLt.h>
#include <cuda_runtime.h>

#include <source_location>

namespace lockstep::device {

// Throw DeviceError with the library's own words, the call's place and the device, unless the status is
// success.
void check(cudaError_t status, std::source_location where = std::source_location::current());
void check(cublasStatus_t status, std::source_location where = std::source_location::current());

}  // namespace lockstep::device
