#include "observe/sinks/sinks.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

#include "lockstep/error.h"

namespace lockstep::observe {
namespace {

RecordPtr measured_now(MetricsRecord record) {
  using Seconds = std::chrono::duration<double>;
  record.unix_seconds = Seconds(std::chrono::system_clock::now().time_since_epoch()).count();
  return std::make_shared<const MetricsRecord>(std::move(record));
}

}  // namespace

bool has_sinks(const MetricsOptions& options, const RunFacts& facts) {
  return std::ranges::any_of(sink_kinds(), [&](const SinkKind& kind) { return kind.wanted(options, facts); });
}

Sinks::Sinks(const MetricsOptions& options, const RunFacts& facts, bool stop_without_essential) {
  for (const auto& kind : sink_kinds()) {
    if (!kind.wanted(options, facts)) continue;
    SinkPolicy policy = kind.policy;
    policy.ends_run =
        policy.essential ? stop_without_essential : options.on_failure == SinkFailurePolicy::stop;
    threads_.push_back(std::make_unique<SinkThread>(kind.make(options, facts), std::move(policy)));
  }
}

void Sinks::open() {
  for (const auto& thread : threads_) {
    thread->open();
    log_messages();
  }
}

void Sinks::write(MetricsRecord record) {
  const RecordPtr shared = measured_now(std::move(record));
  log_messages();
  for (const auto& thread : threads_) thread->push(shared);
}

void Sinks::write_beside(MetricsRecord record) {
  const RecordPtr shared = measured_now(std::move(record));
  for (const auto& thread : threads_) {
    try {
      thread->push(shared);
    } catch (const Error&) {
      // Told to the thread that trains, by its own next record.
    }
  }
}

void Sinks::sync() {
  for (const auto& thread : threads_)
    if (thread->policy().essential) thread->sync();
  log_messages();
}

void Sinks::finish() {
  for (const auto& thread : threads_) thread->finish();
  log_messages();
}

void Sinks::close(RunEnd end, const std::string& report, std::chrono::milliseconds patience) noexcept {
  for (const auto& thread : threads_) thread->close(end, report, patience);
  log_messages();
}

void Sinks::abandon(std::chrono::milliseconds patience) noexcept {
  for (const auto& thread : threads_) thread->close(RunEnd::failed, "", patience);
}

void Sinks::log_messages() noexcept {
  try {
    for (const auto& thread : threads_)
      for (const auto& message : thread->take_messages()) log(message.level, message.text);
  } catch (const std::exception&) {
    // Without memory for a message there is none.
  }
}

}  // namespace lockstep::observe
