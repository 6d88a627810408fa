#pragma once

#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/clock.h"
#include "device/device.h"

namespace lockstep::device {

class EmulatedDevice;

/// A stream of the emulated GPU, which also takes work that waits for others, as a collective does.
class EmulatedStream : public Stream {
 public:
  EmulatedStream(EmulatedDevice& device, std::string name) : device_(device), name_(std::move(name)) {}
  ~EmulatedStream() override;

  const std::string& name() const override { return name_; }
  void launch(std::function<void()> work) override;
  void record(Event& event) override;
  void wait(const Event& event) override;
  void write_word(std::atomic<uint64_t>& word, uint64_t value) override;
  void wait_word(const std::atomic<uint64_t>& word, uint64_t value) override;
  void synchronize() override;
  /// Runs work of all streams for a moment; throws what this stream's work threw.
  bool idle() override;

  /// `work` is called again and again, other streams' work between, until it returns true.
  void launch_polled(std::function<bool()> work);

 private:
  friend class EmulatedDevice;
  /// Runs the first piece of work; false if it has to wait, or there is none.
  bool advance();
  void push(std::function<bool()> work);

  EmulatedDevice& device_;
  std::string name_;
  std::deque<std::function<bool()>> queue_;
  std::exception_ptr error_;  // what its work threw first; later work is dropped
};

struct EmulatedOptions {
  uint64_t seed = 1;         ///< decides in which order streams' work runs, as far as events leave it open
  bool writes_words = true;  ///< whether streams can write host memory
};

/// Options of devices that make_cuda_device() makes from now on. Not while other threads make devices.
void set_emulated_options(const EmulatedOptions& options);

/// A GPU for tests, if there is none: the CUDA backend's own kernels, compiled for the host, run on it.
///
/// Nothing runs when it is launched. Work runs when the host waits for an event, a stream or the device, on
/// the calling thread, and streams take turns at random: a missing event shows as a wrong result. Its memory
/// cannot be touched except by that work and by copies: a host that reads it crashes, as with a GPU's.
/// Thread-safety: one thread per device.
class EmulatedDevice : public Device {
 public:
  explicit EmulatedDevice(const EmulatedOptions& options) : options_(options), random_(options.seed) {}
  ~EmulatedDevice() override;

  DeviceKind kind() const override { return DeviceKind::cuda; }
  std::string description() const override { return "emulated GPU"; }
  bool shares_host_memory() const override { return false; }
  std::unique_ptr<Stream> create_stream(const std::string& name) override;
  std::unique_ptr<Event> create_event(bool timed = false) override;
  std::string share_host_memory(void* memory, int64_t size_bytes) override;
  void copy_now(void* to, const void* from, int64_t size_bytes) override;

  /// Runs work of all streams until `done`. Throws InternalError if none can go on.
  void run_until(const std::function<bool()>& done);
  /// The same, but for a moment at most.
  void run_for_a_moment(const std::function<bool()>& done);
  /// Most pieces of work that a stream ever held.
  size_t most_queued() const { return most_queued_; }

 protected:
  void* allocate_bytes(int64_t size_bytes) override;
  void free_bytes(void* data, int64_t size_bytes) noexcept override;

 private:
  friend class EmulatedStream;
  class Access;
  void set_access(bool open) const;
  void work_until(const std::function<bool()>& done);

  EmulatedOptions options_;
  size_t most_queued_ = 0;
  Clock::time_point moved_{};  // when work last ran, or was given, or waiting for it began
  std::mt19937_64 random_;
  std::vector<EmulatedStream*> streams_;
  struct Mapping {
    void* data;
    size_t size_bytes;
  };
  std::vector<Mapping> mappings_;
  int open_ = 0;
};

}  // namespace lockstep::device
