#include "observe/sinks/sink_thread.h"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <utility>

#include "base/clock.h"
#include "base/thread.h"
#include "lockstep/error.h"

namespace lockstep::observe {
namespace {

constexpr std::chrono::milliseconds kFirstRetry{100};
constexpr size_t kMostAtOnce = 1000;
/// So many times as long as a sink that does nothing may one take that works.
constexpr int kMostFarewells = 8;
/// How long a thread that has been told to leave may take.
constexpr std::chrono::milliseconds kFarewell{200};

size_t bytes_of(const MetricsRecord& record) {
  size_t bytes = sizeof(record);
  for (const auto& metric : record.metrics) bytes += sizeof(metric) + metric.name.size();
  for (const auto& [name, buckets] : record.histograms)
    bytes += sizeof(NamedHistogram) + name.size() + buckets.size() * sizeof(buckets.front());
  return bytes;
}

std::string reason_of(const std::exception_ptr& failure, const std::string& name) {
  try {
    std::rethrow_exception(failure);
  } catch (const Error& error) {
    return error.what();
  } catch (const std::exception& error) {
    return fmt::format("{}: {}", name, error.what());
  }
}

}  // namespace

struct SinkThread::Body {
  const SinkPolicy policy;
  const std::unique_ptr<Sink> sink;  // the thread's alone

  std::mutex mutex;
  std::condition_variable changed;  // for both sides
  std::deque<RecordPtr> queue;
  size_t waiting_bytes = 0;
  uint64_t asked = 0, served = 0;  // attempts that somebody waits for
  bool tried = false, opened = false, off = false, closing = false, closed = false, left = false,
       ended = false;
  RunEnd end = RunEnd::finished;
  std::string report;
  std::exception_ptr failure;  // of the last attempt
  std::vector<Message> messages;
  int64_t dropped = 0, first_dropped = 0, last_dropped = 0;
  Clock::time_point not_before;
  std::chrono::milliseconds backoff{};

  Body(std::unique_ptr<Sink> own, SinkPolicy own_policy)
      : policy(std::move(own_policy)), sink(std::move(own)) {
    backoff = first_retry();
  }
  std::chrono::milliseconds first_retry() const { return std::min(kFirstRetry, policy.retry); }

  bool has_work() const { return !off && (!queue.empty() || (failure && !opened)); }

  void drop(const MetricsRecord& record) {
    if (dropped++ == 0) first_dropped = record.step;
    last_dropped = record.step;
  }

  template <class Action>
  auto without_lock(std::unique_lock<std::mutex>& lock, const Action& action) {
    struct Relock {
      std::unique_lock<std::mutex>& lock;
      ~Relock() { lock.lock(); }
    };
    lock.unlock();
    const Relock relock{lock};
    return action();
  }

  void write_queue(std::unique_lock<std::mutex>& lock) {
    while (!queue.empty() && !left) {
      const auto count = static_cast<std::ptrdiff_t>(std::min(queue.size(), kMostAtOnce));
      const std::vector<RecordPtr> batch(queue.begin(), queue.begin() + count);
      const size_t taken = without_lock(lock, [&] { return sink->write(batch); });
      if (left) return;  // and nobody waits for the rest
      for (size_t i = 0; i < taken; ++i) {
        waiting_bytes -= bytes_of(*queue.front());
        queue.pop_front();
      }
    }
  }

  void work(std::unique_lock<std::mutex>& lock, bool durable) {
    if (!opened) without_lock(lock, [&] { sink->open(); });
    opened = true;
    write_queue(lock);
    if (durable) without_lock(lock, [&] { sink->sync(); });
    if (!closing || closed) return;
    const RunEnd how = end;
    const std::string what = report;
    without_lock(lock, [&] { sink->close(how, what); });
    closed = true;
  }

  void succeed() {
    if (std::exchange(failure, nullptr) && !policy.essential)
      messages.push_back({LogLevel::info, fmt::format("{}: works again{}", policy.name,
                                                      dropped == 0 ? ", and has everything" : "")});
    backoff = first_retry();
    not_before = Clock::now() + policy.gather;
  }

  void fail(bool may_recover) {
    const bool known = std::exchange(failure, std::current_exception()) != nullptr;
    off = !may_recover;
    if (off) {
      for (const auto& record : queue) drop(*record);
      queue.clear();
      waiting_bytes = 0;
    }
    // Whoever closes does not wait for long.
    const auto longest =
        closing ? std::min<std::chrono::milliseconds>(policy.retry, 5 * kFirstRetry) : policy.retry;
    backoff = std::min(backoff, longest);
    not_before = Clock::now() + backoff;
    backoff = std::min(backoff * 2, longest);
    if (policy.ends_run || (known && may_recover)) return;
    messages.push_back(
        {LogLevel::warning, fmt::format("{}; {}", reason_of(failure, policy.name),
                                        off                  ? "the run continues without it"
                                        : policy.serves_page ? "it is tried again while the run continues"
                                                             : "what is missing is written once it can be")});
  }

  void attempt(std::unique_lock<std::mutex>& lock) {
    const uint64_t ticket = asked;
    try {
      if (!off) {
        tried = true;
        work(lock, ticket != served);
        succeed();
      }
    } catch (const IoError&) {
      fail(/*may_recover=*/true);
    } catch (const std::exception&) {
      fail(/*may_recover=*/false);
    }
    if (std::string text = without_lock(lock, [&] { return sink->take_message(); }); !text.empty())
      messages.push_back({LogLevel::warning, std::move(text)});
    served = ticket;
    changed.notify_all();
  }

  void run() {
    std::unique_lock lock(mutex);
    while (!closed && !left) {
      if (asked != served || ((has_work() || (closing && !off)) && Clock::now() >= not_before)) {
        attempt(lock);
      } else if (has_work() || (closing && !off)) {
        changed.wait_until(lock, not_before);
      } else {
        changed.wait(lock);
      }
    }
    ended = true;
    changed.notify_all();
  }
};

SinkThread::SinkThread(std::unique_ptr<Sink> sink, SinkPolicy policy)
    : body_(std::make_shared<Body>(std::move(sink), std::move(policy))) {
  thread_ = start_thread_without_signals("sink", [body = body_] { body->run(); });
}

SinkThread::~SinkThread() {
  std::unique_lock lock(body_->mutex);
  body_->left = true;
  body_->changed.notify_all();
  // A call that hangs, on a dead disk, cannot be ended.
  const bool ended = body_->changed.wait_for(lock, kFarewell, [this] { return body_->ended; });
  lock.unlock();
  if (ended)
    thread_.join();
  else
    thread_.detach();
}

bool SinkThread::attempt(std::chrono::milliseconds patience) {
  std::unique_lock lock(body_->mutex);
  const uint64_t ticket = ++body_->asked;
  body_->changed.notify_all();
  // A thread that has closed its sink by itself, told to in the middle of its work, serves nobody any more.
  const auto served = [&] { return body_->served >= ticket || body_->ended; };
  if (patience.count() > 0) return body_->changed.wait_for(lock, patience, served);
  body_->changed.wait(lock, served);
  return true;
}

void SinkThread::rethrow() const {
  const std::lock_guard lock(body_->mutex);
  if (body_->failure) std::rethrow_exception(body_->failure);
}

void SinkThread::open() {
  const bool must = body_->policy.essential || body_->policy.ends_run;
  const bool answered = attempt(body_->policy.patience);
  if (must && !answered)
    throw IoError(
        fmt::format("{}: no answer within {} s", body_->policy.name, seconds_of(body_->policy.patience)));
  if (must) rethrow();
}

void SinkThread::push(const RecordPtr& record) {
  Body& body = *body_;
  const std::lock_guard lock(body.mutex);
  if (body.failure && (body.policy.ends_run || (body.policy.essential && body.off)))
    std::rethrow_exception(body.failure);
  const size_t bytes = bytes_of(*record);
  if (body.off) return body.drop(*record);
  if (body.waiting_bytes + bytes > body.policy.most_waiting_bytes) {
    if (body.dropped == 0)
      body.messages.push_back(
          {LogLevel::warning,
           fmt::format("{}: too much waits to be written; what is of step {} and later is lost",
                       body.policy.name, record->step)});
    return body.drop(*record);
  }
  body.waiting_bytes += bytes;
  body.queue.push_back(record);
  if (body.queue.size() == 1) body.changed.notify_all();
}

void SinkThread::sync() {
  const SinkPolicy& policy = body_->policy;
  const bool answered = attempt(policy.patience);
  if (!policy.ends_run) return;
  if (!answered)
    throw IoError(fmt::format("{}: no answer within {} s", policy.name, seconds_of(policy.patience)));
  rethrow();
}

void SinkThread::finish() {
  if (!body_->policy.essential) {
    if (body_->policy.ends_run) sync();
    return;
  }
  {
    const std::lock_guard lock(body_->mutex);
    body_->closing = true;
  }
  attempt({});
  rethrow();
  if (const int64_t lines = dropped(); lines > 0)
    throw IoError(fmt::format("{}: {} lines are missing: more waited for room than are kept",
                              body_->policy.name, lines));
}

void SinkThread::close(RunEnd end, const std::string& report, std::chrono::milliseconds patience) noexcept {
  Body& body = *body_;
  std::unique_lock lock(body.mutex);
  if (body.closed || body.left) return;
  // The run did not get so far as to open it.
  if (!body.tried && body.queue.empty()) {
    body.left = true;
    body.changed.notify_all();
    return;
  }
  if (!body.off) {
    body.closing = true;
    body.end = end;
    body.report = report;
    const uint64_t ticket = ++body.asked;
    body.changed.notify_all();
    // As long as the sink takes what waits, it may go on for a while.
    int patiences = patience.count() == 0 ? kMostFarewells : 1;
    if (patience.count() == 0) patience = body.policy.farewell;
    // An essential one that failed has ended the run, or finish() has said so; and a run that ends by an
    // error does not wait for what fails.
    const bool once = body.policy.essential || patience.count() == 0;
    const auto over = [&] {
      const bool failed = end == RunEnd::failed && body.failure != nullptr;
      return body.closed || body.off || (body.served >= ticket && (once || failed));
    };
    if (patience.count() == 0)
      body.changed.wait(lock, over);
    else
      for (size_t waiting = body.queue.size() + 1; patiences > 0 && body.queue.size() < waiting;
           --patiences) {
        waiting = body.queue.size();
        if (body.changed.wait_for(lock, patience, over)) break;
      }
  }
  body.left = true;
  body.changed.notify_all();
  for (const auto& record : body.queue) body.drop(*record);
  body.queue.clear();
  if (body.dropped > 0 && !body.policy.serves_page)
    body.messages.push_back(
        {LogLevel::warning, fmt::format("{}: {} records are lost, of steps {} to {}", body.policy.name,
                                        body.dropped, body.first_dropped, body.last_dropped)});
  else if (!body.closed && !body.policy.essential)
    body.messages.push_back(
        {LogLevel::warning, fmt::format("{}: does not know that the run has ended", body.policy.name)});
}

const SinkPolicy& SinkThread::policy() const { return body_->policy; }

std::vector<SinkThread::Message> SinkThread::take_messages() {
  const std::lock_guard lock(body_->mutex);
  return std::exchange(body_->messages, {});
}

int64_t SinkThread::dropped() const {
  const std::lock_guard lock(body_->mutex);
  return body_->dropped;
}

}  // namespace lockstep::observe
