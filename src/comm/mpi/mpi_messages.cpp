#include "comm/mpi/mpi_messages.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "base/index.h"
#include "comm/mpi/byte_type.h"
#include "comm/mpi/check.h"
#include "lockstep/error.h"

namespace lockstep::comm {
namespace {

/// Beside the data of a message, of which Open MPI says nothing.
constexpr int64_t kHeaderBytes = 1024;
/// Shorter pieces would be more work than a handshake.
constexpr int64_t kLeastPieceBytes = 16384;

/// A whole number that the MPI library lets tools read; -1 if it has none of that name.
int64_t library_variable(const char* name) {
  int level = 0, index = 0, count = 0;
  if (MPI_T_init_thread(MPI_THREAD_MULTIPLE, &level) != MPI_SUCCESS) return -1;
  int64_t value = -1;
  MPI_T_cvar_handle handle = MPI_T_CVAR_HANDLE_NULL;
  if (MPI_T_cvar_get_index(name, &index) == MPI_SUCCESS &&
      MPI_T_cvar_handle_alloc(index, nullptr, &handle, &count) == MPI_SUCCESS) {
    uint64_t read = 0;  // large enough for each type of number that Open MPI has, in the order of x86 and ARM
    if (count == 1 && MPI_T_cvar_read(handle, &read) == MPI_SUCCESS) value = static_cast<int64_t>(read);
    MPI_T_cvar_handle_free(&handle);
  }
  MPI_T_finalize();
  return value;
}

}  // namespace

int64_t MessageRules::piece_bytes_between(int rank, int peer) const {
  return hosts.empty() || nth(hosts, rank) == nth(hosts, peer) ? 0 : piece_bytes;
}

MessageRules MessageRules::of_part(MPI_Comm whole, MPI_Comm part) const {
  MessageRules rules = *this;
  if (hosts.empty()) return rules;
  MPI_Group all = MPI_GROUP_NULL, some = MPI_GROUP_NULL;
  check_mpi(MPI_Comm_group(whole, &all));
  check_mpi(MPI_Comm_group(part, &some));
  int size = 0;
  check_mpi(MPI_Group_size(some, &size));
  std::vector<int> ranks(static_cast<size_t>(size)), ranks_in_whole(ranks.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  check_mpi(MPI_Group_translate_ranks(some, size, ranks.data(), all, ranks_in_whole.data()));
  check_mpi(MPI_Group_free(&some));
  check_mpi(MPI_Group_free(&all));
  rules.hosts.clear();
  for (const int rank : ranks_in_whole) rules.hosts.push_back(nth(hosts, rank));
  return rules;
}

int64_t eager_bytes_of_tcp(MPI_Comm comm) {
  int64_t piece_bytes = library_variable("btl_tcp_eager_limit") - kHeaderBytes;
  check_mpi(MPI_Allreduce(MPI_IN_PLACE, &piece_bytes, 1, MPI_INT64_T, MPI_MIN, comm));
  return piece_bytes < kLeastPieceBytes ? 0 : piece_bytes;
}

std::vector<int> hosts_by_rank(MPI_Comm comm) {
  MPI_Comm host = MPI_COMM_NULL;
  int rank = 0, size = 0;
  check_mpi(MPI_Comm_rank(comm, &rank));
  check_mpi(MPI_Comm_size(comm, &size));
  check_mpi(MPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &host));
  int first = rank;
  check_mpi(MPI_Bcast(&first, 1, MPI_INT, 0, host));
  check_mpi(MPI_Comm_free(&host));
  std::vector<int> hosts(static_cast<size_t>(size));
  check_mpi(MPI_Allgather(&first, 1, MPI_INT, hosts.data(), 1, MPI_INT, comm));
  return hosts;
}

MPI_Request* MpiRequests::add() {
  parts_.emplace_back();
  return &requests_.emplace_back(MPI_REQUEST_NULL);
}

void MpiRequests::start(std::span<const Transfer> transfers, int rank, const MessageRules& rules,
                        MPI_Comm comm, int tag) {
  rank_ = rank;
  for (const bool receiving : {true, false})
    for (size_t number = 0; number < transfers.size(); ++number) {
      const Transfer& transfer = transfers[number];
      if ((transfer.direction == Transfer::Direction::receive) != receiving) continue;
      const int64_t cut = rules.piece_bytes_between(rank, transfer.peer);
      const int64_t most = cut == 0 ? std::max<int64_t>(transfer.size_bytes, 1) : cut;
      int64_t offset = 0;
      do {
        const int64_t size_bytes = std::min(most, transfer.size_bytes - offset);
        const ByteType message(size_bytes, rules.largest_count);
        std::byte* data = static_cast<std::byte*>(transfer.data) + offset;
        MPI_Request* request = add();
        parts_.back() = {transfer, static_cast<int>(number), size_bytes};
        if (receiving)
          check_mpi(MPI_Irecv(data, message.count(), message.type(), transfer.peer, tag, comm, request));
        else
          check_mpi(MPI_Isend(data, message.count(), message.type(), transfer.peer, tag, comm, request));
        offset += size_bytes;
      } while (offset < transfer.size_bytes);
    }
}

bool MpiRequests::finished() {
  thread_local std::vector<int> indices;
  thread_local std::vector<MPI_Status> statuses;
  indices.resize(std::max(indices.size(), requests_.size()));
  statuses.resize(indices.size());
  int completed = 0;
  const int status = MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &completed,
                                  indices.data(), statuses.data());
  if (completed == MPI_UNDEFINED) return true;
  for (int i = 0; i < completed; ++i) {
    MPI_Status& arrived = nth(statuses, i);
    if (status != MPI_ERR_IN_STATUS) arrived.MPI_ERROR = MPI_SUCCESS;  // not set by MPI if all went well
    check_arrival(nth(parts_, nth(indices, i)), arrived);
  }
  if (status != MPI_ERR_IN_STATUS) check_mpi(status);
  return std::ranges::all_of(requests_, [](MPI_Request request) { return request == MPI_REQUEST_NULL; });
}

void MpiRequests::check_arrival(const Part& part, const MPI_Status& status) const {
  int error_class = MPI_SUCCESS;
  MPI_Error_class(status.MPI_ERROR, &error_class);
  if (!part.receives()) return check_mpi(status.MPI_ERROR);
  MPI_Count bytes = part.size_bytes;
  if (error_class == MPI_SUCCESS) {
    check_mpi(MPI_Get_elements_x(&status, MPI_BYTE, &bytes));
    if (bytes == part.size_bytes) return;
  } else if (error_class != MPI_ERR_TRUNCATE) {
    check_mpi(status.MPI_ERROR);
  }
  const std::string piece = part.size_bytes == part.transfer.size_bytes
                                ? ""
                                : fmt::format(", as part of {}", part.transfer.size_bytes);
  throw CommError(
      fmt::format("rank {} sends {} bytes to rank {}, which expects {} bytes{}", part.transfer.peer,
                  error_class == MPI_SUCCESS ? std::to_string(bytes) : "more", rank_, part.size_bytes, piece),
      ExitCode::internal);
}

std::vector<Transfer> MpiRequests::unfinished() const {
  std::vector<Transfer> transfers;
  int last = -1;
  for (size_t i = 0; i < requests_.size(); ++i) {
    if (requests_[i] == MPI_REQUEST_NULL || parts_[i].number == last) continue;
    last = parts_[i].number;
    transfers.push_back(parts_[i].transfer);
  }
  return transfers;
}

void MpiRequests::cancel_receives() noexcept {
  for (size_t i = 0; i < requests_.size(); ++i) {
    if (requests_[i] == MPI_REQUEST_NULL || !parts_[i].receives()) continue;
    MPI_Cancel(&requests_[i]);
    MPI_Request_free(&requests_[i]);
  }
}

}  // namespace lockstep::comm
