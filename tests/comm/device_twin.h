#pragma once

#include <algorithm>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/ensure.h"
#include "comm/communicator.h"
#include "device/device.h"

namespace lockstep::comm {

/// A GPU of a test, and memory on it that is there from the beginning: a GPU may wait for all of its work
/// before it gives memory or takes it back.
struct TwinDevice {
  explicit TwinDevice(std::unique_ptr<device::Device> made)
      : device(std::move(made)), memory(device->allocate(kBytes)) {}

  static constexpr int64_t kBytes = int64_t{96} << 20;
  std::unique_ptr<device::Device> device;
  device::Buffer memory;
  int64_t used_bytes = 0;  // taken from the front; given back when nothing is in use
  int uses = 0;
  std::mutex mutex;  // the suite's communicators work from threads of their own, the emulated device does not
};

/// Runs the suite, whose buffers are the host's, on a communicator of device memory: each operation works on
/// copies of its buffers on the device, which are made when it starts, and copied back when everything is
/// found to be complete.
class DeviceTwin : public Communicator {
 public:
  DeviceTwin(std::unique_ptr<Communicator> inner, std::shared_ptr<TwinDevice> device)
      : device_(std::move(device)),
        stream_(device_->device->create_stream("twin")),
        inner_(std::move(inner)) {}
  ~DeviceTwin() override {
    std::lock_guard lock(device_->mutex);
    inner_.reset();
    stream_.reset();
    forget();
  }

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  std::string_view backend() const override { return inner_->backend(); }
  bool sums_along_tree() const override { return inner_->sums_along_tree(); }
  bool follows_stream() const override { return inner_->follows_stream(); }

  std::unique_ptr<Communicator> split(int color, int key) override {
    std::unique_ptr<Communicator> part = inner_->split(color, key);
    if (part == nullptr) return nullptr;
    std::lock_guard lock(device_->mutex);
    return std::make_unique<DeviceTwin>(std::move(part), device_);
  }

  Ticket all_reduce(void* data, int64_t count, DType dtype, ReduceOp op, device::Stream&) override {
    std::lock_guard lock(device_->mutex);
    return last_ = inner_->all_reduce(twin(data, count * size_of(dtype)), count, dtype, op, *stream_);
  }
  Ticket all_gather(void* data, int64_t block_bytes, device::Stream&) override {
    std::lock_guard lock(device_->mutex);
    return last_ = inner_->all_gather(twin(data, block_bytes * size()), block_bytes, *stream_);
  }
  Ticket broadcast(void* data, int64_t size_bytes, int root, device::Stream&) override {
    std::lock_guard lock(device_->mutex);
    return last_ = inner_->broadcast(twin(data, size_bytes), size_bytes, root, *stream_);
  }
  Ticket exchange(std::span<const Transfer> transfers, device::Stream&) override {
    std::lock_guard lock(device_->mutex);
    std::vector<Transfer> twins(transfers.begin(), transfers.end());
    for (auto& transfer : twins)
      transfer.data =
          twin(transfer.data, transfer.size_bytes, transfer.direction == Transfer::Direction::receive);
    return last_ = inner_->exchange(twins, *stream_);
  }
  Ticket barrier(device::Stream&) override {
    std::lock_guard lock(device_->mutex);
    return last_ = inner_->barrier(*stream_);
  }

  void check_health() override {
    std::lock_guard lock(device_->mutex);
    inner_->check_health();
  }
  bool poll(Ticket operation) override {
    std::lock_guard lock(device_->mutex);
    const bool complete = inner_->poll(operation);
    if (complete) take_results(operation);
    return complete;
  }
  /// The device is not held while others need it: only when there is nothing to wait for any more does it
  /// wait.
  void synchronize(device::Stream&, Deadline deadline) override {
    while (!test() && Clock::now() < deadline) std::this_thread::yield();
    std::lock_guard lock(device_->mutex);
    inner_->synchronize(*stream_, deadline);
    take_results(kEverything);
  }
  void abort(std::string_view reason) noexcept override { inner_->abort(reason); }

 private:
  struct Twin {
    void* host;
    std::byte* device;
    int64_t size_bytes;
    bool changes;
    int64_t operation;
  };

  /// What cannot be meant is passed on as it is: the communicator has to refuse it.
  void* twin(void* host, int64_t size_bytes, bool changes = true) {
    if (host == nullptr || size_bytes <= 0) return host;
    ensure(device_->used_bytes + size_bytes <= TwinDevice::kBytes,
           "the suite's buffers fit the twin's memory");
    twins_.push_back(
        {host, device_->memory.data() + device_->used_bytes, size_bytes, changes, last_.number + 1});
    device_->used_bytes += (size_bytes + 255) / 256 * 256;
    ++device_->uses;
    device_->device->copy_now(twins_.back().device, host, size_bytes);
    return twins_.back().device;
  }

  /// Of the operations up to this one.
  void take_results(Ticket upto) {
    const auto later = std::partition_point(twins_.begin(), twins_.end(),
                                            [&](const Twin& twin) { return twin.operation <= upto.number; });
    for (auto twin = twins_.begin(); twin != later; ++twin)
      if (twin->changes) device_->device->copy_now(twin->host, twin->device, twin->size_bytes);
    forget(later);
  }

  void forget() { forget(twins_.end()); }
  void forget(std::vector<Twin>::iterator later) {
    device_->uses -= static_cast<int>(later - twins_.begin());
    if (device_->uses == 0) device_->used_bytes = 0;
    twins_.erase(twins_.begin(), later);
  }

  std::shared_ptr<TwinDevice> device_;
  std::unique_ptr<device::Stream> stream_;
  std::unique_ptr<Communicator> inner_;
  std::vector<Twin> twins_;  // in the order of their operations
  Ticket last_;
};

}  // namespace lockstep::comm
