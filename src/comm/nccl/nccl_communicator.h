#pragma once

#include <nccl.h>

#include <memory>
#include <string>

#include "comm/nccl/nccl_handle.h"
#include "comm/stream_communicator.h"

namespace lockstep::comm {

/// Ranks with one GPU each, connected by NCCL. Operations are work of their streams. After an error, kernels
/// that wait for other ranks are ended, and the contents of their buffers are unspecified.
///
/// Buffers are not registered (ncclCommRegister): in sums by NVLS, also on plain memory, NCCL would make the
/// ranks of a host meet in every call, and abort() could not end this waiting. docs/gpu.md says what it
/// costs.
class NcclCommunicator : public StreamCommunicator {
 public:
  /// COLLECTIVE over `host`, which only this communicator uses: here and in splits.
  NcclCommunicator(std::unique_ptr<Communicator> host, device::Device& device,
                   const GpuCommunicatorOptions& options, std::string name);
  ~NcclCommunicator() override;

  std::string_view backend() const override { return "nccl"; }
  /// Has its own id, over a split of the host's communicator, so that it does not depend on this
  /// communicator.
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
