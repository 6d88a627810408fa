#pragma once

#include <memory>

#include "comm/communicator.h"
#include "comm/control/progress.h"

namespace lockstep {

/// A communicator whose waiting the watchdog knows of: while synchronize() waits, the training thread counts as waiting
/// for its peers, and whatever it did before is what it does afterwards. Deadlines do not count then, since the watchdog
/// tells a peer that is late from one that is lost. What split() makes is not watched: executors report for themselves.
/// `progress` outlives it.
class WatchedCommunicator : public Communicator {
 public:
  WatchedCommunicator(std::unique_ptr<Communicator> inner, Progress& progress)
      : inner_(std::move(inner)), progress_(progress) {}

  /// Where nobody watches, deadlines count.
  void set_watched(bool watched) { watched_ = watched; }

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  std::string_view backend() const override { return inner_->backend(); }
  bool sums_along_tree() const override { return inner_->sums_along_tree(); }
  std::unique_ptr<Communicator> split(int color, int key) override { return inner_->split(color, key); }
  void all_reduce(void* data, int64_t count, DType dtype, ReduceOp op, Stream& stream) override {
    inner_->all_reduce(data, count, dtype, op, stream);
  }
  void reduce_scatter(void* data, int64_t count, DType dtype, ReduceOp op, Stream& stream) override {
    inner_->reduce_scatter(data, count, dtype, op, stream);
  }
  void all_gather(void* data, int64_t block_bytes, Stream& stream) override {
    inner_->all_gather(data, block_bytes, stream);
  }
  void broadcast(void* data, int64_t size_bytes, int root, Stream& stream) override {
    inner_->broadcast(data, size_bytes, root, stream);
  }
  void exchange(std::span<const Transfer> transfers, Stream& stream) override { inner_->exchange(transfers, stream); }
  void barrier(Stream& stream) override { inner_->barrier(stream); }
  bool test() override { return inner_->test(); }
  void synchronize(Stream& stream, Deadline deadline) override;
  void abort(std::string_view reason) noexcept override { inner_->abort(reason); }

 private:
  std::unique_ptr<Communicator> inner_;
  Progress& progress_;
  bool watched_ = true;
};

}  // namespace lockstep
