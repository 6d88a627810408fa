#include "run/deliveries.h"

#include <algorithm>

namespace lockstep::run {

void Deliveries::add(int place, int instruction, device::Stream& stream, const device::Event& done) {
  waiting_.push_back({place, instruction, &stream, &done});
}

void Deliveries::advance(const Deliver& deliver) {
  while (!waiting_.empty()) {
    const Delivery next = waiting_.front();
    // Some devices get on only while they are asked whether they are idle.
    if (!next.done->ready()) next.stream->idle();
    if (!next.done->ready()) return;
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
