#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "base/clock.h"
#include "base/text.h"
#include "device/cpu/host_memory.h"
#include "device/device.h"
#include "lockstep/error.h"

namespace lockstep::device {

namespace {

int64_t free_host_memory() {
  return static_cast<int64_t>(sysconf(_SC_AVPHYS_PAGES)) * static_cast<int64_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace

void* allocate_host_bytes(int64_t size_bytes) {
  const size_t rounded = (static_cast<size_t>(size_bytes) + 63) / 64 * 64;
  void* data = std::aligned_alloc(64, rounded);
  if (data == nullptr)
    throw DeviceError(fmt::format(
        "cannot allocate {} of memory on the host: {} are free; use a smaller micro_batch, or more workers",
        human_bytes(size_bytes), human_bytes(free_host_memory())));
  std::memset(data, 0, rounded);
  return data;
}

void free_host_bytes(void* data) noexcept { std::free(data); }

namespace {

/// Work has always finished by the time launch() returns, so events have nothing to wait for.
class ImmediateEvent : public Event {
 public:
  bool ready() const override { return true; }
  void synchronize() override {}
  double milliseconds_since(const Event& earlier) const override {
    return milliseconds_between(dynamic_cast<const ImmediateEvent&>(earlier).recorded_, recorded_);
  }
  void record() { recorded_ = Clock::now(); }

 private:
  Clock::time_point recorded_{};
};

class ImmediateStream : public Stream {
 public:
  explicit ImmediateStream(std::string name) : name_(std::move(name)) {}
  const std::string& name() const override { return name_; }
  void launch(std::function<void()> work) override { work(); }
  void record(Event& event) override { dynamic_cast<ImmediateEvent&>(event).record(); }
  void wait(const Event&) override {}
  void synchronize() override {}

 private:
  std::string name_;
};

class CpuDevice : public Device {
 public:
  DeviceKind kind() const override { return DeviceKind::cpu; }
  std::string description() const override { return "CPU"; }
  std::unique_ptr<Stream> create_stream(const std::string& name) override {
    return std::make_unique<ImmediateStream>(name);
  }
  std::unique_ptr<Event> create_event(bool) override { return std::make_unique<ImmediateEvent>(); }

 protected:
  void* allocate_bytes(int64_t size_bytes) override { return device::allocate_host_bytes(size_bytes); }
  void free_bytes(void* data, int64_t) noexcept override { device::free_host_bytes(data); }
};

}  // namespace

std::unique_ptr<Device> make_cpu_device() { return std::make_unique<CpuDevice>(); }

}  // namespace lockstep::device
