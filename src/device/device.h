#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

namespace lockstep {

enum class DeviceKind { cpu, async_cpu, cuda };
std::string_view name_of(DeviceKind kind);

/// A point in a stream's order. Reusable: recording it again moves it.
/// Thread-safety: record and wait may be called from different threads.
class Event {
 public:
  virtual ~Event() = default;
  virtual bool ready() const = 0;    ///< everything before the last record has finished; true where never recorded
  virtual void synchronize() = 0;    ///< blocks the calling thread until ready; rethrows what the stream's work threw
};

/// An ordered queue of work on a device: what a lane of a step program runs on. Work of one stream runs in order;
/// streams are ordered against each other by events only.
class Stream {
 public:
  virtual ~Stream() = default;
  virtual const std::string& name() const = 0;
  /// Runs `work` in this stream's order. cpu: now, on the calling thread. async_cpu: later, on the stream's own
  /// thread. cuda: now; `work` enqueues kernels on native().
  virtual void launch(std::function<void()> work) = 0;
  virtual void record(Event& event) = 0;
  virtual void wait(const Event& event) = 0;
  virtual void synchronize() = 0;    ///< blocks until the stream is empty; rethrows the first error of its work
  virtual void* native() const { return nullptr; }  ///< cudaStream_t, or null on CPUs
};

class Device;

/// Owns memory of a device, aligned to 64 bytes (CPU) or 256 (CUDA), zero-filled. Move-only. The device outlives it.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Device& device, void* data, int64_t size_bytes)
      : device_(&device), data_(static_cast<std::byte*>(data)), size_bytes_(size_bytes) {}
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    Buffer(std::move(other)).swap(*this);
    return *this;
  }
  ~Buffer();

  std::byte* data() const { return data_; }
  int64_t size_bytes() const { return size_bytes_; }

 private:
  void swap(Buffer& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(data_, other.data_);
    std::swap(size_bytes_, other.size_bytes_);
  }

  Device* device_ = nullptr;
  std::byte* data_ = nullptr;
  int64_t size_bytes_ = 0;
};

struct MemoryUse {
  int64_t current_bytes = 0;
  int64_t peak_bytes = 0;
  int64_t allocations = 0;  ///< how often allocate() was called since the device was made
};

/// One device. Everything it made must be destroyed before it. Thread-safety: allocate and the counters are safe from
/// any thread; memory_use is exact.
class Device {
 public:
  virtual ~Device() = default;
  virtual DeviceKind kind() const = 0;
  virtual std::string description() const = 0;            ///< model and, where it has one, its number
  virtual std::unique_ptr<Stream> create_stream(const std::string& name) = 0;
  virtual std::unique_ptr<Event> create_event() = 0;
  /// Throws DeviceError naming the size and what is free where memory does not suffice. 0 bytes give an empty buffer.
  Buffer allocate(int64_t size_bytes);
  MemoryUse memory_use() const;

 protected:
  virtual void* allocate_bytes(int64_t size_bytes) = 0;
  virtual void free_bytes(void* data, int64_t size_bytes) noexcept = 0;

 private:
  friend class Buffer;
  void release(void* data, int64_t size_bytes) noexcept;
  mutable std::mutex mutex_;  // guards memory_use_
  MemoryUse memory_use_;
};

/// The device on which streams run at once, on the calling thread.
std::unique_ptr<Device> make_cpu_device();

struct AsyncCpuOptions {
  uint64_t jitter_seed = 0;        ///< where not 0: delays between pieces of work, up to max_jitter_us, to shake out races
  int max_jitter_us = 0;
  int intra_op_threads = 1;        ///< each stream's thread sets its own OpenMP thread count to this
};
/// CPU memory, but every stream has a thread of its own and shares nothing with others except events.
std::unique_ptr<Device> make_async_cpu_device(const AsyncCpuOptions& options);

}  // namespace lockstep
