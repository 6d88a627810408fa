#include "run/serve/async_server.h"

#include <algorithm>
#include <iterator>

#include "base/ensure.h"
#include "base/index.h"

namespace lockstep::run {

AsyncServer::AsyncServer(const program::SessionTerms& terms, int server)
    : pushes_per_step_(terms.pushes_per_step()),
      ranges_(nth(terms.ranges, server)),
      coordinator_(server == 0),
      attendance_(terms.workers, ranges_),
      target_(terms.steps),
      updates_(static_cast<size_t>(ranges_)),
      read_(static_cast<size_t>(terms.workers) * static_cast<size_t>(ranges_)) {
  check(terms);
  ensure(!terms.bound, "a server without versions has no bound");
  held_.reserve(read_.size());
  landed_.reserve(read_.size());
  asking_.reserve(static_cast<size_t>(terms.workers));
}

int64_t& AsyncServer::read(int worker, int range) { return nth(read_, worker * ranges_ + range); }

void AsyncServer::pushed(int worker, int range, int64_t clock, bool completes, bool stop) {
  attendance_.push(worker, range, clock);
  held_.push_back({worker, range});
  ensure(held_.size() + landed_.size() <= read_.size(), "a push finds its landing slot free");
  ensure(completes || attendance_.is_in_step(worker), "the last push says what its step came to");
  if (completes) {
    const auto is_of_it = [worker](const Landed& push) { return push.worker == worker; };
    std::ranges::copy_if(held_, std::back_inserter(landed_), is_of_it);
    std::erase_if(held_, is_of_it);
  }
  if (!stop || !coordinator_) return;
  // Whole steps of all: that is what is counted, evaluated and saved.
  target_ = std::min(target_, (granted_ + pushes_per_step_ - 1) / pushes_per_step_ * pushes_per_step_);
}

void AsyncServer::asked(int worker, int64_t step, std::optional<int64_t> version) {
  attendance_.ask(worker, step);
  ensure(!version, "without a bound nobody asks for a version");
  asking_.push_back(worker);
}

void AsyncServer::left(int worker) { attendance_.leave(worker); }

void AsyncServer::lost(int worker) {
  const bool owed = attendance_.owes(worker, 0) || holds(worker, 0);
  if (!attendance_.lose(worker)) return;
  if (coordinator_ && owed) {
    --granted_;
    ++steps_lost_;
  }
  std::erase_if(held_, [worker](const Landed& push) { return push.worker == worker; });
  std::erase(asking_, worker);
  if (answering_ == worker) answering_ = -1;
}

bool AsyncServer::holds(int worker, int range) const {
  return std::ranges::any_of(
      held_, [&](const Landed& push) { return push.worker == worker && push.range == range; });
}

std::optional<Decision> AsyncServer::decide() {
  if (over_) return {};
  if (answering_ >= 0) return answer_range();
  // Before asks: a worker reads what it has pushed itself.
  if (!landed_.empty()) {
    const Landed first = landed_.front();
    landed_.erase(landed_.begin());
    return apply(first);
  }
  if (!asking_.empty()) return meet_first_ask();
  if (!attendance_.all_gone()) return {};
  over_ = true;
  return EndSession{};
}

Decision AsyncServer::apply(Landed push) {
  const int64_t staleness = nth(updates_, push.range) - read(push.worker, push.range);
  const int64_t clock = attendance_.steps(push.worker) - 1;
  staleness_.add(staleness);
  ++nth(updates_, push.range);
  if (coordinator_ && push.range == 0) ++done_;
  return ApplyPush{push.worker, push.range, clock, staleness};
}

std::optional<Decision> AsyncServer::meet_first_ask() {
  const int worker = asking_.front();
  if (coordinator_ && granted_ >= target_) {
    if (done_ < granted_) return {};
    asking_.erase(asking_.begin());
    attendance_.refuse(worker);
    return RefuseStep{worker, attendance_.steps(worker)};
  }
  asking_.erase(asking_.begin());
  attendance_.answer(worker);
  if (coordinator_) ++granted_;
  answering_ = worker;
  next_range_ = 0;
  return answer_range();
}

Decision AsyncServer::answer_range() {
  const int64_t version = nth(updates_, next_range_);
  read(answering_, next_range_) = version;
  const AnswerPull answer{answering_, next_range_, version, kNoCopy};
  if (++next_range_ == ranges_) answering_ = -1;
  return answer;
}

}  // namespace lockstep::run
