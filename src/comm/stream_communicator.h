#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "comm/checked_communicator.h"
#include "device/device.h"

namespace lockstep::comm {

/// The common base of backends on device memory. An operation is work of its stream, and an event after it
/// tells when it is complete. `device` outlives the communicator.
class StreamCommunicator : public CheckedCommunicator {
 public:
  bool follows_stream() const final { return true; }
  bool sums_along_tree() const final { return size() == 1; }
  void synchronize(device::Stream&, Deadline deadline) final;

 protected:
  StreamCommunicator(std::string name, int rank, int size, std::shared_ptr<Death> death,
                     device::Device& device)
      : CheckedCommunicator(std::move(name), rank, size, std::move(death)), device_(device) {}

  /// Enqueues `operation` on the stream. The communicator is dead after whatever it throws.
  virtual void issue(const Operation& operation, device::Stream& stream) = 0;
  /// For devices that work only when they are polled: does a moment's work, without waiting.
  virtual void advance() {}
  /// Whether the operation with this number (from 1, in the order of issue()) is complete once its stream has
  /// passed it.
  virtual bool is_complete_behind(int64_t) const { return true; }
  /// Whether all operations are complete; also false if the device cannot tell any more.
  bool idle() noexcept;
  /// Whether streams have passed all operations; likewise.
  bool streams_have_passed() const noexcept;
  /// Whether the device cannot tell any more.
  bool has_failed() const noexcept;

  bool reduces_halves() const final { return true; }
  device::Device& device() const { return device_; }

 private:
  struct Pending {
    int64_t number;
    Operation operation;
    Clock::time_point started;
    std::unique_ptr<device::Event> behind;
    const device::Stream* stream;
  };

  void enqueue(Operation operation, device::Stream& stream) final;
  int64_t outstanding() final;
  void retire();  ///< forgets what is complete

  device::Device& device_;
  int64_t enqueued_ = 0;
  std::deque<Pending> pending_;  // in the order of their start, which is that of their completion
  std::vector<std::unique_ptr<device::Event>> spare_;  // events cost a call to make
};

}  // namespace lockstep::comm
