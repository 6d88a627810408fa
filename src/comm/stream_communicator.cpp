#include "comm/stream_communicator.h"

#include <sched.h>

namespace lockstep::comm {

bool StreamCommunicator::idle() noexcept {
  try {
    retire();
  } catch (const std::exception&) {
    return false;
  }
  return pending_.empty();
}

bool StreamCommunicator::streams_have_passed() const noexcept {
  try {
    return pending_.empty() || pending_.back().behind->ready();
  } catch (const std::exception&) {
    return false;
  }
}

bool StreamCommunicator::has_failed() const noexcept {
  try {
    if (!pending_.empty()) pending_.front().behind->ready();
    return false;
  } catch (const std::exception&) {
    return true;
  }
}

void StreamCommunicator::retire() {
  while (!pending_.empty() && pending_.front().behind->ready() &&
         is_complete_behind(pending_.front().number)) {
    spare_.push_back(std::move(pending_.front().behind));
    pending_.pop_front();
  }
}

void StreamCommunicator::enqueue(Operation operation, device::Stream& stream) {
  // Programs give a communicator one stream; if it gets several, it keeps its order all the same.
  retire();
  if (!pending_.empty() && pending_.back().stream != &stream) stream.wait(*pending_.back().behind);
  try {
    issue(operation, stream);
    if (spare_.empty()) spare_.push_back(device_.create_event());
    stream.record(*spare_.back());
    pending_.push_back({++enqueued_, std::move(operation), Clock::now(), std::move(spare_.back()), &stream});
    spare_.pop_back();
  } catch (const std::exception& error) {
    // Streams may have a part of it, and numbers of later operations would be those of others.
    const auto* known = dynamic_cast<const Error*>(&error);
    if (!death().marked()) die(error.what(), known != nullptr ? known->code() : ExitCode::internal);
    throw;
  }
}

int64_t StreamCommunicator::outstanding() {
  check_alive();
  advance();
  check_health();
  retire();
  return static_cast<int64_t>(pending_.size());
}

void StreamCommunicator::synchronize(device::Stream&, Deadline deadline) {
  while (!test()) {
    if (Clock::now() >= deadline) {
      const Pending& head = pending_.front();
      std::vector<std::string> transfers;
      for (const auto& transfer : head.operation.transfers) transfers.push_back(describe(transfer));
      fail(expired_message(head.operation, milliseconds_between(head.started, Clock::now()), transfers),
           ExitCode::hang);
    }
    // The peer that is waited for may need this core.
    sched_yield();
  }
}

}  // namespace lockstep::comm
