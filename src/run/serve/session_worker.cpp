#include "run/serve/session_worker.h"

#include <algorithm>
#include <utility>

#include "base/ensure.h"
#include "base/index.h"

namespace lockstep::run {

SessionWorker::SessionWorker(const program::SessionTerms& terms, std::vector<RangeOfServer> push_order)
    : bound_(terms.bound),
      servers_(static_cast<int>(terms.ranges.size())),
      slots_(landing_slots(terms)),
      ranges_(terms.ranges),
      push_order_(std::move(push_order)),
      missing_(static_cast<int>(push_order_.size())),
      answers_(terms.ranges.size()) {
  check(terms);
  size_t found = 0;
  for (int server = 0; server < servers_; ++server)
    for (int range = 0; range < nth(ranges_, server); ++range, ++found)
      ensure(std::ranges::count(push_order_, RangeOfServer{server, range}) == 1,
             "every range is pushed once");
  ensure(found == push_order_.size(), "what is pushed is a range of a server");
}

std::optional<WorkerMove> SessionWorker::next() {
  switch (phase_) {
    case Phase::pulling:
      return pull();
    case Phase::pushing:
      return push();
    case Phase::leaving:
      break;
  }
  if (next_ == servers_) return {};
  return LeaveServer{next_++};
}

std::optional<WorkerMove> SessionWorker::pull() {
  // The coordinator's first answer says whether the step is to be, and with which version.
  const bool granted = nth(answers_, 0) > 0;
  if (next_ == 0) return AskServer{next_++, step_, std::nullopt};
  if (granted && next_ < servers_)
    return AskServer{next_++, step_, bound_ ? std::optional(version_) : std::nullopt};
  if (missing_ > 0) return {};
  phase_ = Phase::pushing;
  next_ = 0;
  return ComputeStep{step_, version_};
}

WorkerMove SessionWorker::push() {
  const RangeOfServer place = nth(push_order_, next_++);
  const PushRange push{place.server, place.range, step_, program::landing_slot(step_, slots_),
                       stop_ && place.server == 0};
  if (static_cast<size_t>(next_) == push_order_.size()) {
    phase_ = Phase::pulling;
    ++step_;
    next_ = 0;
    missing_ = static_cast<int>(push_order_.size());
    std::ranges::fill(answers_, 0);
  }
  return push;
}

void SessionWorker::answered(int server, int range, int64_t version) {
  ensure(phase_ == Phase::pulling && server >= 0 && server < next_, "who answers was asked");
  ensure(range == nth(answers_, server) && range < nth(ranges_, server),
         "ranges are answered once, in order");
  if (server == 0 && range == 0) version_ = version;
  if (bound_) {
    ensure(version >= step_ - *bound_ && version <= step_, "a step reads a version within the bound");
    ensure(version == version_, "a step reads all ranges at one version");
  }
  ++nth(answers_, server);
  --missing_;
}

void SessionWorker::refused() {
  ensure(phase_ == Phase::pulling && next_ == 1 && nth(answers_, 0) == 0,
         "a step is refused before it begins");
  phase_ = Phase::leaving;
  next_ = 0;
}

}  // namespace lockstep::run
