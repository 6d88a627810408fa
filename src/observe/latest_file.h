#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "base/clock.h"

namespace lockstep::observe {

/// A small file that is replaced now and then by a thread of its own, so that a slow disk holds nobody up.
/// Readers see the old text or the new one. What cannot be written is warned of once. Thread-safety: one
/// thread.
class LatestFile {
 public:
  /// `interval`: between two writes that due() asks for.
  LatestFile(std::string path, std::chrono::milliseconds interval);
  /// Waits for the last text to be written.
  ~LatestFile();
  LatestFile(const LatestFile&) = delete;
  LatestFile& operator=(const LatestFile&) = delete;

  /// Whether it is time to replace the text.
  bool due() const { return Clock::now() >= next_; }
  /// Returns at once. A text that was not written yet is dropped.
  void replace(std::string text);

 private:
  void run();
  void write(const std::string& text);

  const std::string path_;
  const std::chrono::milliseconds interval_;
  Clock::time_point next_;
  std::mutex mutex_;  // guards text_ and ends_
  std::condition_variable changed_;
  std::optional<std::string> text_;
  bool ends_ = false, warned_ = false;
  std::thread thread_;  // last: it uses the others
};

}  // namespace lockstep::observe
