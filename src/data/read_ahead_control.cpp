#include "data/read_ahead_control.h"

#include <algorithm>

namespace lockstep::data {
namespace {

constexpr int kBatchesTogether = 8;
constexpr double kNoticed = 0.02;  // share of the time that may pass waiting
constexpr int64_t kRarest = 1 << 20;

}  // namespace

ReadAheadControl::ReadAheadControl(int most_threads, int most_depth)
    : most_threads_(most_threads), most_depth_(most_depth) {
  size_.depth = std::min(size_.depth, most_depth_);
}

ReadAheadSize ReadAheadControl::note(double waited_ms, double period_ms, int ready) {
  waited_ms_ += waited_ms;
  period_ms_ += period_ms;
  least_ready_ = batches_ == 0 ? ready : std::min(least_ready_, ready);
  if (++batches_ == kBatchesTogether) {
    look_back();
    waited_ms_ = period_ms_ = 0;
    batches_ = 0;
  }
  return size_;
}

void ReadAheadControl::look_back() {
  if (waited_ms_ > kNoticed * period_ms_) {
    if (has_rested_) calm_needed_ = std::min(2 * calm_needed_, kRarest);
    has_rested_ = false;
    calm_ = 0;
    return grow();
  }
  // One batch may be on its way.
  calm_ = least_ready_ >= size_.depth - 2 ? calm_ + 1 : 0;
  if (calm_ < calm_needed_ || size_.threads == 1) return;
  --size_.threads;
  calm_ = 0;
  has_rested_ = true;
}

void ReadAheadControl::grow() {
  size_.threads = std::min(most_threads_, size_.threads + std::max(1, size_.threads / 2));
  size_.depth = std::max(size_.depth, std::min(most_depth_, 2 * size_.threads + 2));
}

}  // namespace lockstep::data
