#include "run/stamp_recorder.h"

#include <algorithm>

namespace lockstep::run {

void StampRecorder::open(uint64_t first, uint64_t count, size_t capacity) {
  entries_ = std::make_unique<Entry[]>(capacity);
  capacity_ = capacity;
  next_ = 0;
  first_ = first;
  count_ = count;
}

void StampRecorder::add(const Stamp& stamp) noexcept {
  const size_t place = next_.fetch_add(1, std::memory_order_relaxed);
  if (place >= capacity_) return;
  entries_[place].stamp = stamp;
  entries_[place].complete.store(true, std::memory_order_release);
}

std::vector<Stamp> StampRecorder::stamps() const {
  std::vector<Stamp> stamps;
  const size_t end = std::min(next_.load(), capacity_);
  for (size_t i = 0; i < end; ++i)
    if (entries_[i].complete.load(std::memory_order_acquire)) stamps.push_back(entries_[i].stamp);
  return stamps;
}

size_t StampRecorder::dropped() const {
  const size_t added = next_.load();
  return added > capacity_ ? added - capacity_ : 0;
}

}  // namespace lockstep::run
