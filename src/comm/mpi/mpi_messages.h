#pragma once

#include <mpi.h>

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "comm/communicator.h"

namespace lockstep::comm {

/// Of all messages: a communicator's are told apart by their order.
inline constexpr int kTag = 0;

/// How the ranks of an MPI communicator send each other messages.
struct MessageRules {
  int64_t largest_count = std::numeric_limits<int>::max();  ///< what one MPI call may count
  /// Messages to other hosts pass as several of at most so many bytes, which MPI sends at once: longer ones
  /// begin with a handshake, for which the receiver has to be at its communication, and which waits behind
  /// all that is on its way back. 0: as they are.
  int64_t piece_bytes = 0;
  std::vector<int> hosts = {};  ///< by rank, as numbers

  /// Of messages between two ranks, in both directions; 0: they are not cut.
  int64_t piece_bytes_between(int rank, int peer) const;
  /// Those of a communicator of some of the ranks.
  MessageRules of_part(MPI_Comm whole, MPI_Comm part) const;
};

/// COLLECTIVE: what MPI sends at once over TCP on all ranks, if it is an MPI that says so: for
/// MessageRules::piece_bytes. 0 if one of them has none. The same everywhere, whatever the hosts' settings
/// are, since both ends of a message cut it.
int64_t eager_bytes_of_tcp(MPI_Comm comm);
/// COLLECTIVE: by rank, a number that ranks of one host have in common.
std::vector<int> hosts_by_rank(MPI_Comm comm);

/// The MPI requests of one operation.
class MpiRequests {
 public:
  /// Of a collective, to be started.
  MPI_Request* add();
  /// Starts all messages of transfers. Both ends cut them alike. Receives go first, so that what arrives
  /// finds its buffer and needs no intermediate copy.
  void start(std::span<const Transfer> transfers, int rank, const MessageRules& rules, MPI_Comm comm,
             int tag);
  /// Makes progress. Asks for some rather than for all, so that an error shows even if another transfer
  /// never completes. Throws CommError, also if a message is of another size than was expected.
  bool finished();
  /// Of those started, the transfers that are not complete.
  std::vector<Transfer> unfinished() const;
  /// So that a late message does not land in memory that its owner may have given back.
  void cancel_receives() noexcept;

 private:
  struct Part {
    Transfer transfer{};
    int number = -1;  ///< of the transfer; -1: of a collective
    int64_t size_bytes = 0;
    bool receives() const { return number >= 0 && transfer.direction == Transfer::Direction::receive; }
  };
  void check_arrival(const Part& part, const MPI_Status& status) const;

  int rank_ = 0;
  std::vector<MPI_Request> requests_;
  std::vector<Part> parts_;  // of the same numbers
};

}  // namespace lockstep::comm
