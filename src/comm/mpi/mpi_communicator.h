#pragma once

#include <mpi.h>

#include <deque>
#include <string>

#include "comm/host_communicator.h"
#include "comm/mpi/mpi_messages.h"

namespace lockstep::comm {

/// A group of processes on host memory: MPI's non-blocking operations, polled, since a blocked MPI call can
/// be neither cancelled nor given a deadline. Owns its MPI communicator. After an error, operations that
/// cannot be cancelled (collectives, sends) may still touch their buffers: the job is expected to end.
class MpiCommunicator : public HostCommunicator {
 public:
  MpiCommunicator(MPI_Comm comm, std::string name, MessageRules rules);
  ~MpiCommunicator() override;

  std::string_view backend() const override { return "mpi"; }
  std::unique_ptr<Communicator> split(int color, int key) override;
  std::unique_ptr<Communicator> regroup(std::span<const int> members) override;
  std::unique_ptr<MessagePort> open_port() override;
  void synchronize(device::Stream&, Deadline deadline) override;

 protected:
  void start(Operation operation) override;
  int64_t outstanding() override;

 private:
  struct Pending {
    Operation operation;
    Clock::time_point started;
    MpiRequests requests;
  };

  void start_requests(Pending& pending);
  void start_all_reduce(Pending& pending);
  [[noreturn]] void fail_pending(const Operation& operation, const CommError& error);
  void cancel_receives() noexcept;

  MPI_Comm comm_;
  MessageRules rules_;
  std::deque<Pending> pending_;  // in start order
};

}  // namespace lockstep::comm
