#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "comm/conformance_support.h"
#include "control/control_plane.h"
#include "control/meeting_of.h"
#include "control/start.h"

namespace lockstep::control {

/// A door that threads wait at until it is opened.
class Gate {
 public:
  void open() {
    std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  bool wait() {
    std::unique_lock lock(mutex_);
    return changed_.wait_until(lock, comm::patience(), [this] { return open_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
};

/// What became of a rank.
struct End {
  Gate ended;
  std::atomic<int> code{-1};    // with which it left
  std::atomic<int> thrown{-1};  // of the error that kept it from starting
  std::mutex mutex;
  std::string printed;  // guarded by mutex

  std::string text() {
    std::lock_guard lock(mutex);
    return printed;
  }
};

/// One thread for each rank of a job, with a control plane each; ends of processes are caught.
class Job {
 public:
  explicit Job(int size) : ends(static_cast<size_t>(size)) {
    for (auto& end : ends) end = std::make_unique<End>();
  }

  ControlPlaneOptions options(int rank) {
    End& end = *ends[static_cast<size_t>(rank)];
    ControlPlaneOptions options{.host = rank < 2 ? "a" : "b",
                                .interface = "127.0.0.1",
                                .termination_requested = {},
                                .end_process = {}};
    options.end_process = [&end](int code) {
      end.code = code;
      end.ended.open();
    };
    options.print = [&end](std::string_view text) {
      std::lock_guard lock(end.mutex);
      end.printed += text;
    };
    if (customize) customize(rank, options);
    return options;
  }

  void run(const std::function<void(int, ControlPlane&)>& body) {
    auto worlds = comm::make_local_communicators(static_cast<int>(ends.size()));
    std::vector<std::thread> threads;
    for (auto& world : worlds)
      threads.emplace_back([&, this] {
        try {
          const auto plane = start_control_plane(meeting_of(*world), options(world->rank()), timings);
          body(world->rank(), *plane);
        } catch (const std::exception& error) {
          End& end = *ends[static_cast<size_t>(world->rank())];
          if (const auto* own = dynamic_cast<const CommError*>(&error))
            end.thrown = static_cast<int>(own->code());
          std::lock_guard lock(end.mutex);
          ends[static_cast<size_t>(world->rank())]->printed = error.what();
        }
      });
    for (auto& thread : threads) thread.join();
  }
  End& end(int rank) { return *ends[static_cast<size_t>(rank)]; }
  bool others_end_with(int code, int but) {
    bool all = true;
    for (size_t rank = 0; rank < ends.size(); ++rank)
      if (static_cast<int>(rank) != but) all = ends[rank]->ended.wait() && ends[rank]->code == code && all;
    return all;
  }

  std::function<void(int, ControlPlaneOptions&)> customize;
  ControlTimings timings;
  std::vector<std::unique_ptr<End>> ends;
};

inline WatchdogOptions quick() {
  WatchdogOptions options;
  options.heartbeat_interval = std::chrono::milliseconds(20);
  return options;
}

}  // namespace lockstep::control
