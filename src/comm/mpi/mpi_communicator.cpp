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

}  // namespace

MpiCommunicator::MpiCommunicator(MPI_Comm comm, std::string name, MessageRules rules)
    : HostCommunicator(std::move(name), rank_in(comm), size_of_group(comm), std::make_shared<Death>()),
      comm_(comm),
      rules_(std::move(rules)) {
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
  return std::make_unique<MpiCommunicator>(part, fmt::format("{}/{}", name(), color),
                                           rules_.of_part(comm_, part));
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
  return std::make_unique<MpiCommunicator>(fewer, name(), rules_.of_part(comm_, fewer));
}

std::unique_ptr<MessagePort> MpiCommunicator::open_port() {
  check_alive();
  MPI_Comm own = MPI_COMM_NULL;
  try {
    check_mpi(MPI_Comm_dup(comm_, &own));
  } catch (const CommError& error) {
    fail(fmt::format("port: {}", error.what()));
  }
  return std::make_unique<MpiMessagePort>(own, name(), rules_);
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
      return start_all_reduce(pending);
    case OperationKind::exchange:
      return requests.start(operation.transfers, rank(), rules_, comm_, kTag);
    case OperationKind::all_gather: {
      const ByteType block(operation.count, rules_.largest_count);
      check_mpi(MPI_Iallgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, operation.data, block.count(),
                               block.type(), comm_, requests.add()));
      return;
    }
    case OperationKind::broadcast: {
      const ByteType message(operation.count, rules_.largest_count);
      check_mpi(
          MPI_Ibcast(operation.data, message.count(), message.type(), operation.root, comm_, requests.add()));
      return;
    }
    case OperationKind::barrier:
    case OperationKind::split:
      check_mpi(MPI_Ibarrier(comm_, requests.add()));
      return;
  }
}

void MpiCommunicator::start_all_reduce(Pending& pending) {
  const Operation& operation = pending.operation;
  const MPI_Datatype type = mpi_type(operation.dtype);
  const MPI_Op op = mpi_op(operation.reduce_op);
  for (int64_t first = 0; first < operation.count; first += rules_.largest_count) {
    void* data = static_cast<std::byte*>(operation.data) + first * size_of(operation.dtype);
    const int count = static_cast<int>(std::min(rules_.largest_count, operation.count - first));
    check_mpi(MPI_Iallreduce(MPI_IN_PLACE, data, count, type, op, comm_, pending.requests.add()));
  }
}

int64_t MpiCommunicator::outstanding() {
  check_alive();
  while (!pending_.empty()) {
    bool done = false;
    try {
      done = pending_.front().requests.finished();
    } catch (const CommError& error) {
      fail_pending(pending_.front().operation, error);
    }
    if (!done) break;
    pending_.pop_front();
  }
  return static_cast<int64_t>(pending_.size());
}

void MpiCommunicator::synchronize(device::Stream&, Deadline deadline) {
  while (!test()) {
    if (Clock::now() >= deadline) {
      Pending& head = pending_.front();
      const double waited_ms = milliseconds_between(head.started, Clock::now());
      std::vector<std::string> unfinished;  // nothing for collectives, of which MPI does not tell
      if (head.operation.kind == OperationKind::exchange)
        for (const Transfer& transfer : head.requests.unfinished()) unfinished.push_back(describe(transfer));
      const std::string message = expired_message(head.operation, waited_ms, unfinished);
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

void MpiCommunicator::cancel_receives() noexcept {
  for (auto& pending : pending_) pending.requests.cancel_receives();
}

}  // namespace lockstep::comm
