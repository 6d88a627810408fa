#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "device/nvml/gpu_facts.h"
#include "doctor/check.h"

namespace lockstep::doctor {

/// How often the kernel's log contains each XID, the driver's number for a GPU error. `log`: lines of the
/// kernel's log.
std::map<int, int> xid_counts(std::string_view log);

/// `xids`: nothing if the kernel's log may not be read.
std::vector<Finding> judge_gpus(const device::NvmlFacts& facts,
                                const std::optional<std::map<int, int>>& xids);

struct CudaFacts {
  int gpus = 0;           ///< as NVML counts them
  std::string libraries;  ///< that this program computes with on GPUs: "cuda=13.0 ..."; empty: built without
  std::string driver_problem;  ///< why libcuda.so.1 does not answer; empty: it does
  int driver_version = 0;      ///< of CUDA, that the driver supports: 13000 is 13.0
};
Finding judge_cuda(const CudaFacts& facts);

struct NcclFacts {
  int gpus = 0;
  std::string library;  ///< "nccl=2.28.9"; empty: built without
};
Finding judge_nccl(const NcclFacts& facts);

std::vector<Finding> look_at_gpus(const Request& request);
std::vector<Finding> look_at_cuda(const Request& request);
std::vector<Finding> look_at_nccl(const Request& request);

}  // namespace lockstep::doctor
