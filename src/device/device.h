#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep::device {

enum class DeviceKind { cpu, async_cpu, cuda };
std::string_view name_of(DeviceKind kind);

/// A point in a stream's order. Reusable: recording it again moves it.
/// Thread-safety: record and wait may be called from different threads.
class Event {
 public:
  virtual ~Event() = default;
  virtual bool ready() const = 0;  ///< everything before the last record has finished; true if never recorded
  virtual void
  synchronize() = 0;  ///< blocks the calling thread until ready; rethrows what the stream's work threw
  /// Time between two records. REQUIRES: both events are timed, of one device, recorded and ready.
  virtual double milliseconds_since(const Event& earlier) const = 0;
};

/// An ordered queue of work on a device; a lane of a step program runs on one. Work of one stream runs in
/// order; only events order streams against each other.
class Stream {
 public:
  virtual ~Stream() = default;
  virtual const std::string& name() const = 0;
  /// Runs `work` in this stream's order. cpu: now, on the calling thread. async_cpu: later, on the stream's
  /// own thread. cuda: now; `work` enqueues kernels on native().
  virtual void launch(std::function<void()> work) = 0;
  virtual void record(Event& event) = 0;
  virtual void wait(const Event& event) = 0;
  /// Copies in this stream's order, between memory of the device and of the host in any direction. The caller
  /// may wait if host memory was not made by allocate_host().
  virtual void copy(void* to, const void* from, int64_t size_bytes);
  /// Stores a number in host memory once everything before it has finished, so that other threads can read
  /// the stream's progress. REQUIRES: `word` is in memory that Device::share_host_memory() has shared or,
  /// after such a call, in memory of Device::allocate_host().
  virtual void write_word(std::atomic<uint64_t>& word, uint64_t value);
  /// Makes later work wait until the host has written `value`, or a later number, to the word. (Later: the
  /// signed difference is not negative.) For work of the host in a stream's order, on devices that do not
  /// share its memory; InternalError elsewhere. REQUIRES: `word` is in memory of Device::allocate_host();
  /// whoever waits for the stream makes sure that the word is written.
  virtual void wait_word(const std::atomic<uint64_t>& word, uint64_t value);
  virtual void synchronize() = 0;  ///< blocks until the stream is empty; rethrows the first error of its work
  /// Whether the stream is empty, as after synchronize(). GPUs answer at once; if work runs in this process,
  /// the caller may have to wait for it.
  virtual bool idle() {
    synchronize();
    return true;
  }
  virtual void* native() const { return nullptr; }  ///< cudaStream_t, or null on CPUs
};

class Device;

/// Whether a buffer is memory of the device or of the host.
enum class MemoryKind { device, host };

/// Owns memory of a device, or of the host for it, aligned to 64 bytes (CPU) or 256 (CUDA), zero-filled.
/// Move-only. The device outlives it.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Device& device, void* data, int64_t size_bytes, MemoryKind kind)
      : device_(&device), data_(static_cast<std::byte*>(data)), size_bytes_(size_bytes), kind_(kind) {}
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
    std::swap(kind_, other.kind_);
  }

  Device* device_ = nullptr;
  std::byte* data_ = nullptr;
  int64_t size_bytes_ = 0;
  MemoryKind kind_ = MemoryKind::device;
};

/// The use of memory of one kind.
struct MemoryUse {
  int64_t current_bytes = 0;
  int64_t peak_bytes = 0;
  int64_t allocations = 0;  ///< number of allocations since the device was made
};

/// One device. Everything it made must be destroyed before it. Thread-safety: allocate and the counters are
/// safe from any thread; memory_use is exact.
class Device {
 public:
  virtual ~Device() = default;
  virtual DeviceKind kind() const = 0;
  virtual std::string description() const = 0;  ///< model and, if it has one, its number
  /// Whether the host may read and write the device's memory itself.
  virtual bool shares_host_memory() const { return true; }
  virtual std::unique_ptr<Stream> create_stream(const std::string& name) = 0;
  /// A stream of high priority: on a busy GPU its kernels get free resources before waiting kernels of other
  /// streams. On other devices an ordinary stream.
  virtual std::unique_ptr<Stream> create_urgent_stream(const std::string& name) {
    return create_stream(name);
  }
  /// `timed`: milliseconds_since() may be called. Costs a little more on GPUs.
  virtual std::unique_ptr<Event> create_event(bool timed = false) = 0;
  /// If memory does not suffice, throws DeviceError, which names the size and the free memory. 0 bytes give
  /// an empty buffer.
  Buffer allocate(int64_t size_bytes);
  /// Host memory that streams can copy from and to without the caller: pinned, if that exists. Errors as
  /// above.
  Buffer allocate_host(int64_t size_bytes);
  /// Lets streams write words of this memory, until the device is destroyed. Returns the reason if it cannot;
  /// empty if it can. REQUIRES: the memory lives that long, is aligned to 8 bytes and has at least 8, and
  /// nobody else writes the first eight during this call, which may use them for a trial.
  virtual std::string share_host_memory(void*, int64_t) { return {}; }
  /// Copies at once, between memory of the device and of the host in any direction. Waits for no stream. For
  /// use between steps. REQUIRES: no work in flight writes there.
  virtual void copy_now(void* to, const void* from, int64_t size_bytes);
  /// The use of memory from allocate(), or from allocate_host().
  MemoryUse memory_use(MemoryKind kind = MemoryKind::device) const;

 protected:
  virtual void* allocate_bytes(int64_t size_bytes) = 0;
  virtual void free_bytes(void* data, int64_t size_bytes) noexcept = 0;
  virtual void* allocate_host_bytes(int64_t size_bytes);
  virtual void free_host_bytes(void* data) noexcept;

 private:
  friend class Buffer;
  Buffer counted(void* data, int64_t size_bytes, MemoryKind kind);
  void release(void* data, int64_t size_bytes, MemoryKind kind) noexcept;
  mutable std::mutex mutex_;  // guards memory_use_
  MemoryUse memory_use_[2];   // by MemoryKind
};

/// The device whose streams run work immediately, on the calling thread.
std::unique_ptr<Device> make_cpu_device();

struct AsyncCpuOptions {
  uint64_t jitter_seed =
      0;  ///< if not 0: delays between pieces of work, up to max_jitter_us, to provoke races
  int max_jitter_us = 0;
  int intra_op_threads = 1;  ///< each stream's thread sets its own OpenMP thread count to this
};
/// CPU memory, but every stream has its own thread and shares only events with others.
std::unique_ptr<Device> make_async_cpu_device(const AsyncCpuOptions& options);

/// One GPU as this process sees it.
struct GpuFacts {
  int ordinal = 0;
  std::string name;  ///< "NVIDIA H200"
  std::string uuid;  ///< "GPU-..." in hexadecimal: equal for two processes that see the same GPU
  int64_t memory_bytes = 0;
  int compute_capability = 0;  ///< 90 is 9.0
};
struct GpuProbe {
  std::vector<GpuFacts> devices;
  std::string problem;  ///< if there are none: why, and what to do
};
/// Sets environment variables that the driver reads once. Call it before anything else in this process uses a
/// GPU. The user's settings stay. Each stream gets its own queue, up to 32 (the driver's default is 8;
/// streams that share a queue may wait for each other). `waits_for_others`: for a process whose streams wait
/// for other ranks, or for messages to the host. Then code is loaded with its libraries instead of at a
/// kernel's first launch, because loading may wait for all streams, also for a stream whose end this host has
/// not issued yet. The start then takes longer.
void set_gpu_environment(bool waits_for_others);
/// Never throws: a missing driver, library or GPU is reported as `problem`.
GpuProbe probe_gpus();
/// The libraries that compute on GPUs besides this program's own kernels, with versions: "cuda=13.0
/// cublaslt=..."; empty without a backend.
std::string gpu_libraries();
/// Throws DeviceError with the problem if there is no such GPU, or if this build has no CUDA backend.
std::unique_ptr<Device> make_cuda_device(int ordinal);

}  // namespace lockstep::device
