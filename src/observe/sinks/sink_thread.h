#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/log.h"
#include "observe/sinks/sink.h"

namespace lockstep::observe {

/// How a sink's failures count, and how long anybody waits for it.
struct SinkPolicy {
  std::string name;          ///< in messages: "metrics.mlflow"
  bool essential = false;    ///< it must open, and finish() throws if anything is missing
  bool ends_run = false;     ///< push() throws what failed. Otherwise people are told, and the run continues
  bool serves_page = false;  ///< people look at it as long as the run goes on: nothing is missing behind it
  std::chrono::milliseconds gather{0};      ///< records of this time are written together
  std::chrono::milliseconds patience{0};    ///< how long open() and sync() wait; 0: without a limit
  std::chrono::milliseconds farewell{0};    ///< how long close() waits for a sign of life; 0: without a limit
  std::chrono::milliseconds retry{5000};    ///< the longest time between attempts
  size_t most_waiting_bytes = 64ull << 20;  ///< records beyond are dropped, and counted
};

/// A sink, its thread and its queue. What the sink cannot take waits, and is tried again. If a call of the
/// sink never returns, the thread is left behind, with the sink: no method waits longer than SinkPolicy says.
/// Used by one thread; push() also by others.
class SinkThread {
 public:
  struct Message {
    LogLevel level;
    std::string text;
  };

  SinkThread(std::unique_ptr<Sink> sink, SinkPolicy policy);
  ~SinkThread();  ///< without close(), what waits is lost
  SinkThread(const SinkThread&) = delete;
  SinkThread& operator=(const SinkThread&) = delete;

  /// Opens the sink. If that fails, throws if the policy says so; otherwise it is tried again.
  void open();
  /// Never waits. Throws what failed before, if failures end the run.
  void push(const RecordPtr& record);
  /// Returns when everything pushed is durable. Throws like push(), or IoError after the policy's patience.
  void sync();
  /// Writes and closes an essential sink. Throws under any policy. For others only sync(), if failures end
  /// the run.
  void finish();
  /// Ends the sink, waiting at most so long (0: as the policy says), unless it is closed. Never throws;
  /// take_messages() then says what is lost.
  void close(RunEnd end, const std::string& report, std::chrono::milliseconds patience = {}) noexcept;

  const SinkPolicy& policy() const;
  /// What people should know, each once. Not said at once, because the progress line is another thread's.
  std::vector<Message> take_messages();
  int64_t dropped() const;  ///< records that the sink never took

 private:
  struct Body;
  /// Asks for an attempt and waits for its end; false if there is none in time.
  bool attempt(std::chrono::milliseconds patience);
  void rethrow() const;

  std::shared_ptr<Body> body_;  // the thread's, too, which may outlive this
  std::thread thread_;
};

}  // namespace lockstep::observe
