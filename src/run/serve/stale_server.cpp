#include "run/serve/stale_server.h"

#include <algorithm>

#include "base/ensure.h"
#include "base/index.h"

namespace lockstep::run {

StaleServer::StaleServer(const program::SessionTerms& terms, int server)
    : workers_(terms.workers),
      ranges_(nth(terms.ranges, server)),
      bound_(terms.bound.value_or(0)),
      slots_(landing_slots(terms)),
      copies_(kept_copies(terms, server)),
      coordinator_(server == 0),
      attendance_(workers_, ranges_),
      end_(terms.steps),
      wanted_(static_cast<size_t>(workers_)),
      read_(static_cast<size_t>(workers_) * static_cast<size_t>(slots_)),
      landed_(static_cast<size_t>(slots_)) {
  check(terms);
  ensure(terms.bound.has_value(), "a server of versions has a bound");
}

int64_t& StaleServer::read(int worker, int64_t step) { return nth(read_, worker * slots_ + slot(step)); }

void StaleServer::pushed(int worker, int range, int64_t clock, bool stop) {
  attendance_.push(worker, range, clock);
  ensure(clock >= version_ && clock <= version_ + bound_, "a push finds its landing slot free");
  ++nth(landed_, slot(clock));
  if (!stop || !coordinator_) return;
  int64_t begun = 0;
  for (int one = 0; one < workers_; ++one) begun = std::max(begun, attendance_.steps(one));
  end_ = std::min(end_, begun);
}

void StaleServer::asked(int worker, int64_t step, std::optional<int64_t> version) {
  attendance_.ask(worker, step);
  ensure(version.has_value() == !coordinator_, "the coordinator decides which version is read");
  if (version) {
    ensure(*version >= step - bound_ && *version <= step, "a step reads a version within the bound");
    ensure(*version >= version_ - copies_, "the version that is asked for is kept");
  }
  nth(wanted_, worker) = version.value_or(-1);
}

void StaleServer::left(int worker) {
  attendance_.leave(worker);
  const int64_t steps = attendance_.steps(worker);
  ensure(left_at_ < 0 || left_at_ == steps, "all workers leave after the same step");
  left_at_ = steps;
}

void StaleServer::lost(int worker) {
  if (attendance_.lose(worker) && lost_ < 0) lost_ = worker;
}

std::optional<Decision> StaleServer::decide() {
  if (over_) return {};
  if (lost_ >= 0) {
    over_ = true;
    return ReportLost{lost_};
  }
  if (answering_ >= 0) return answer_range();
  if (nth(landed_, slot(version_)) == workers_ * ranges_) return apply();
  for (int worker = 0; worker < workers_; ++worker) {
    if (!attendance_.asks(worker)) continue;
    if (coordinator_ && attendance_.steps(worker) >= end_) {
      attendance_.refuse(worker);
      return RefuseStep{worker, attendance_.steps(worker)};
    }
    if (may_answer(worker)) return begin_answer(worker);
  }
  if (!attendance_.all_gone()) return {};
  ensure(version_ == left_at_, "all that was pushed is applied before a session ends");
  over_ = true;
  return EndSession{};
}

Decision StaleServer::apply() {
  const int64_t clock = version_;
  const int place = slot(clock);
  for (int worker = 0; worker < workers_; ++worker) staleness_.add(clock - read(worker, clock), ranges_);
  nth(landed_, place) = 0;
  ++version_;
  return ApplyClock{clock, place, copies_ > 0 ? static_cast<int>(clock % copies_) : kNoCopy};
}

bool StaleServer::may_answer(int worker) const {
  if (coordinator_) return version_ >= attendance_.steps(worker) - bound_;
  return version_ >= nth(wanted_, worker);
}

Decision StaleServer::begin_answer(int worker) {
  const int64_t step = attendance_.steps(worker);
  const int64_t version = coordinator_ ? version_ : nth(wanted_, worker);
  ensure(version >= step - bound_ && version <= step, "the bound holds");
  ensure(version >= version_ - copies_ && version <= version_, "what is answered is at hand");
  attendance_.answer(worker);
  read(worker, step) = version;
  nth(wanted_, worker) = version;
  answering_ = worker;
  next_range_ = 0;
  return answer_range();
}

Decision StaleServer::answer_range() {
  const int64_t version = nth(wanted_, answering_);
  const AnswerPull answer{answering_, next_range_, version,
                          version == version_ ? kNoCopy : static_cast<int>(version % copies_)};
  if (++next_range_ == ranges_) answering_ = -1;
  return answer;
}

}  // namespace lockstep::run
