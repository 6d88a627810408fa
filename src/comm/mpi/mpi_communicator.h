#pragma once

#include <mpi.h>

#include <deque>
#include <limits>
#include <vector>

#include "comm/host_communicator.h"

namespace lockstep::comm {

/// A group of processes on host memory: MPI's non-blocking operations, polled, since a blocked MPI call can
/// be neither cancelled nor given a deadline. Owns its MPI communicator. After an error, operations that
/// cannot be cancelled (collectives, sends) may still touch their buffers: the job is expected to end.
class MpiCommunicator : public HostCommunicator {
 public:
  /// `largest_count` is what one MPI call may count; tests make it small.
  MpiCommunicator(MPI_Comm comm, std::string name, int64_t largest_count = std::numeric_limits<int>::max());
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
    std::vector<MPI_Request> requests;  // of an exchange: one for each transfer, in the same order
  };

  void start_requests(Pending& pending);
  void start_reduction(Pending& pending);
  void start_exchange(Pending& pending);
  bool finished(Pending& pending);
  void check_arrival(const Operation& operation, size_t index, const MPI_Status& status) const;
  [[noreturn]] void fail_pending(const Operation& operation, const CommError& error);
  std::vector<std::string> unfinished(Pending& pending);
  void cancel_receives() noexcept;

  MPI_Comm comm_;
  int64_t largest_count_;
  std::deque<Pending> pending_;  // in start order
  std::vector<int> indices_;     // scratch of finished()
  std::vector<MPI_Status> statuses_;
};

}  // namespace lockstep::comm
