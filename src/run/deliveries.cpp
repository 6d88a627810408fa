#include "run/deliveries.h"

#include <algorithm>

namespace lockstep::run {

void Deliveries::add(int place, int instruction, device::Stream& stream, const device::Event& done) {
  waiting_.push_back({place, instruction, &stream, &done});
}

void Deliveries::advance(const Deliver& deliver) {
  // Some devices get on only while they are asked whether they are idle.
  while (!waiting_.empty() && (waiting_.front().done->ready() || waiting_.front().stream->idle())) {
    const Delivery next = waiting_.front();
    waiting_.pop_front();
    deliver(next.place, next.instruction);
  }
}

bool Deliveries::any(int place) const {
  return std::ranges::any_of(waiting_, [place](const Delivery& one) { return one.place == place; });
}

bool Deliveries::has(int instruction) const {
  return std::ranges::any_of(waiting_,
                             [instruction](const Delivery& one) { return one.instruction == instruction; });
}

}  // namespace lockstep::run
