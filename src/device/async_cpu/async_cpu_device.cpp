#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <random>
#include <thread>

#include "base/clock.h"
#include "device/cpu/host_memory.h"
#include "device/device.h"
#include "device/openmp_team.h"
#include "lockstep/error.h"

namespace lockstep::device {
namespace {

/// One record of an event: finished once, by the stream that it was recorded on. Shared by the event and by
/// the work that finishes or awaits it, so that an event may be recorded again or destroyed while work still
/// refers to it.
class Record {
 public:
  bool finished() const {
    std::lock_guard lock(mutex_);
    return finished_;
  }
  void finish(const std::exception_ptr& error) {
    {
      std::lock_guard lock(mutex_);
      finished_ = true;
      finished_at_ = Clock::now();
      error_ = error;
    }
    changed_.notify_all();
  }
  Clock::time_point finished_at() const {
    std::lock_guard lock(mutex_);
    return finished_at_;
  }
  /// Blocks until finished; gives what the stream's work threw before, or null.
  std::exception_ptr await() const {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return finished_; });
    return error_;
  }

 private:
  mutable std::mutex mutex_;  // guards what follows
  mutable std::condition_variable changed_;
  bool finished_ = false;
  Clock::time_point finished_at_{};
  std::exception_ptr error_;
};

/// Holds its last record, null if there is none: as with CUDA, a wait is for the last record made before
/// the wait.
class AsyncEvent : public Event {
 public:
  bool ready() const override {
    const auto record = last();
    return record == nullptr || record->finished();
  }
  void synchronize() override {
    const auto record = last();
    if (record == nullptr) return;
    if (const auto error = record->await()) std::rethrow_exception(error);
  }
  double milliseconds_since(const Event& earlier) const override {
    return milliseconds_between(dynamic_cast<const AsyncEvent&>(earlier).last()->finished_at(),
                                last()->finished_at());
  }

  std::shared_ptr<Record> renew() {
    auto record = std::make_shared<Record>();
    std::lock_guard lock(mutex_);
    return last_ = std::move(record);
  }
  std::shared_ptr<const Record> last() const {
    std::lock_guard lock(mutex_);
    return last_;
  }

 private:
  mutable std::mutex mutex_;  // guards last_
  std::shared_ptr<Record> last_;
};

/// A thread and a queue. After work has thrown, later work is dropped, but events still complete (with the
/// error), so that nobody waits for ever on a stream that has failed.
class AsyncStream : public Stream {
 public:
  AsyncStream(std::string name, const AsyncCpuOptions& options, uint64_t number)
      : name_(std::move(name)),
        options_(options),
        random_(options.jitter_seed + number),
        thread_([this] { run(); }) {}

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
    push([this, record = dynamic_cast<AsyncEvent&>(event).renew()] { record->finish(error_); }, false);
  }

  void wait(const Event& event) override {
    auto record = dynamic_cast<const AsyncEvent&>(event).last();
    if (record == nullptr) return;
    push(
        [this, record = std::move(record)] {
          if (const auto error = record->await(); error && !error_) error_ = error;
        },
        false);
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
    set_openmp_team(options_.intra_op_threads);
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
  std::unique_ptr<Event> create_event(bool) override { return std::make_unique<AsyncEvent>(); }

 protected:
  void* allocate_bytes(int64_t size_bytes) override { return device::allocate_host_bytes(size_bytes); }
  void free_bytes(void* data, int64_t) noexcept override { device::free_host_bytes(data); }

 private:
  AsyncCpuOptions options_;
  uint64_t streams_ = 0;
};

}  // namespace

std::unique_ptr<Device> make_async_cpu_device(const AsyncCpuOptions& options) {
  return std::make_unique<AsyncCpuDevice>(options);
}

}  // namespace lockstep::device
