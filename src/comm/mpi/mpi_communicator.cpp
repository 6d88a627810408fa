#include "comm/mpi/mpi_communicator.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>

#include "base/index.h"
#include "comm/mpi/byte_type.h"
#include "comm/mpi/check.h"
#include "comm/mpi/mpi_message_port.h"

namespace lockstep::comm {
namespace {

// One tag is enough: MPI matches the messages of a pair in the order of posting.
constexpr int kTag = 0;

int rank_in(MPI_Comm comm) {
  int rank = 0;
  check_mpi(MPI_Comm_rank(comm, &rank));
  return rank;
}

int size_of_group(MPI_Comm comm) {
  int size = 0;
  check_mpi(MPI_Comm_size(comm, &size));
  return size;
}

MPI_Datatype mpi_type(DType dtype) {
  switch (dtype) {
    case DType::float32:
      return MPI_FLOAT;
    case DType::float64:
      return MPI_DOUBLE;
    case DType::int32:
      return MPI_INT32_T;
    default:
      return MPI_BYTE;
  }
}

MPI_Op mpi_op(ReduceOp op) { return op == ReduceOp::sum ? MPI_SUM : op == ReduceOp::max ? MPI_MAX : MPI_MIN; }

bool receives(const Transfer& transfer) { return transfer.direction == Transfer::Direction::receive; }

}  // namespace

MpiCommunicator::MpiCommunicator(MPI_Comm comm, std::string name, int64_t largest_count)
    : HostCommunicator(std::move(name), rank_in(comm), size_of_group(comm), std::make_shared<Death>()),
      comm_(comm),
      largest_count_(largest_count) {
  check_mpi(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN));
}

MpiCommunicator::~MpiCommunicator() {
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (finalized != 0) return;
  // Freeing is local work in every common MPI. With operations outstanding it would not be: those handles
  // stay.
  if (pending_.empty() && !death().marked())
    MPI_Comm_free(&comm_);
  else
    cancel_receives();
}

std::unique_ptr<Communicator> MpiCommunicator::split(int color, int key) {
  check_alive();
  MPI_Comm part = MPI_COMM_NULL;
  try {
    check_mpi(MPI_Comm_split(comm_, color < 0 ? MPI_UNDEFINED : color, key, &part));
  } catch (const CommError& error) {
    fail(fmt::format("split: {}", error.what()));
  }
  if (part == MPI_COMM_NULL) return nullptr;
  return std::make_unique<MpiCommunicator>(part, fmt::format("{}/{}", name(), color), largest_count_);
}

std::unique_ptr<Communicator> MpiCommunicator::regroup(std::span<const int> members) {
  check_alive();
  constexpr int kRegroupTag = 1;
  MPI_Group all = MPI_GROUP_NULL, left = MPI_GROUP_NULL;
  MPI_Comm fewer = MPI_COMM_NULL;
  try {
    check_mpi(MPI_Comm_group(comm_, &all));
    check_mpi(MPI_Group_incl(all, static_cast<int>(members.size()), members.data(), &left));
    check_mpi(MPI_Comm_create_group(comm_, left, kRegroupTag, &fewer));
    check_mpi(MPI_Group_free(&left));
    check_mpi(MPI_Group_free(&all));
  } catch (const CommError& error) {
    fail(fmt::format("regroup: {}", error.what()));
  }
  return std::make_unique<MpiCommunicator>(fewer, name(), largest_count_);
}

std::unique_ptr<MessagePort> MpiCommunicator::open_port() {
  check_alive();
  MPI_Comm own = MPI_COMM_NULL;
  try {
    check_mpi(MPI_Comm_dup(comm_, &own));
  } catch (const CommError& error) {
    fail(fmt::format("port: {}", error.what()));
  }
  return std::make_unique<MpiMessagePort>(own, name(), largest_count_);
}

void MpiCommunicator::start(Operation operation) {
  // In the queue before the first MPI call, so that an error in the second finds the receives of the first.
  pending_.push_back({std::move(operation), Clock::now(), {}});
  try {
    start_requests(pending_.back());
  } catch (const CommError& error) {
    fail_pending(pending_.back().operation, error);
  }
}

void MpiCommunicator::start_requests(Pending& pending) {
  const Operation& operation = pending.operation;
  auto& requests = pending.requests;
  switch (operation.kind) {
    case OperationKind::all_reduce:
    case OperationKind::reduce_scatter:
      return start_reduction(pending);
    case OperationKind::exchange:
      return start_exchange(pending);
    case OperationKind::all_gather: {
      const ByteType block(operation.count, largest_count_);
      check_mpi(MPI_Iallgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, operation.data, block.count(),
                               block.type(), comm_, &requests.emplace_back(MPI_REQUEST_NULL)));
      return;
    }
    case OperationKind::broadcast: {
      const ByteType message(operation.count, largest_count_);
      check_mpi(MPI_Ibcast(operation.data, message.count(), message.type(), operation.root, comm_,
                           &requests.emplace_back(MPI_REQUEST_NULL)));
      return;
    }
    case OperationKind::barrier:
    case OperationKind::split:
      check_mpi(MPI_Ibarrier(comm_, &requests.emplace_back(MPI_REQUEST_NULL)));
      return;
  }
}

/// reduce_scatter is one reduction for each block, to its owner: MPI_Ireduce_scatter_block would leave the
/// result in the first block, and Open MPI's reduces everything to one rank before it scatters.
void MpiCommunicator::start_reduction(Pending& pending) {
  const Operation& operation = pending.operation;
  const MPI_Datatype type = mpi_type(operation.dtype);
  const MPI_Op op = mpi_op(operation.reduce_op);
  const int blocks = operation.kind == OperationKind::reduce_scatter ? size() : 1;
  auto* block = static_cast<std::byte*>(operation.data);
  for (int owner = 0; owner < blocks; ++owner, block += operation.block_bytes()) {
    for (int64_t first = 0; first < operation.count; first += largest_count_) {
      void* data = block + first * size_of(operation.dtype);
      const int count = static_cast<int>(std::min(largest_count_, operation.count - first));
      MPI_Request& request = pending.requests.emplace_back(MPI_REQUEST_NULL);
      if (operation.kind == OperationKind::all_reduce)
        check_mpi(MPI_Iallreduce(MPI_IN_PLACE, data, count, type, op, comm_, &request));
      else if (owner == rank())
        check_mpi(MPI_Ireduce(MPI_IN_PLACE, data, count, type, op, owner, comm_, &request));
      else
        check_mpi(MPI_Ireduce(data, nullptr, count, type, op, owner, comm_, &request));
    }
  }
}

void MpiCommunicator::start_exchange(Pending& pending) {
  auto& transfers = pending.operation.transfers;
  pending.requests.assign(transfers.size(), MPI_REQUEST_NULL);
  // Receives first, so that what arrives finds its buffer and needs no intermediate copy.
  for (const bool receiving : {true, false})
    for (size_t i = 0; i < transfers.size(); ++i) {
      const Transfer& transfer = transfers[i];
      if (receives(transfer) != receiving) continue;
      const ByteType message(transfer.size_bytes, largest_count_);
      if (receiving)
        check_mpi(MPI_Irecv(transfer.data, message.count(), message.type(), transfer.peer, kTag, comm_,
                            &pending.requests[i]));
      else
        check_mpi(MPI_Isend(transfer.data, message.count(), message.type(), transfer.peer, kTag, comm_,
                            &pending.requests[i]));
    }
}

int64_t MpiCommunicator::outstanding() {
  check_alive();
  while (!pending_.empty()) {
    bool done = false;
    try {
      done = finished(pending_.front());
    } catch (const CommError& error) {
      fail_pending(pending_.front().operation, error);
    }
    if (!done) break;
    pending_.pop_front();
  }
  return static_cast<int64_t>(pending_.size());
}

/// Asks for some rather than for all, so that an error shows even where another transfer never completes.
bool MpiCommunicator::finished(Pending& pending) {
  auto& requests = pending.requests;
  indices_.resize(requests.size());
  statuses_.resize(requests.size());
  int completed = 0;
  const int status = MPI_Testsome(static_cast<int>(requests.size()), requests.data(), &completed,
                                  indices_.data(), statuses_.data());
  if (completed == MPI_UNDEFINED) return true;
  for (int i = 0; i < completed; ++i) {
    const auto index = static_cast<size_t>(nth(indices_, i));
    MPI_Status& arrived = nth(statuses_, i);
    if (status != MPI_ERR_IN_STATUS) arrived.MPI_ERROR = MPI_SUCCESS;  // not set by MPI where all went well
    check_arrival(pending.operation, index, arrived);
  }
  if (status != MPI_ERR_IN_STATUS) check_mpi(status);
  return std::all_of(requests.begin(), requests.end(), [](MPI_Request r) { return r == MPI_REQUEST_NULL; });
}

void MpiCommunicator::check_arrival(const Operation& operation, size_t index,
                                    const MPI_Status& status) const {
  int error_class = MPI_SUCCESS;
  MPI_Error_class(status.MPI_ERROR, &error_class);
  if (operation.kind != OperationKind::exchange || !receives(operation.transfers[index]))
    return check_mpi(status.MPI_ERROR);
  const Transfer& transfer = operation.transfers[index];
  MPI_Count bytes = transfer.size_bytes;
  if (error_class == MPI_SUCCESS) {
    check_mpi(MPI_Get_elements_x(&status, MPI_BYTE, &bytes));
    if (bytes == transfer.size_bytes) return;
  } else if (error_class != MPI_ERR_TRUNCATE) {
    check_mpi(status.MPI_ERROR);
  }
  throw CommError(
      fmt::format("rank {} sends {} bytes to rank {}, which expects {} bytes", transfer.peer,
                  error_class == MPI_SUCCESS ? std::to_string(bytes) : "more", rank(), transfer.size_bytes),
      ExitCode::internal);
}

void MpiCommunicator::synchronize(device::Stream&, Deadline deadline) {
  while (!test()) {
    if (Clock::now() >= deadline) {
      Pending& head = pending_.front();
      const double waited_ms = milliseconds_between(head.started, Clock::now());
      const std::string message = expired_message(head.operation, waited_ms, unfinished(head));
      cancel_receives();
      fail(message, ExitCode::hang);
    }
    // Ranks may share a core: the peer that is waited for may need it.
    sched_yield();
  }
}

void MpiCommunicator::fail_pending(const Operation& operation, const CommError& error) {
  const std::string message = fmt::format("{}: {}", describe(operation), error.what());
  cancel_receives();
  fail(message, error.code());
}

/// The transfers of an exchange that are not complete; nothing for collectives, of which MPI does not tell.
std::vector<std::string> MpiCommunicator::unfinished(Pending& pending) {
  std::vector<std::string> names;
  if (pending.operation.kind != OperationKind::exchange) return names;
  for (size_t i = 0; i < pending.requests.size(); ++i)
    if (pending.requests[i] != MPI_REQUEST_NULL) names.push_back(describe(pending.operation.transfers[i]));
  return names;
}

/// So that a late message does not land in memory that its owner may have given back.
void MpiCommunicator::cancel_receives() noexcept {
  for (auto& pending : pending_) {
    if (pending.operation.kind != OperationKind::exchange) continue;
    for (size_t i = 0; i < pending.requests.size(); ++i) {
      if (pending.requests[i] == MPI_REQUEST_NULL || !receives(pending.operation.transfers[i])) continue;
      MPI_Cancel(&pending.requests[i]);
      MPI_Request_free(&pending.requests[i]);
    }
  }
}

}  // namespace lockstep::comm
