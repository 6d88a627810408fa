#pragma once

#include <memory>
#include <utility>

#include "comm/message_port.h"

namespace lockstep::comm {

/// Passes every call on to another communicator, which it owns. A base for classes that override only some
/// calls.
class ForwardingCommunicator : public Communicator {
 public:
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  std::string_view backend() const override { return inner_->backend(); }
  std::unique_ptr<Communicator> split(int color, int key) override { return inner_->split(color, key); }
  std::unique_ptr<Communicator> regroup(std::span<const int> members) override {
    return inner_->regroup(members);
  }
  std::unique_ptr<MessagePort> open_port() override { return inner_->open_port(); }
  Ticket all_reduce(void* data, int64_t count, DType dtype, ReduceOp op, device::Stream& stream) override {
    return inner_->all_reduce(data, count, dtype, op, stream);
  }
  bool sums_along_tree() const override { return inner_->sums_along_tree(); }
  Ticket all_gather(void* data, int64_t block_bytes, device::Stream& stream) override {
    return inner_->all_gather(data, block_bytes, stream);
  }
  Ticket broadcast(void* data, int64_t size_bytes, int root, device::Stream& stream) override {
    return inner_->broadcast(data, size_bytes, root, stream);
  }
  Ticket exchange(std::span<const Transfer> transfers, device::Stream& stream) override {
    return inner_->exchange(transfers, stream);
  }
  Ticket barrier(device::Stream& stream) override { return inner_->barrier(stream); }
  TransferredBytes transferred() const override { return inner_->transferred(); }
  bool follows_stream() const override { return inner_->follows_stream(); }
  void check_health() override { inner_->check_health(); }
  bool poll(Ticket operation) override { return inner_->poll(operation); }
  void synchronize(device::Stream& stream, Deadline deadline) override {
    inner_->synchronize(stream, deadline);
  }
  void abort(std::string_view reason) noexcept override { inner_->abort(reason); }

 protected:
  explicit ForwardingCommunicator(std::unique_ptr<Communicator> inner) : inner_(std::move(inner)) {}

  const std::unique_ptr<Communicator> inner_;
};

}  // namespace lockstep::comm
