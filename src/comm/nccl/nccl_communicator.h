#pragma once

#include <nccl.h>

#include <memory>
#include <string>

#include "comm/nccl/nccl_handle.h"
#include "comm/stream_communicator.h"

namespace lockstep::comm {

/// Ranks with a GPU each, connected by NCCL. Operations are work of their streams. After an error, kernels
/// that wait for other ranks are ended, and what their buffers hold is unspecified.
///
/// Buffers are not registered (ncclCommRegister): in sums by NVLS, on plain memory too, NCCL would have the
/// ranks of a host meet in every call, and wait there for each other without an end that abort() could bring
/// about. docs/gpu.md says what that costs.
class NcclCommunicator : public StreamCommunicator {
 public:
  /// COLLECTIVE over `host`, which is this communicator's alone: the ranks meet there and at splits.
  NcclCommunicator(std::unique_ptr<Communicator> host, device::Device& device,
                   const GpuCommunicatorOptions& options, std::string name);
  ~NcclCommunicator() override;

  std::string_view backend() const override { return "nccl"; }
  /// With an id of its own, over a split of the host's communicator: so that it depends on nothing of this
  /// one.
  std::unique_ptr<Communicator> split(int color, int key) override;
  void check_health() override;

 protected:
  void issue(const Operation& operation, device::Stream& stream) override;
  void die(std::string_view reason, ExitCode code) noexcept override;
  void settle() noexcept override;

 private:
  void connect();
  void connect_partners(Deadline deadline);
  ncclUniqueId shared_id();

  std::unique_ptr<Communicator> host_;
  GpuCommunicatorOptions options_;
  device::Buffer scratch_;              // what barriers add up, and what is sent to connect pairs
  std::unique_ptr<NcclHandle> handle_;  // null if this rank is alone: in place, everything is its own result
};

}  // namespace lockstep::comm
