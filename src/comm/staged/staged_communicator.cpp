#include "comm/staged/staged_communicator.h"

#include <fmt/format.h>
#include <sched.h>

#include <limits>
#include <new>
#include <utility>

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
}

StagedCommunicator::~StagedCommunicator() {
  if (idle() || has_failed()) return;
  die("went away with operations outstanding", ExitCode::peer_lost);
  drain();
}

/// Streams that still copy from the staging or to it get past that; not for ever, where they wait for others.
void StagedCommunicator::drain() noexcept {
  for (const Deadline deadline = deadline_in(kDrainTimeout);
       !idle() && !has_failed() && Clock::now() < deadline; sched_yield())
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
  if (!idle()) last_stream_->idle();
}

int64_t StagedCommunicator::bytes_of(const Operation& operation) const {
  if (operation.kind != OperationKind::exchange)
    return operation.block_bytes() * (has_blocks(operation.kind) ? size() : 1);
  std::vector<int64_t> sizes;
  for (const Transfer& transfer : operation.transfers) sizes.push_back(transfer.size_bytes);
  return staging_of_exchange(sizes);
}

void StagedCommunicator::issue(const Operation& operation, device::Stream& stream) {
  last_stream_ = &stream;
  if (size() == 1) return;
  if (bytes_of(operation) > staging_.size_bytes()) {
    outgrown_.push_back(std::move(staging_));
    staging_ = device().allocate_host(bytes_of(operation));
  }
  Waiting waiting{.number = ++issued_, .operation = stage(operation, stream), .arrived = {}, .wide = {}};
  if (spare_.empty()) spare_.push_back(device().create_event());
  waiting.arrived = std::move(spare_.back());
  spare_.pop_back();
  stream.record(*waiting.arrived);
  stream.wait_word(*word_, static_cast<uint64_t>(waiting.number));
  unstage(operation, waiting.operation, stream);
  waiting_.push_back(std::move(waiting));
}

/// All operations share the staging: what a stream copies there comes after what it has copied away, since
/// StreamCommunicator orders operations of several streams.
Operation StagedCommunicator::stage(const Operation& operation, device::Stream& stream) {
  Operation staged = operation;
  if (operation.kind == OperationKind::exchange) {
    std::byte* at = staging_.data();
    for (Transfer& transfer : staged.transfers) {
      if (transfer.direction == Transfer::Direction::send)
        stream.copy(at, transfer.data, transfer.size_bytes);
      transfer.data = std::exchange(at, at + aligned(transfer.size_bytes));
    }
    return staged;
  }
  staged.data = staging_.data();
  // Of blocks that are gathered only the own one has anything to say.
  const bool own_block = operation.kind == OperationKind::all_gather;
  const int64_t first = own_block ? operation.block_bytes() * rank() : 0;
  const bool says = operation.kind != OperationKind::broadcast || operation.root == rank();
  if (says)
    stream.copy(staging_.data() + first, static_cast<std::byte*>(operation.data) + first,
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
  stream.copy(static_cast<std::byte*>(operation.data) + first, staging_.data() + first,
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
  spare_.push_back(std::move(waiting.arrived));
}

void StagedCommunicator::progress() {
  try {
    while (!waiting_.empty()) {
      Waiting& next = waiting_.front();
      if (!next.started && !next.arrived->ready()) return;
      if (!next.started) start(next);
      if (!host_->poll(next.ticket)) return;
      finish(next);
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
