#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>

#include "comm/operation.h"
#include "lockstep/error.h"

namespace lockstep {

/// Whether a communicator is dead, and why. The first reason stays. Thread-safe.
class Death {
 public:
  void mark(std::string_view reason, ExitCode code) noexcept;
  bool marked() const noexcept { return marked_.load(std::memory_order_acquire); }
  /// Throws CommError with the reason where marked.
  void check(std::string_view who) const;

 private:
  std::atomic<bool> marked_{false};
  mutable std::mutex mutex_;  // guards the two below
  std::string reason_;
  ExitCode code_ = ExitCode::peer_lost;
};

/// What the backends on host memory share: every public call becomes one checked Operation, and errors mark
/// the communicator dead. They start operations at once, on the calling thread, and never touch the stream:
/// with an asynchronous CPU stream, the calls belong into work of that stream.
class HostCommunicator : public Communicator {
 public:
  int rank() const final { return rank_; }
  int size() const final { return size_; }
  const std::string& name() const { return name_; }
  void all_reduce(void* data, int64_t count, DType dtype, ReduceOp op, Stream&) final {
    submit({OperationKind::all_reduce, data, count, dtype, op});
  }
  void reduce_scatter(void* data, int64_t count, DType dtype, ReduceOp op, Stream&) final {
    submit({OperationKind::reduce_scatter, data, count, dtype, op});
  }
  void all_gather(void* data, int64_t block_bytes, Stream&) final {
    submit({OperationKind::all_gather, data, block_bytes});
  }
  void broadcast(void* data, int64_t size_bytes, int root, Stream&) final {
    submit({.kind = OperationKind::broadcast, .data = data, .count = size_bytes, .root = root});
  }
  void exchange(std::span<const Transfer> transfers, Stream&) final {
    submit({.kind = OperationKind::exchange, .transfers = {transfers.begin(), transfers.end()}});
  }
  void barrier(Stream&) final { submit({OperationKind::barrier}); }
  void abort(std::string_view reason) noexcept final { die(reason, ExitCode::peer_lost); }

 protected:
  HostCommunicator(std::string name, int rank, int size, std::shared_ptr<Death> death)
      : name_(std::move(name)), rank_(rank), size_(size), death_(std::move(death)) {}

  virtual void start(Operation operation) = 0;
  virtual void die(std::string_view reason, ExitCode code) noexcept { death_->mark(reason, code); }

  Death& death() const { return *death_; }
  void check_alive() const;  ///< throws CommError where dead
  [[noreturn]] void fail(std::string_view what, ExitCode code = ExitCode::peer_lost);  ///< marks dead, throws
  /// "rank 1 of 4 on communicator 'world' (mpi)"
  std::string who() const;

 private:
  void submit(Operation operation);

  std::string name_;
  int rank_, size_;
  std::shared_ptr<Death> death_;  // shared by the ranks of the local backend
};

/// What a rank says that has waited past its deadline.
std::string expired_message(const Operation& operation, double waited_ms,
                            const std::vector<std::string>& pending);

}  // namespace lockstep
