#include "comm/nccl/nccl_communicator.h"

#include <fmt/format.h>
#include <sched.h>

#include <cstring>

#include "base/text.h"
#include "comm/gather_texts.h"
#include "comm/nccl/check.h"

namespace lockstep::comm {
namespace {

constexpr std::chrono::seconds kFinishTimeout{5};
/// Of the scratch: a word for barriers, then a byte to send, then a byte from each partner.
constexpr int64_t kSentByte = 64, kReceivedBytes = 128;

/// Of rings, and of halving and doubling distances.
ExchangePartners partners_at_powers_of_two(int rank, int size) {
  ExchangePartners partners;
  for (int distance = 1; distance < size; distance *= 2)
    for (const int step : {distance, size - distance}) {
      partners.send.push_back((rank + step) % size);
      partners.receive.push_back((rank + size - step) % size);
    }
  return partners;
}

ncclDataType_t nccl_type(DType dtype) {
  switch (dtype) {
    case DType::float32:
      return ncclFloat32;
    case DType::bfloat16:
      return ncclBfloat16;
    case DType::float16:
      return ncclFloat16;
    case DType::float64:
      return ncclFloat64;
    case DType::int32:
      return ncclInt32;
    case DType::uint8:
      break;
  }
  return ncclUint8;
}

ncclRedOp_t nccl_op(ReduceOp op) {
  return op == ReduceOp::sum ? ncclSum : op == ReduceOp::max ? ncclMax : ncclMin;
}

/// All transfers start together. A group that was begun is ended, whatever happened in it.
ncclResult_t start_exchange(ncclComm_t comm, const std::vector<Transfer>& transfers, cudaStream_t stream) {
  check(ncclGroupStart());
  ncclResult_t problem = ncclSuccess;
  for (const auto& transfer : transfers) {
    const auto bytes = static_cast<size_t>(transfer.size_bytes);
    const ncclResult_t status = transfer.direction == Transfer::Direction::send
                                    ? ncclSend(transfer.data, bytes, ncclUint8, transfer.peer, comm, stream)
                                    : ncclRecv(transfer.data, bytes, ncclUint8, transfer.peer, comm, stream);
    if (problem == ncclSuccess && status != ncclInProgress) problem = status;
  }
  const ncclResult_t ended = ncclGroupEnd();
  return problem == ncclSuccess ? ended : problem;
}

ncclResult_t start_operation(ncclComm_t comm, const Operation& operation, int rank, void* barrier_word,
                             cudaStream_t stream) {
  auto* data = static_cast<std::byte*>(operation.data);
  const auto count = static_cast<size_t>(operation.count);
  const ncclDataType_t type = nccl_type(operation.dtype);
  // NCCL's place for gathering in place: a rank's own block lies where all blocks do.
  std::byte* own = data + rank * operation.block_bytes();
  switch (operation.kind) {
    case OperationKind::all_reduce:
      return ncclAllReduce(data, data, count, type, nccl_op(operation.reduce_op), comm, stream);
    case OperationKind::all_gather:
      return ncclAllGather(own, data, count, ncclUint8, comm, stream);
    case OperationKind::broadcast:
      return ncclBroadcast(data, data, count, ncclUint8, operation.root, comm, stream);
    case OperationKind::exchange:
      return start_exchange(comm, operation.transfers, stream);
    case OperationKind::barrier:
    case OperationKind::split:
      return ncclAllReduce(barrier_word, barrier_word, 1, ncclInt32, ncclMax, comm, stream);
  }
  return ncclInvalidArgument;
}

/// Nothing moves and nobody waits: all ranks state the same count. (Transfers of nothing do wait for each
/// other.)
bool is_empty(const Operation& operation) {
  if (operation.kind == OperationKind::barrier || operation.kind == OperationKind::split) return false;
  return operation.kind == OperationKind::exchange ? operation.transfers.empty() : operation.count == 0;
}

}  // namespace

NcclCommunicator::NcclCommunicator(std::unique_ptr<Communicator> host, device::Device& device,
                                   const GpuCommunicatorOptions& options, std::string name)
    : StreamCommunicator(std::move(name), host->rank(), host->size(), std::make_shared<Death>(), device),
      host_(std::move(host)),
      options_(options) {
  if (size() == 1) return;
  std::string problem;
  try {
    connect();
  } catch (const Error& error) {
    problem = error.what();
  }
  // Others may wait for a rank that has failed until their time is up, before they come here.
  const auto problems = gather_texts(*host_, problem, 3 * options_.start_timeout);
  std::vector<std::string> failures;
  for (size_t r = 0; r < problems.size(); ++r)
    if (!problems[r].empty()) failures.push_back(fmt::format("rank {}: {}", r, problems[r]));
  if (!failures.empty())
    throw CommError(fmt::format("communicator '{}' of {} GPUs cannot be made: {}", this->name(), size(),
                                join(failures, "; ")));
}

NcclCommunicator::~NcclCommunicator() {
  if (handle_ == nullptr) return;
  if (!death().marked() && idle())
    handle_->finish(deadline_in(kFinishTimeout));
  else
    handle_->abort();
}

/// The id that rank 0 has made. Where it could not, the others' ids are empty, and they need not try to
/// connect.
ncclUniqueId NcclCommunicator::shared_id() {
  struct {
    ncclUniqueId id;
    char made = 0;
  } message{};
  const auto cpu = device::make_cpu_device();
  const auto stream = cpu->create_stream("id");
  std::string problem;
  if (rank() == 0) {
    try {
      check(ncclGetUniqueId(&message.id));
      message.made = 1;
    } catch (const CommError& error) {
      problem = error.what();
    }
  }
  host_->broadcast(&message, sizeof message, 0, *stream);
  host_->synchronize(*stream, deadline_in(options_.start_timeout));
  if (message.made == 0) throw CommError(problem.empty() ? "rank 0 has no id for the communicator" : problem);
  return message.id;
}

void NcclCommunicator::connect() {
  const Deadline deadline = deadline_in(options_.start_timeout);
  if (!options_.partners) options_.partners = partners_at_powers_of_two(rank(), size());
  scratch_ = device().allocate(kReceivedBytes + static_cast<int64_t>(options_.partners->receive.size()));
  handle_ = std::make_unique<NcclHandle>(shared_id(), size(), rank(), deadline,
                                         NcclHandle::Options{.only_exchanges = options_.only_exchanges});
  connect_partners(deadline);
}

/// NCCL connects two ranks when they first exchange something, and makes both wait for it on the host. These
/// have done so when a program begins.
void NcclCommunicator::connect_partners(Deadline deadline) {
  std::vector<Transfer> transfers;
  for (const int peer : options_.partners->send)
    transfers.push_back({Transfer::Direction::send, peer, scratch_.data() + kSentByte, 1});
  std::byte* received = scratch_.data() + kReceivedBytes;
  for (const int peer : options_.partners->receive)
    transfers.push_back({Transfer::Direction::receive, peer, received++, 1});
  if (transfers.empty()) return;
  const auto stream = device().create_stream("connect");
  const auto done = device().create_event();
  try {
    handle_->call(
        [&](ncclComm_t comm) {
          return start_exchange(comm, transfers, static_cast<cudaStream_t>(stream->native()));
        },
        deadline);
    stream->record(*done);
    while (!done->ready()) {
      handle_->check();
      if (Clock::now() >= deadline)
        throw CommError("the first exchange between neighbours did not complete", ExitCode::hang);
      sched_yield();
    }
  } catch (const Error&) {
    handle_->abort();  // what NCCL has under way uses the stream, which goes now
    throw;
  }
}

std::unique_ptr<Communicator> NcclCommunicator::split(int color, int key) {
  check_alive();
  try {
    auto host = host_->split(color, key);
    if (host == nullptr) return nullptr;
    GpuCommunicatorOptions options = options_;
    options.partners.reset();
    return std::make_unique<NcclCommunicator>(std::move(host), device(), options,
                                              fmt::format("{}/{}", name(), color));
  } catch (const CommError& error) {
    fail(fmt::format("split: {}", error.what()), error.code());
  }
}

void NcclCommunicator::check_health() {
  check_alive();
  if (handle_ == nullptr) return;
  try {
    handle_->check();
  } catch (const CommError& error) {
    fail(error.what(), error.code());
  }
}

void NcclCommunicator::issue(const Operation& operation, device::Stream& stream) {
  if (handle_ == nullptr || is_empty(operation)) return;
  try {
    handle_->call(
        [&](ncclComm_t comm) {
          return start_operation(comm, operation, rank(), scratch_.data(),
                                 static_cast<cudaStream_t>(stream.native()));
        },
        deadline_in(options_.start_timeout));
  } catch (const CommError& error) {
    fail(fmt::format("{}: {}", describe(operation), error.what()), error.code());
  }
}

void NcclCommunicator::die(std::string_view reason, ExitCode code) noexcept {
  StreamCommunicator::die(reason, code);  // first: what an abort makes NCCL say is not the reason
  if (handle_ != nullptr) handle_->begin_abort();
}

void NcclCommunicator::settle() noexcept {
  if (handle_ != nullptr) handle_->abort();
}

}  // namespace lockstep::comm
