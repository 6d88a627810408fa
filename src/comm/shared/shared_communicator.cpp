#include "comm/shared/shared_communicator.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <cstring>

#include "base/text.h"

namespace lockstep::comm {
namespace {

/// What a rank copies in and out at once. Predicted: kDepth chunks of data and as much of slots should fit
/// the second-level cache (1 MiB here), so 128 KiB. Measured, 2 ranks on 2 cores, us for 4 MiB and 100 MiB:
/// 64 KiB 205 and 9,940; 128 KiB 191 and 8,720; 256 KiB 171 and 8,470; 512 KiB 160 and 8,410. Slots rarely
/// are all in use, and 256 KiB has most of the gain while a piece of work stays well below 100 us.
constexpr int64_t kDefaultChunkBytes = 256 << 10;

/// What one call of poll() or start may move: 100 us at the 5 GB/s at which a core copies from memory.
constexpr int64_t kBytesPerCall = 512 << 10;

/// Where every rank has a core, its peers are likely to come within microseconds, and a system call costs as
/// much. A poll takes about 10 ns. Measured, 2 ranks, 1 KiB: 0.2 us with 100 or more, 1.7 us with none; but
/// if others keep the cores busy, 3 us with 100, up to 20 us with 1,000.
constexpr int kPollsBeforeYield = 100;

int usable_cores() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  return sched_getaffinity(0, sizeof(cores), &cores) == 0 ? CPU_COUNT(&cores) : 1;
}

SharedLayout layout_for(int size, const SharedMemoryOptions& options) {
  require(
      options.chunk_bytes >= 0,
      fmt::format("chunks of shared memory: expected a size from 1 byte on, or 0 for the usual one, found {}",
                  options.chunk_bytes));
  return {size, options.chunk_bytes == 0 ? kDefaultChunkBytes : options.chunk_bytes};
}

}  // namespace

SharedCommunicator::SharedCommunicator(Seat seat)
    : SharedCommunicator(std::move(seat), layout_for(seat.group.size(), seat.options)) {}

SharedCommunicator::SharedCommunicator(Seat seat, const SharedLayout& layout)
    : HostCommunicator(seat.name, seat.group.rank(), seat.group.size(), std::make_shared<Death>()),
      seat_(std::move(seat)),
      segment_(SharedSegment::create(seat_.group, layout.total_bytes(), layout.reserved_bytes())),
      area_(layout, segment_->data()),
      collective_(area_, rank()),
      exchange_(area_, rank(),
                [this] {
                  const SharedLayout& places = area_.layout();
                  segment_->reserve(places.outbox(rank()), places.outbox_bytes());
                }),
      polls_before_yield_(size() <= usable_cores() ? kPollsBeforeYield : 0) {}

SharedCommunicator::~SharedCommunicator() {
  if (!pending_.empty() && !death().marked())
    die(fmt::format("rank {} went away with operations outstanding", rank()), ExitCode::peer_lost);
}

/// The group's split may block if nobody can be told of an abort; so all ranks meet here first.
std::unique_ptr<Communicator> SharedCommunicator::split(int color, int key) {
  notice_death();
  check_alive();
  start({OperationKind::split});
  wait(Deadline::max());
  try {
    auto part = seat_.group.split(color, key);
    if (part == nullptr) return nullptr;
    Communicator& group = *part;
    return std::make_unique<SharedCommunicator>(
        Seat{group, std::move(part), fmt::format("{}/{}", name(), color), seat_.options});
  } catch (const CommError& error) {
    fail(fmt::format("split: {}", error.what()), error.code());
  }
}

void SharedCommunicator::start(Operation operation) {
  notice_death();
  check_alive();
  if (size() == 1) return;
  pending_.push_back({std::move(operation), Clock::now()});
  progress();
}

int64_t SharedCommunicator::outstanding() {
  notice_death();
  check_alive();
  progress();
  return static_cast<int64_t>(pending_.size());
}

void SharedCommunicator::synchronize(device::Stream&, Deadline deadline) {
  notice_death();
  check_alive();
  wait(deadline);
}

void SharedCommunicator::wait(Deadline deadline) {
  int polls = 0;
  for (;;) {
    const Progress state = progress();
    if (state == Progress::complete) return;
    notice_death();
    check_alive();
    if (state == Progress::moved) polls = 0;
    if (++polls < polls_before_yield_) continue;
    if (Clock::now() >= deadline) expire();
    sched_yield();  // ranks may share a core: the peer that is waited for may need it
  }
}

/// Takes the pending operations as far as they go without waiting, or until enough was moved for one call.
SharedCommunicator::Progress SharedCommunicator::progress() {
  int64_t budget = kBytesPerCall;
  while (!pending_.empty() && budget > 0) {
    try {
      if (!finish_head(budget)) break;
    } catch (const CommError& error) {
      fail(fmt::format("{}: {}", describe(pending_.front().operation), error.what()), error.code());
    }
    pending_.pop_front();
    begun_ = false;
  }
  if (pending_.empty()) return Progress::complete;
  return budget < kBytesPerCall ? Progress::moved : Progress::waiting;
}

bool SharedCommunicator::finish_head(int64_t& budget) {
  const auto run = [&](auto& machine) {
    if (!begun_) machine.begin(pending_.front().operation);
    begun_ = true;
    while (!machine.complete() && budget > 0) {
      const int64_t bytes = machine.advance();
      if (bytes == machine.kWaiting) return false;
      budget -= bytes;
    }
    return machine.complete();
  };
  return pending_.front().operation.kind == OperationKind::exchange ? run(exchange_) : run(collective_);
}

void SharedCommunicator::expire() {
  const Pending& head = pending_.front();
  const bool exchanges = head.operation.kind == OperationKind::exchange;
  const double waited_ms = milliseconds_between(head.started, Clock::now());
  fail(expired_message(head.operation, waited_ms, exchanges ? exchange_.pending() : collective_.pending()),
       ExitCode::hang);
}

/// For all ranks, by the obituary; the first reason stays.
void SharedCommunicator::die(std::string_view reason, ExitCode code) noexcept {
  Obituary& obituary = area_.obituary();
  uint32_t expected = Obituary::alive;
  if (obituary.state.compare_exchange_strong(expected, Obituary::being_written, std::memory_order_acq_rel)) {
    const size_t length = std::min(reason.size(), obituary.reason.size() - 1);
    std::memcpy(obituary.reason.data(), reason.data(), length);
    obituary.reason[length] = '\0';
    obituary.exit_code = static_cast<int32_t>(code);
    obituary.state.store(Obituary::dead, std::memory_order_release);
  }
  notice_death();
  death().mark(reason, code);  // if another rank is still writing its reason
}

void SharedCommunicator::notice_death() noexcept {
  const Obituary& obituary = area_.obituary();
  if (obituary.state.load(std::memory_order_acquire) != Obituary::dead || death().marked()) return;
  death().mark(obituary.reason.data(), static_cast<ExitCode>(obituary.exit_code));
}

std::unique_ptr<Communicator> make_shared_memory_communicator(Communicator& group,
                                                              const SharedMemoryOptions& options) {
  const auto* named = dynamic_cast<const HostCommunicator*>(&group);
  return std::make_unique<SharedCommunicator>(
      SharedCommunicator::Seat{group, nullptr, named == nullptr ? "group" : named->name(), options});
}

}  // namespace lockstep::comm
