#include "device/emulated/emulated_device.h"

#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/clock.h"
#include "base/ensure.h"
#include "lockstep/error.h"

namespace lockstep::device {
namespace {

struct Record {
  bool finished = false;
  Clock::time_point finished_at{};
  std::exception_ptr error;
};

class EmulatedEvent : public Event {
 public:
  explicit EmulatedEvent(EmulatedDevice& device) : device_(device) {}
  bool ready() const override { return record_ == nullptr || record_->finished; }
  void synchronize() override {
    if (record_ == nullptr) return;
    device_.run_until([record = record_] { return record->finished; });
    if (record_->error) std::rethrow_exception(record_->error);
  }
  double milliseconds_since(const Event& earlier) const override {
    return milliseconds_between(dynamic_cast<const EmulatedEvent&>(earlier).record_->finished_at,
                                record_->finished_at);
  }

  std::shared_ptr<Record> renew() { return record_ = std::make_shared<Record>(); }
  std::shared_ptr<const Record> last() const { return record_; }

 private:
  EmulatedDevice& device_;
  std::shared_ptr<Record> record_;
};

}  // namespace

/// While it lives, the device's memory can be touched.
class EmulatedDevice::Access {
 public:
  explicit Access(EmulatedDevice& device) : device_(device) {
    if (device_.open_++ == 0) device_.set_access(true);
  }
  ~Access() {
    if (--device_.open_ == 0) device_.set_access(false);
  }
  Access(const Access&) = delete;

 private:
  EmulatedDevice& device_;
};

EmulatedStream::~EmulatedStream() { std::erase(device_.streams_, this); }

void EmulatedStream::launch(std::function<void()> work) {
  push([this, work = std::move(work)] {
    if (!error_) work();
    return true;
  });
}

void EmulatedStream::launch_polled(std::function<bool()> work) {
  push([this, work = std::move(work)] { return error_ || work(); });
}

void EmulatedStream::record(Event& event) {
  push([this, record = dynamic_cast<EmulatedEvent&>(event).renew()] {
    *record = {true, Clock::now(), error_};
    return true;
  });
}

void EmulatedStream::wait(const Event& event) {
  if (auto record = dynamic_cast<const EmulatedEvent&>(event).last())
    push([this, record = std::move(record)] {
      if (record->finished && record->error && !error_) error_ = record->error;
      return record->finished;
    });
}

void EmulatedStream::write_word(std::atomic<uint64_t>& word, uint64_t value) {
  ensure(device_.options_.writes_words, "a word is to be written by a device that has said that it cannot");
  Stream::write_word(word, value);
}

void EmulatedStream::wait_word(const std::atomic<uint64_t>& word, uint64_t value) {
  launch_polled(
      [&word, value] { return static_cast<int64_t>(word.load(std::memory_order_acquire) - value) >= 0; });
}

void EmulatedStream::push(std::function<bool()> work) {
  queue_.push_back(std::move(work));
  device_.most_queued_ = std::max(device_.most_queued_, queue_.size());
  device_.moved_ = Clock::now();
}

bool EmulatedStream::idle() {
  device_.run_for_a_moment([this] { return queue_.empty(); });
  if (error_) std::rethrow_exception(error_);
  return queue_.empty();
}

void EmulatedStream::synchronize() {
  device_.run_until([this] { return queue_.empty(); });
  if (error_) std::rethrow_exception(error_);
}

bool EmulatedStream::advance() {
  if (queue_.empty()) return false;
  try {
    if (!queue_.front()()) return false;
  } catch (...) {
    error_ = std::current_exception();
  }
  queue_.pop_front();
  return true;
}

EmulatedDevice::~EmulatedDevice() = default;

std::unique_ptr<Stream> EmulatedDevice::create_stream(const std::string& name) {
  auto stream = std::make_unique<EmulatedStream>(*this, name);
  streams_.push_back(stream.get());
  return stream;
}

std::unique_ptr<Event> EmulatedDevice::create_event(bool) { return std::make_unique<EmulatedEvent>(*this); }

std::string EmulatedDevice::share_host_memory(void*, int64_t) {
  return options_.writes_words ? "" : "it is told to refuse";
}

void EmulatedDevice::run_until(const std::function<bool()>& done) {
  moved_ = Clock::now();
  work_until(done);
}

void EmulatedDevice::run_for_a_moment(const std::function<bool()>& done) {
  constexpr int kTurns = 200;  // opening and closing the device's memory costs more than these
  int turns = 0;
  work_until([&] { return done() || ++turns > kTurns; });
}

void EmulatedDevice::work_until(const std::function<bool()>& done) {
  const Access access(*this);
  while (!done()) {
    bool moved = false;
    std::vector<EmulatedStream*> order = streams_;
    std::shuffle(order.begin(), order.end(), random_);
    for (auto* stream : order) {
      // A few pieces in a row, so that streams get ahead of each other.
      for (auto pieces = random_() % 4 + 1; pieces > 0 && stream->advance(); --pieces) moved = true;
      if (done()) return;
    }
    if (moved) {
      moved_ = Clock::now();
    } else {
      // Work that waits for other ranks may take as long as those need; nothing to do for this long means
      // nobody comes.
      if (Clock::now() > moved_ + std::chrono::seconds(60))
        throw InternalError("the emulated GPU's streams wait for each other, or for nobody");
      sched_yield();
    }
  }
}

void EmulatedDevice::copy_now(void* to, const void* from, int64_t size_bytes) {
  const Access access(*this);
  if (size_bytes > 0) std::memcpy(to, from, static_cast<size_t>(size_bytes));
}

void* EmulatedDevice::allocate_bytes(int64_t size_bytes) {
  const size_t page = 4096, size = (static_cast<size_t>(size_bytes) + page - 1) / page * page;
  void* data =
      mmap(nullptr, size, open_ > 0 ? PROT_READ | PROT_WRITE : PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) throw DeviceError("the emulated GPU has no memory left; use a smaller micro_batch");
  mappings_.push_back({data, size});
  return data;
}

void EmulatedDevice::free_bytes(void* data, int64_t) noexcept {
  const auto found =
      std::find_if(mappings_.begin(), mappings_.end(), [&](const Mapping& m) { return m.data == data; });
  munmap(found->data, found->size_bytes);
  mappings_.erase(found);
}

void EmulatedDevice::set_access(bool open) const {
  for (const auto& mapping : mappings_)
    mprotect(mapping.data, mapping.size_bytes, open ? PROT_READ | PROT_WRITE : PROT_NONE);
}

GpuProbe probe_gpus() {
  return {{{.ordinal = 0,
            .name = "emulated GPU",
            .uuid = "GPU-00000000-0000-0000-0000-000000000000",
            .memory_bytes = int64_t{1} << 33,
            .compute_capability = 90}},
          ""};
}

std::string gpu_libraries() { return "emulated"; }

void set_gpu_environment(bool) {}

namespace {
EmulatedOptions options_of_next_devices;
}

void set_emulated_options(const EmulatedOptions& options) { options_of_next_devices = options; }

std::unique_ptr<Device> make_cuda_device(int ordinal) {
  // One for each of many ranks, though the probe tells of one.
  if (ordinal < 0 || ordinal >= 64) throw DeviceError("there is no such emulated GPU");
  return std::make_unique<EmulatedDevice>(options_of_next_devices);
}

}  // namespace lockstep::device
