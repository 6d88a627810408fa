#include "comm/mpi/mpi_message_port.h"

#include <fmt/format.h>

#include "comm/mpi/byte_type.h"
#include "comm/mpi/check.h"

namespace lockstep::comm {
namespace {

constexpr int kTag = 0;

bool receives(const Transfer& transfer) { return transfer.direction == Transfer::Direction::receive; }

}  // namespace

MpiMessagePort::MpiMessagePort(MPI_Comm comm, std::string name, int64_t largest_count)
    : comm_(comm), name_(std::move(name)), largest_count_(largest_count) {
  check_mpi(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN));
  check_mpi(MPI_Comm_rank(comm_, &rank_));
  check_mpi(MPI_Comm_size(comm_, &size_));
}

MpiMessagePort::~MpiMessagePort() {
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (finalized != 0) return;
  bool outstanding = false;
  for (Pending& pending : pending_) {
    if (pending.request == MPI_REQUEST_NULL) continue;
    outstanding = true;
    // A late message shall not land in memory that its owner may have given back.
    if (!receives(pending.transfer)) continue;
    MPI_Cancel(&pending.request);
    MPI_Request_free(&pending.request);
  }
  if (!outstanding && !death_.marked()) MPI_Comm_free(&comm_);
}

std::string MpiMessagePort::who() const {
  return fmt::format("rank {} of {} at port '{}' (mpi)", rank_, size_, name_);
}

Ticket MpiMessagePort::start(const Transfer& transfer) {
  death_.check(who());
  Pending pending{.transfer = transfer};
  try {
    start_request(pending);
  } catch (const CommError& error) {
    death_.mark(error.what(), error.code());
    throw CommError(fmt::format("{}: {}: {}", who(), describe(transfer), error.what()), error.code());
  }
  (receives(transfer) ? transferred_.received : transferred_.sent) += transfer.size_bytes;
  return pending_.add(pending);
}

void MpiMessagePort::start_request(Pending& pending) const {
  const Transfer& transfer = pending.transfer;
  const ByteType message(transfer.size_bytes, largest_count_);
  if (receives(transfer))
    check_mpi(MPI_Irecv(transfer.data, message.count(), message.type(), transfer.peer, kTag, comm_,
                        &pending.request));
  else
    check_mpi(MPI_Isend(transfer.data, message.count(), message.type(), transfer.peer, kTag, comm_,
                        &pending.request));
}

bool MpiMessagePort::poll(Ticket& ticket) {
  if (ticket == Ticket{}) return true;
  death_.check(who());
  Pending& pending = pending_[ticket];
  try {
    if (!is_complete(pending)) return false;
  } catch (const CommError& error) {
    const std::string message = fmt::format("{}: {}", describe(pending.transfer), error.what());
    pending_.remove(ticket);
    death_.mark(message, error.code());
    throw CommError(fmt::format("{}: {}", who(), message), error.code());
  }
  pending_.remove(ticket);
  return true;
}

void MpiMessagePort::progress() {
  int found = 0;
  check_mpi(MPI_Iprobe(MPI_ANY_SOURCE, kTag, comm_, &found, MPI_STATUS_IGNORE));
}

bool MpiMessagePort::is_complete(Pending& pending) const {
  int done = 0;
  MPI_Status status;
  const int result = MPI_Test(&pending.request, &done, &status);
  int error_class = MPI_SUCCESS;
  MPI_Error_class(result, &error_class);
  const Transfer& transfer = pending.transfer;
  MPI_Count bytes = transfer.size_bytes;
  if (error_class != MPI_ERR_TRUNCATE) {
    check_mpi(result);
    if (done == 0) return false;
    if (!receives(transfer)) return true;
    check_mpi(MPI_Get_elements_x(&status, MPI_BYTE, &bytes));
    if (bytes == transfer.size_bytes) return true;
  }
  throw CommError(
      fmt::format("rank {} sends {} bytes to rank {}, which expects {} bytes", transfer.peer,
                  error_class == MPI_SUCCESS ? std::to_string(bytes) : "more", rank_, transfer.size_bytes),
      ExitCode::internal);
}

}  // namespace lockstep::comm
