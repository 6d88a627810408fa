#include "comm/mpi/mpi_message_port.h"

#include <fmt/format.h>

#include "comm/mpi/check.h"

namespace lockstep::comm {
namespace {

bool receives(const Transfer& transfer) { return transfer.direction == Transfer::Direction::receive; }

}  // namespace

MpiMessagePort::MpiMessagePort(MPI_Comm comm, std::string name, MessageRules rules)
    : comm_(comm), name_(std::move(name)), rules_(std::move(rules)) {
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
    if (pending.requests.unfinished().empty()) continue;
    outstanding = true;
    pending.requests.cancel_receives();
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
    pending.requests.start({&transfer, 1}, rank_, rules_, comm_, kTag);
  } catch (const CommError& error) {
    death_.mark(error.what(), error.code());
    throw CommError(fmt::format("{}: {}: {}", who(), describe(transfer), error.what()), error.code());
  }
  (receives(transfer) ? transferred_.received : transferred_.sent) += transfer.size_bytes;
  return pending_.add(pending);
}

bool MpiMessagePort::poll(Ticket& ticket) {
  if (ticket == Ticket{}) return true;
  death_.check(who());
  Pending& pending = pending_[ticket];
  try {
    if (!pending.requests.finished()) return false;
  } catch (const CommError& error) {
    const std::string message = fmt::format("{}: {}", describe(pending.transfer), error.what());
    pending.requests.cancel_receives();
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

}  // namespace lockstep::comm
