#include <fmt/format.h>
#include <omp.h>

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <random>
#include <thread>

#include "device/cpu/host_memory.h"
#include "device/device.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

/// Counts records and completions, as a CUDA event does: a wait is for the last record made before the wait.
class AsyncEvent : public Event {
 public:
  bool ready() const override {
    std::lock_guard lock(mutex_);
    return completed_ >= recorded_;
  }
  void synchronize() override {
    std::unique_lock lock(mutex_);
    const uint64_t target = recorded_;
    changed_.wait(lock, [&] { return completed_ >= target; });
    if (error_) std::rethrow_exception(error_);
  }

  uint64_t announce() {
    std::lock_guard lock(mutex_);
    return ++recorded_;
  }
  uint64_t recorded() const {
    std::lock_guard lock(mutex_);
    return recorded_;
  }
  void complete(uint64_t record, const std::exception_ptr& error) {
    {
      std::lock_guard lock(mutex_);
      completed_ = std::max(completed_, record);
      if (error) error_ = error;
    }
    changed_.notify_all();
  }
  std::exception_ptr await(uint64_t target) const {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return completed_ >= target; });
    return error_;
  }

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  uint64_t recorded_ = 0, completed_ = 0;
  std::exception_ptr error_;
};

/// A thread and a queue. After work has thrown, later work is dropped, but events still complete (with the error), so
/// that nobody waits for ever on a stream that has failed.
class AsyncStream : public Stream {
 public:
  AsyncStream(std::string name, const AsyncCpuOptions& options, uint64_t number)
      : name_(std::move(name)), options_(options), random_(options.jitter_seed + number), thread_([this] { run(); }) {}

  ~AsyncStream() override {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_all();
    thread_.join();
  }

  const std::string& name() const override { return name_; }

  void launch(std::function<void()> work) override { push(std::move(work), true); }

  void record(Event& event) override {
    auto& async = dynamic_cast<AsyncEvent&>(event);
    const uint64_t record = async.announce();
    push([this, &async, record] { async.complete(record, error_); }, false);
  }

  void wait(const Event& event) override {
    const auto& async = dynamic_cast<const AsyncEvent&>(event);
    const uint64_t target = async.recorded();
    push([this, &async, target] {
      if (auto error = async.await(target); error && !error_) error_ = error;
    }, false);
  }

  void synchronize() override {
    std::unique_lock lock(mutex_);
    idle_.wait(lock, [&] { return queue_.empty() && !busy_; });
    if (error_) std::rethrow_exception(error_);
  }

 private:
  struct Item {
    std::function<void()> work;
    bool skip_after_error;
  };

  void push(std::function<void()> work, bool skip_after_error) {
    {
      std::lock_guard lock(mutex_);
      queue_.push_back({std::move(work), skip_after_error});
    }
    wake_.notify_one();
  }

  void run() {
    omp_set_num_threads(options_.intra_op_threads);
    std::unique_lock lock(mutex_);
    while (true) {
      wake_.wait(lock, [&] { return stopping_ || !queue_.empty(); });
      if (queue_.empty()) return;
      Item item = std::move(queue_.front());
      queue_.pop_front();
      busy_ = true;
      lock.unlock();
      jitter();
      if (!item.skip_after_error || !error_) {
        try {
          item.work();
        } catch (...) {
          error_ = std::current_exception();
        }
      }
      item.work = nullptr;
      lock.lock();
      busy_ = false;
      if (queue_.empty()) idle_.notify_all();
    }
  }

  void jitter() {
    if (options_.jitter_seed == 0 || options_.max_jitter_us <= 0) return;
    const auto delay = std::uniform_int_distribution<int>(0, options_.max_jitter_us)(random_);
    std::this_thread::sleep_for(std::chrono::microseconds(delay));
  }

  std::string name_;
  AsyncCpuOptions options_;
  std::mt19937_64 random_;
  std::mutex mutex_;
  std::condition_variable wake_, idle_;
  std::deque<Item> queue_;
  bool busy_ = false, stopping_ = false;
  std::exception_ptr error_;  // written by the stream's thread only; read by others while the stream is idle
  std::thread thread_;
};

class AsyncCpuDevice : public Device {
 public:
  explicit AsyncCpuDevice(const AsyncCpuOptions& options) : options_(options) {}
  DeviceKind kind() const override { return DeviceKind::async_cpu; }
  std::string description() const override { return "CPU, one thread per lane"; }
  std::unique_ptr<Stream> create_stream(const std::string& name) override {
    return std::make_unique<AsyncStream>(name, options_, ++streams_);
  }
  std::unique_ptr<Event> create_event() override { return std::make_unique<AsyncEvent>(); }

 protected:
  void* allocate_bytes(int64_t size_bytes) override { return allocate_host_bytes(size_bytes); }
  void free_bytes(void* data, int64_t) noexcept override { free_host_bytes(data); }

 private:
  AsyncCpuOptions options_;
  uint64_t streams_ = 0;
};

}  // namespace

std::unique_ptr<Device> make_async_cpu_device(const AsyncCpuOptions& options) {
  return std::make_unique<AsyncCpuDevice>(options);
}

}  // namespace lockstep
