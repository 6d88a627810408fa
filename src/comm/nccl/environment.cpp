#include "comm/nccl/environment.h"

#include <fmt/format.h>

#include <cstdlib>
#include <string>

#include "base/host_name.h"
#include "comm/nccl/check.h"

namespace lockstep::comm {
namespace {

void set_unless_given(const char* name, const std::string& value) {
  ::setenv(name, value.c_str(), /*overwrite=*/0);
}

}  // namespace

void set_nccl_environment(GpuAlgorithm algorithm) {
  // Otherwise the first operation of a kind connects the ranks: it would wait on the host for all of them,
  // and take memory that a plan has given to others.
  set_unless_given("NCCL_RUNTIME_CONNECT", "0");
  // Operations of several communicators on one GPU start in the order in which this process issues them, as
  // programs are proven: otherwise two GPUs might start two in different orders, each waiting for the
  // other's.
  set_unless_given("NCCL_LAUNCH_ORDER_IMPLICIT", "1");
  if (algorithm == GpuAlgorithm::automatic) return;
  int version = 0;
  check(ncclGetVersion(&version));
  const bool ring = algorithm == GpuAlgorithm::ring;
  // Only all_reduce can choose; from 2.24 on, NCCL takes a name without "allreduce:" for all functions, and
  // refuses those that have no tree.
  if (version >= NCCL_VERSION(2, 24, 0))
    set_unless_given("NCCL_ALGO", ring ? "allreduce:ring" : "allreduce:tree");
  else
    set_unless_given("NCCL_ALGO", ring ? "Ring" : "Tree");
}

void allow_shared_gpu(int rank) {
  set_unless_given("NCCL_HOSTID", fmt::format("{}-rank{}", host_name(), rank));
}

}  // namespace lockstep::comm
