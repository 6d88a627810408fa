#include "comm/staged/staged_communicator.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <exception>
#include <limits>
#include <new>
#include <utility>

#include "base/index.h"
#include "comm/halves.h"
#include "lockstep/error.h"

namespace lockstep::comm {
namespace {

constexpr int64_t kAlignment = 64;
constexpr std::chrono::seconds kTimeout{300}, kDrainTimeout{5};

/// Streams wait for numbers up to a word's, as far as these are told apart: by the sign of their difference.
constexpr auto kAll = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());

int64_t aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

bool has_blocks(OperationKind kind) {
  return kind == OperationKind::reduce_scatter || kind == OperationKind::all_gather;
}

bool is_exchange_without(Transfer::Direction direction, const Operation& operation) {
  return operation.kind == OperationKind::exchange &&
         std::ranges::none_of(operation.transfers, [direction](const Transfer& transfer) {
           return transfer.direction == direction;
         });
}
bool only_sends(const Operation& operation) {
  return is_exchange_without(Transfer::Direction::receive, operation);
}
bool only_receives(const Operation& operation) {
  return is_exchange_without(Transfer::Direction::send, operation);
}

}  // namespace

StagedCommunicator::StagedCommunicator(std::unique_ptr<Communicator> host, device::Device& device,
                                       int64_t staging_bytes, std::string name)
    : StreamCommunicator(std::move(name), host->rank(), host->size(), std::make_shared<Death>(), device),
      host_(std::move(host)),
      cpu_(device::make_cpu_device()),
      host_stream_(cpu_->create_stream("host")),
      staging_(device.allocate_host(staging_bytes)),
      word_memory_(device.allocate_host(kStagedWordBytes)),
      word_(new (word_memory_.data()) std::atomic<uint64_t>(0)) {
  static_assert(sizeof(std::atomic<uint64_t>) == kStagedWordBytes);
  make_room(0);
}

StagedCommunicator::~StagedCommunicator() {
  if (idle() || has_failed()) return;
  // Whoever leaves by an error lets the others know at once.
  if (std::uncaught_exceptions() == 0 && sends_the_rest()) return;
  die("went away with operations outstanding", ExitCode::peer_lost);
  drain();
}

/// Whether everything is complete: what streams have passed is sent nevertheless.
bool StagedCommunicator::sends_the_rest() noexcept try {
  if (death().marked() || !streams_have_passed()) return false;
  const Deadline deadline = deadline_in(kDrainTimeout);
  while (!test() && Clock::now() < deadline) sched_yield();
  return idle();
} catch (const std::exception&) {
  return false;  // it has died of it
}

/// Streams that still copy from the staging or to it get past that; not for ever, if they wait for others.
void StagedCommunicator::drain() noexcept {
  for (const Deadline deadline = deadline_in(kDrainTimeout);
       !streams_have_passed() && !has_failed() && Clock::now() < deadline; sched_yield())
    try {
      last_stream_->idle();
    } catch (const std::exception&) {
      // It has failed: what comes after it is dropped.
    }
}

std::unique_ptr<Communicator> StagedCommunicator::split(int color, int key) {
  check_alive();
  complete_all();  // its messages are not to come between
  try {
    auto part = host_->split(color, key);
    if (part == nullptr) return nullptr;
    return std::make_unique<StagedCommunicator>(std::move(part), device(), 0,
                                                fmt::format("{}/{}", name(), color));
  } catch (const CommError& error) {
    fail(error.what(), error.code());
  }
}

void StagedCommunicator::check_health() {
  check_alive();
  progress();
}

void StagedCommunicator::advance() {
  progress();
  // Some devices get on only while they are asked whether they are idle.
  if (!streams_have_passed()) last_stream_->idle();
}

int64_t StagedCommunicator::bytes_of(const Operation& operation) const {
  if (operation.kind != OperationKind::exchange)
    return operation.block_bytes() * (has_blocks(operation.kind) ? size() : 1);
  std::vector<int64_t> sizes;
  for (const Transfer& transfer : operation.transfers) sizes.push_back(transfer.size_bytes);
  return staging_of_exchange(sizes);
}

/// Halves of what there is; of more, if that does not suffice for an operation in each.
void StagedCommunicator::make_room(int64_t bytes) {
  const int64_t each = staging_.size_bytes() / 2 / kAlignment * kAlignment;
  if (bytes > each) {
    device::Buffer larger = device().allocate_host(2 * aligned(bytes));
    outgrown_.push_back(std::exchange(staging_, std::move(larger)));
    for (Half& half : halves_) half.data = nullptr;
  }
  if (halves_[0].data != nullptr && staging_.size_bytes() > 0) return;
  halves_[0].data = staging_.data();
  halves_[1].data = staging_.data() + staging_.size_bytes() / 2 / kAlignment * kAlignment;
}

std::unique_ptr<device::Event> StagedCommunicator::record(device::Stream& stream) {
  if (spare_.empty()) spare_.push_back(device().create_event());
  std::unique_ptr<device::Event> event = std::move(spare_.back());
  spare_.pop_back();
  stream.record(*event);
  return event;
}

void StagedCommunicator::issue(const Operation& operation, device::Stream& stream) {
  last_stream_ = &stream;
  ++issued_;
  if (size() == 1) {
    completed_ = issued_;
    return;
  }
  make_room(bytes_of(operation));
  Half& half = nth(halves_, issued_ % 2);
  const bool sends_alone = only_sends(operation), receives_alone = only_receives(operation);
  Waiting waiting{.number = issued_, .operation = {}, .arrived = {}, .wide = {}};
  if (!receives_alone && half.only_sends) stream.wait_word(*word_, static_cast<uint64_t>(half.number));
  waiting.operation = stage(operation, half, stream);
  if (receives_alone)
    waiting.arrived = std::move(half.left);
  else
    waiting.arrived = record(stream);
  if (!sends_alone) {
    stream.wait_word(*word_, static_cast<uint64_t>(waiting.number));
    unstage(operation, waiting.operation, stream);
  }
  if (half.left) spare_.push_back(std::move(half.left));
  half.left = record(stream);
  half.number = waiting.number;
  half.only_sends = sends_alone;
  waiting_.push_back(std::move(waiting));
}

/// What a stream copies to a half comes after what it has copied away from it, since StreamCommunicator
/// orders operations of several streams.
Operation StagedCommunicator::stage(const Operation& operation, const Half& half, device::Stream& stream) {
  Operation staged = operation;
  if (operation.kind == OperationKind::exchange) {
    std::byte* at = half.data;
    for (Transfer& transfer : staged.transfers) {
      if (transfer.direction == Transfer::Direction::send)
        stream.copy(at, transfer.data, transfer.size_bytes);
      transfer.data = std::exchange(at, at + aligned(transfer.size_bytes));
    }
    return staged;
  }
  staged.data = half.data;
  // Of blocks that are gathered only the own one has anything to say.
  const bool own_block = operation.kind == OperationKind::all_gather;
  const int64_t first = own_block ? operation.block_bytes() * rank() : 0;
  const bool says = operation.kind != OperationKind::broadcast || operation.root == rank();
  if (says)
    stream.copy(half.data + first, static_cast<std::byte*>(operation.data) + first,
                own_block ? operation.block_bytes() : bytes_of(operation));
  return staged;
}

void StagedCommunicator::unstage(const Operation& operation, const Operation& staged,
                                 device::Stream& stream) const {
  if (operation.kind == OperationKind::exchange) {
    for (size_t i = 0; i < operation.transfers.size(); ++i)
      if (const Transfer& transfer = operation.transfers[i];
          transfer.direction == Transfer::Direction::receive)
        stream.copy(transfer.data, staged.transfers[i].data, transfer.size_bytes);
    return;
  }
  // Of a reduction's blocks only the own one is specified.
  const bool own_block = operation.kind == OperationKind::reduce_scatter;
  const int64_t first = own_block ? operation.block_bytes() * rank() : 0;
  if (operation.kind == OperationKind::broadcast && operation.root == rank()) return;
  stream.copy(static_cast<std::byte*>(operation.data) + first, static_cast<std::byte*>(staged.data) + first,
              own_block ? operation.block_bytes() : bytes_of(operation));
}

void StagedCommunicator::complete_all() {
  for (const Deadline deadline = deadline_in(kTimeout); !test(); sched_yield())
    if (Clock::now() >= deadline) fail("earlier operations do not complete", ExitCode::hang);
}

void StagedCommunicator::start(Waiting& waiting) {
  const Operation& operation = waiting.operation;
  void* data = operation.data;
  DType dtype = operation.dtype;
  if (is_half(dtype)) {
    waiting.wide = widened(operation.data, bytes_of(operation), dtype);
    data = waiting.wide.data();
    dtype = DType::float32;
  }
  const auto started = [&] {
    switch (operation.kind) {
      case OperationKind::all_reduce:
        return host_->all_reduce(data, operation.count, dtype, operation.reduce_op, *host_stream_);
      case OperationKind::reduce_scatter:
        return host_->reduce_scatter(data, operation.count, dtype, operation.reduce_op, *host_stream_);
      case OperationKind::all_gather:
        return host_->all_gather(data, operation.count, *host_stream_);
      case OperationKind::broadcast:
        return host_->broadcast(data, operation.count, operation.root, *host_stream_);
      case OperationKind::exchange:
        return host_->exchange(operation.transfers, *host_stream_);
      case OperationKind::barrier:
      case OperationKind::split:
        return host_->barrier(*host_stream_);
    }
    throw InternalError("an operation of no kind");
  };
  waiting.ticket = started();
  waiting.started = true;
}

void StagedCommunicator::finish(Waiting& waiting) {
  if (!waiting.wide.empty()) narrow(waiting.wide, waiting.operation.data, waiting.operation.dtype);
  // One that has died meanwhile keeps its word.
  auto before = static_cast<uint64_t>(waiting.number - 1);
  word_->compare_exchange_strong(before, static_cast<uint64_t>(waiting.number), std::memory_order_release,
                                 std::memory_order_relaxed);
  if (waiting.arrived) spare_.push_back(std::move(waiting.arrived));
  completed_ = waiting.number;
}

/// One operation is under way, or two exchanges, each in its half.
bool StagedCommunicator::can_start(const Waiting& waiting, bool is_first) const {
  const auto is_exchange = [](const Waiting& one) { return one.operation.kind == OperationKind::exchange; };
  if (!is_first && !(is_exchange(waiting) && is_exchange(waiting_.front()))) return false;
  return waiting.arrived == nullptr || waiting.arrived->ready();
}

void StagedCommunicator::progress() {
  try {
    while (!waiting_.empty()) {
      for (size_t i = 0; i < std::min(waiting_.size(), halves_.size()); ++i) {
        if (waiting_[i].started) continue;
        if (!can_start(waiting_[i], i == 0)) break;
        start(waiting_[i]);
      }
      Waiting& first = waiting_.front();
      if (!first.started || !host_->poll(first.ticket)) return;
      finish(first);
      waiting_.pop_front();
    }
  } catch (const CommError& error) {
    fail(error.what(), error.code());
  }
}

void StagedCommunicator::die(std::string_view reason, ExitCode code) noexcept {
  StreamCommunicator::die(reason, code);
  host_->abort(reason);
  // Streams are not to wait for what does not come; what they then copy nobody reads.
  word_->store(kAll, std::memory_order_release);
}

int64_t staging_of(int64_t operation_bytes) { return 2 * aligned(operation_bytes); }

int64_t staging_of_exchange(std::span<const int64_t> sizes) {
  int64_t bytes = 0;
  for (const int64_t size : sizes) bytes += aligned(size);
  return bytes;
}

std::unique_ptr<Communicator> make_staged_communicator(std::unique_ptr<Communicator> host,
                                                       device::Device& device, int64_t staging_bytes) {
  return std::make_unique<StagedCommunicator>(std::move(host), device, staging_bytes, "world");
}

}  // namespace lockstep::comm
