#include "run/serve/server_memory.h"

#include <algorithm>

#include "base/ensure.h"
#include "base/index.h"

namespace lockstep::run {

ServerMemory::ServerMemory(const program::SessionTerms& terms, int server, const MemoryFlaws& flaws)
    : workers_(terms.workers),
      ranges_(nth(terms.ranges, server)),
      slots_(std::max(1, landing_slots(terms) - flaws.slots_missing)),
      copies_count_(std::max(0, kept_copies(terms, server) - flaws.copies_missing)),
      answers_are_current_(flaws.answers_are_current),
      pushes_apply_twice_(flaws.pushes_apply_twice),
      current_(static_cast<size_t>(ranges_)),
      copies_(static_cast<size_t>(ranges_ * copies_count_)),
      landings_(static_cast<size_t>(workers_ * ranges_ * slots_)) {}

ServerMemory::Landing& ServerMemory::landing(int worker, int range, int slot) {
  return nth(landings_, (worker * ranges_ + range) * slots_ + slot % slots_);
}

int64_t ServerMemory::missed(int worker, int range, const Contents& read) const {
  int64_t count = 0;
  for (int other = 0; other < workers_; ++other)
    if (other != worker) count += nth(nth(current_, range), other) - nth(read, other);
  return count;
}

void ServerMemory::add(int worker, int range, int64_t clock, int slot) {
  uint16_t& pushes = nth(nth(current_, range), worker);
  Landing& its = landing(worker, range, slot);
  ensure(its.clock == clock, "the push that is applied lies in its slot");
  ensure(pushes == clock, "each push is applied once, in order");
  ++pushes;
  if (!pushes_apply_twice_) its = {};
}

void ServerMemory::send(int worker, int range, int64_t clock, int slot, const Contents& read) {
  Landing& its = landing(worker, range, slot);
  ensure(its.clock < 0, "a landing slot is free when a push is sent");
  its = {clock, read};
}

int64_t ServerMemory::carry_out(const ApplyClock& apply) {
  if (apply.keep != kNoCopy && copies_count_ > 0)
    std::ranges::copy(current_, copies_.begin() + apply.keep % copies_count_ * ranges_);
  int64_t staleness = 0;
  for (int worker = 0; worker < workers_; ++worker)
    for (int range = 0; range < ranges_; ++range) {
      // All clocks before this one have been applied, of all workers.
      staleness += apply.clock - nth(landing(worker, range, apply.slot).read, worker);
      add(worker, range, apply.clock, apply.slot);
    }
  return staleness;
}

int64_t ServerMemory::carry_out(const ApplyPush& apply) {
  const int64_t staleness = missed(apply.worker, apply.range, landing(apply.worker, apply.range, 0).read);
  ensure(apply.staleness == staleness, "staleness is what others have pushed since the pull");
  add(apply.worker, apply.range, apply.clock, 0);
  if (pushes_apply_twice_) add(apply.worker, apply.range, apply.clock, 0);
  return staleness;
}

const Contents& ServerMemory::answer(const AnswerPull& answer) const {
  if (answer.copy == kNoCopy || answers_are_current_ || copies_count_ == 0)
    return nth(current_, answer.range);
  return nth(copies_, answer.copy % copies_count_ * ranges_ + answer.range);
}

}  // namespace lockstep::run
