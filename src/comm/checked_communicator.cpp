#include "comm/checked_communicator.h"

#include <fmt/format.h>

#include "base/text.h"

namespace lockstep::comm {

void Death::mark(std::string_view reason, ExitCode code) noexcept {
  std::lock_guard lock(mutex_);
  if (marked()) return;
  code_ = code;
  try {
    reason_ = reason;
  } catch (...) {
    reason_.clear();  // out of memory: dead all the same
  }
  marked_.store(true, std::memory_order_release);
}

void Death::check(std::string_view who) const {
  if (!marked()) return;
  std::lock_guard lock(mutex_);
  throw CommError(fmt::format("{}: {}", who, reason_), code_);
}

Ticket CheckedCommunicator::submit(Operation operation, device::Stream& stream) {
  check_alive();
  try {
    validate(operation, rank_, size_, reduces_halves());
  } catch (const CommError& error) {
    fail(error.what());
  }
  for (const Transfer& transfer : operation.transfers)
    (transfer.direction == Transfer::Direction::send ? transferred_.sent : transferred_.received) +=
        transfer.size_bytes;
  enqueue(std::move(operation), stream);
  return {++started_};
}

void CheckedCommunicator::check_alive() const {
  if (death_->marked()) death_->check(who());
}

void CheckedCommunicator::fail(std::string_view what, ExitCode code) {
  die(what, code);
  death_->check(who());
  throw CommError(std::string(what), code);  // unreachable: check() throws once marked
}

std::string CheckedCommunicator::who() const {
  return fmt::format("rank {} of {} on communicator '{}' ({})", rank_, size_, name_, backend());
}

std::string expired_message(const Operation& operation, double waited_ms,
                            const std::vector<std::string>& pending) {
  return fmt::format(
      "{} did not complete within {:.2f} s; still waiting for {}; a peer is dead, stuck, or in another "
      "operation",
      describe(operation), waited_ms / 1000.0, pending.empty() ? "the others" : join(pending, ", "));
}

}  // namespace lockstep::comm
