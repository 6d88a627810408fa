#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
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
  /// Waits for the last text to be written, but no longer than kPatience: a disk that hangs ends no run.
  ~LatestFile();
  LatestFile(const LatestFile&) = delete;
  LatestFile& operator=(const LatestFile&) = delete;

  /// Whether it is time to replace the text.
  bool due() const { return Clock::now() >= next_; }
  /// Returns at once. A text that was not written yet is dropped.
  void replace(std::string text);

 private:
  static constexpr std::chrono::seconds kPatience{2};

  /// Outlives this object if its thread hangs in a write.
  struct Shared {
    std::string path;
    std::mutex mutex;  // guards the rest
    std::condition_variable changed;
    std::optional<std::string> text;
    bool ends = false, is_over = false;
  };
  static void run(const std::shared_ptr<Shared>& shared);

  const std::chrono::milliseconds interval_;
  Clock::time_point next_;
  std::shared_ptr<Shared> shared_;
  std::thread thread_;
};

}  // namespace lockstep::observe
