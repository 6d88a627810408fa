#include "run/serve/sliced_answer.h"

#include <cstring>

#include "base/ensure.h"

namespace lockstep::run {

SlicedAnswer::SlicedAnswer(comm::MessagePort& to_workers, int rank, int worker,
                           const program::SessionTerms& terms, const std::vector<ServedRange>& ranges)
    : to_workers_(to_workers),
      rank_(rank),
      worker_(worker),
      terms_(terms),
      ranges_(ranges),
      began_(ranges.size()) {
  for (const ServedRange& range : ranges_) {
    ensure(
        static_cast<int>(range.outboxes.size()) == terms_.workers && nth(range.outboxes, worker_) != nullptr,
        "each worker has an outbox");
    ensure(range.outbox_bytes >= program::kSlicesUnderWay * terms_.slice_at(0, range.size_bytes),
           "an outbox has room for the slices that are on their way");
  }
}

void SlicedAnswer::add(int range) {
  if (range == 0) {
    for (int before = 0; before < added_; ++before)
      ensure(is_sent(before), "whoever asks again has got the last answer");
    added_ = range_ = 0;
    offset_ = 0;
  }
  ensure(range == added_, "ranges are answered in order");
  ++added_;
}

bool SlicedAnswer::advance() {
  bool moved = false;
  while (range_ < added_ && has_left(nth(slices_, turn_))) {
    const ServedRange& range = nth(ranges_, range_);
    const int64_t size_bytes = terms_.slice_at(offset_, range.size_bytes);
    if (offset_ == 0) nth(began_, range_) = Clock::now();
    std::byte* place = nth(range.outboxes, worker_) + turn_ * (range.outbox_bytes / program::kSlicesUnderWay);
    std::memcpy(place, range.contents + offset_, static_cast<size_t>(size_bytes));
    nth(slices_, turn_) = {to_workers_.start(comm::send_to(rank_, place, size_bytes)), range_};
    turn_ = (turn_ + 1) % program::kSlicesUnderWay;
    offset_ += size_bytes;
    if (offset_ == range.size_bytes) {
      ++range_;
      offset_ = 0;
    }
    moved = true;
  }
  return moved;
}

bool SlicedAnswer::is_sent(int range) {
  bool sent = range >= added_ || range < range_;
  for (Slice& slice : slices_)
    if (!has_left(slice) && slice.range == range) sent = false;
  return sent;
}

void SlicedAnswer::drop() { added_ = range_ = 0; }

bool SlicedAnswer::has_left(Slice& slice) {
  if (slice.range >= 0 && to_workers_.poll(slice.ticket)) slice.range = -1;
  return slice.range < 0;
}

}  // namespace lockstep::run
