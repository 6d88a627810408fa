#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <utility>

#include "control/muster.h"

namespace lockstep::control {

/// The muster between a rank's training thread and its watchdog's thread, which alone communicates with other
/// ranks. Thread-safe.
class SectionDesk : public Muster {
 public:
  /// `wake`: called after something was asked for.
  explicit SectionDesk(std::function<void()> wake) : wake_(std::move(wake)) {}

  void enter(std::vector<bool> expendable) override { ask(std::move(expendable)); }
  void leave() override { ask({}); }
  std::vector<int> lost() const override {
    const std::lock_guard lock(mutex_);
    return lost_;
  }
  int lost_count() const override { return lost_count_.load(std::memory_order_relaxed); }
  std::optional<std::vector<int>> members() override {
    const std::lock_guard lock(mutex_);
    return std::exchange(members_, {});
  }

  // For the watchdog's thread:

  /// To enter a section with these expendable, or to leave it.
  using Request = std::optional<std::vector<bool>>;
  std::vector<Request> take_requests() {
    const std::lock_guard lock(mutex_);
    return std::exchange(requests_, {});
  }
  void tell_loss(int rank) {
    const std::lock_guard lock(mutex_);
    lost_.push_back(rank);
    ++lost_count_;
  }
  void tell_members(std::vector<int> left) {
    const std::lock_guard lock(mutex_);
    members_ = std::move(left);
  }

 private:
  void ask(Request request) {
    {
      const std::lock_guard lock(mutex_);
      requests_.push_back(std::move(request));
    }
    wake_();
  }

  std::function<void()> wake_;
  std::atomic<int> lost_count_{0};
  mutable std::mutex mutex_;  // guards all below
  std::vector<Request> requests_;
  std::vector<int> lost_;
  std::optional<std::vector<int>> members_;
};

}  // namespace lockstep::control
