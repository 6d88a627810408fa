#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>

#include "comm/operation.h"
#include "lockstep/error.h"

namespace lockstep::comm {

/// Whether a communicator is dead, and why. The first reason stays. Thread-safe.
class Death {
 public:
  void mark(std::string_view reason, ExitCode code) noexcept;
  bool marked() const noexcept { return marked_.load(std::memory_order_acquire); }
  /// Throws CommError with the reason, if marked.
  void check(std::string_view who) const;

 private:
  std::atomic<bool> marked_{false};
  mutable std::mutex mutex_;  // guards the two below
  std::string reason_;
  ExitCode code_ = ExitCode::peer_lost;
};

/// The common base of all backends. Every public call becomes one checked Operation, and errors mark the
/// communicator dead.
class CheckedCommunicator : public Communicator {
 public:
  int rank() const final { return rank_; }
  int size() const final { return size_; }
  const std::string& name() const { return name_; }
  Ticket all_reduce(void* data, int64_t count, DType dtype, ReduceOp op, device::Stream& stream) final {
    return submit({OperationKind::all_reduce, data, count, dtype, op}, stream);
  }
  Ticket all_gather(void* data, int64_t block_bytes, device::Stream& stream) final {
    return submit({OperationKind::all_gather, data, block_bytes}, stream);
  }
  Ticket broadcast(void* data, int64_t size_bytes, int root, device::Stream& stream) final {
    return submit({.kind = OperationKind::broadcast, .data = data, .count = size_bytes, .root = root},
                  stream);
  }
  Ticket exchange(std::span<const Transfer> transfers, device::Stream& stream) final {
    return submit({.kind = OperationKind::exchange, .transfers = {transfers.begin(), transfers.end()}},
                  stream);
  }
  Ticket barrier(device::Stream& stream) final { return submit({OperationKind::barrier}, stream); }
  TransferredBytes transferred() const final { return transferred_; }
  bool poll(Ticket operation) final {
    const int64_t left = outstanding();
    return left == 0 || operation.number <= started_ - left;
  }
  void abort(std::string_view reason) noexcept final {
    die(reason, ExitCode::peer_lost);
    settle();
  }

 protected:
  CheckedCommunicator(std::string name, int rank, int size, std::shared_ptr<Death> death)
      : name_(std::move(name)), rank_(rank), size_(size), death_(std::move(death)) {}

  /// REQUIRES: the communicator is alive, and the operation valid.
  virtual void enqueue(Operation operation, device::Stream& stream) = 0;
  /// Makes progress without blocking. Returns the number of operations given to enqueue() that are not
  /// complete; these are the last ones. Throws CommError if the communicator is dead.
  virtual int64_t outstanding() = 0;
  /// Whether reductions also accept bfloat16 and float16. Libraries of hosts add none.
  virtual bool reduces_halves() const { return sums_along_tree(); }
  /// Returns at once, because after a failed operation all communicators of the process must die before any
  /// code waits.
  virtual void die(std::string_view reason, ExitCode code) noexcept { death_->mark(reason, code); }
  /// For a dead communicator: waits, for a limited time, until none of its operations is in flight.
  virtual void settle() noexcept {}

  Death& death() const { return *death_; }
  void check_alive() const;  ///< throws CommError if dead
  [[noreturn]] void fail(std::string_view what, ExitCode code = ExitCode::peer_lost);  ///< marks dead, throws
  /// "rank 1 of 4 on communicator 'world' (mpi)"
  std::string who() const;

 private:
  Ticket submit(Operation operation, device::Stream& stream);

  std::string name_;
  int rank_, size_;
  int64_t started_ = 0;  // operations; the last one's number
  TransferredBytes transferred_;
  std::shared_ptr<Death> death_;  // shared by the ranks of the local backend
};

/// The message of a rank that has waited past its deadline.
std::string expired_message(const Operation& operation, double waited_ms,
                            const std::vector<std::string>& pending);

}  // namespace lockstep::comm
