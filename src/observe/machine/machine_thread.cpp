#include "observe/machine/machine_thread.h"

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <utility>

#include "base/clock.h"
#include "base/thread.h"

namespace lockstep::observe {
namespace {

constexpr std::chrono::milliseconds kFarewell{2000}, kShortFarewell{200};
/// The kernel counts processor time in hundredths of a second: shorter samples say little.
constexpr double kShortestSeconds = 0.1;

double seconds_now() { return std::chrono::duration<double>(Clock::now().time_since_epoch()).count(); }

}  // namespace

struct MachineThread::Body {
  const MachineThreadOptions options;
  const Publish publish;

  // The thread's alone.
  HostSampler host;
  std::optional<GpuSampler> gpu;
  double sampled_at = 0;

  mutable std::mutex mutex;  // guards what follows
  std::condition_variable changed;
  MachineIdentity identity;
  MachineSummary summary;
  bool stopping = false, abandoned = false, ended = false;

  Body(MachineThreadOptions own_options, MachineIdentity own_identity, Publish own_publish)
      : options(std::move(own_options)),
        publish(std::move(own_publish)),
        host(options.places),
        identity(std::move(own_identity)) {}

  std::vector<MachineSample> sample(const MachineIdentity& who) {
    const double now = seconds_now(), seconds = sampled_at > 0 ? now - sampled_at : 0;
    sampled_at = now;
    std::vector<MachineSample> samples;
    const auto begin = [&](MachineSubject::Kind kind) -> MachineSample& {
      return samples.emplace_back(MachineSample{
          .subject = {.kind = kind, .host = who.host, .rank = who.rank, .slice = {}, .uuid = {}, .model = {}},
          .figures = {},
          .seconds = seconds});
    };
    if (who.samples_host) {
      MachineSample& of_host = begin(MachineSubject::Kind::host);
      of_host.subject.rank = 0;
      of_host.figures = host.host(now);
    }
    begin(MachineSubject::Kind::process).figures = host.process(now);
    if (gpu && gpu->found()) gpu->add_to(begin(MachineSubject::Kind::gpu), now);
    return samples;
  }

  /// False if nobody wants any more.
  bool tell(const std::vector<MachineSample>& samples) {
    const std::lock_guard lock(mutex);
    if (abandoned) return false;
    for (const auto& each : samples) summary.add(each);
    publish(samples);
    return true;
  }

  void begin(const std::vector<MachineSample>& samples) {
    const std::lock_guard lock(mutex);
    for (const auto& each : samples) summary.begin(each);
  }

  MachineIdentity who() const {
    const std::lock_guard lock(mutex);
    return identity;
  }

  enum class Next { sample, last_sample, nothing };
  /// Waits until it is time, or until there is to be an end.
  Next wait(std::chrono::duration<double> interval) {
    std::unique_lock lock(mutex);
    if (!changed.wait_for(lock, interval, [this] { return stopping || abandoned; })) return Next::sample;
    return abandoned || seconds_now() - sampled_at < kShortestSeconds ? Next::nothing : Next::last_sample;
  }

  void work() {
    ::setpriority(PRIO_PROCESS, 0, std::max(10, ::getpriority(PRIO_PROCESS, 0)));
    if (!options.gpu_uuid.empty()) gpu.emplace(options.gpu_uuid);
    begin(sample(who()));
    while (true) {
      const Next next = wait(std::chrono::duration<double>(options.every_seconds));
      if (next == Next::nothing || !tell(sample(who())) || next == Next::last_sample) return;
    }
  }

  void run() {
    try {
      work();
    } catch (const std::exception&) {
      // Without memory for figures there are none.
    }
    const std::lock_guard lock(mutex);
    ended = true;
    changed.notify_all();
  }
};

MachineThread::MachineThread(MachineThreadOptions options, MachineIdentity identity, Publish publish)
    : body_(std::make_shared<Body>(std::move(options), std::move(identity), std::move(publish))) {
  thread_ = start_thread_without_signals("machine", [body = body_] { body->run(); });
}

MachineThread::~MachineThread() { abandon(); }

void MachineThread::follow(MachineIdentity identity) {
  const std::lock_guard lock(body_->mutex);
  body_->identity = std::move(identity);
}

void MachineThread::stop() noexcept {
  if (!thread_.joinable()) return;
  std::unique_lock lock(body_->mutex);
  body_->stopping = true;
  body_->changed.notify_all();
  body_->changed.wait_for(lock, kFarewell, [this] { return body_->ended; });
  lock.unlock();
  abandon();
}

void MachineThread::abandon() noexcept {
  if (!thread_.joinable()) return;
  std::unique_lock lock(body_->mutex);
  body_->abandoned = true;
  body_->changed.notify_all();
  const bool ended = body_->changed.wait_for(lock, kShortFarewell, [this] { return body_->ended; });
  lock.unlock();
  // A call of the driver that hangs cannot be ended.
  if (ended)
    thread_.join();
  else
    thread_.detach();
}

std::vector<MachineReport> MachineThread::reports() const {
  const std::lock_guard lock(body_->mutex);
  std::vector<MachineReport> reports = body_->summary.reports();
  // The process may have become another rank since it sampled.
  for (MachineReport& report : reports)
    if (report.subject.kind != MachineSubject::Kind::host) report.subject.rank = body_->identity.rank;
  return reports;
}

}  // namespace lockstep::observe
