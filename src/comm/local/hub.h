#pragma once

#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "base/index.h"
#include "comm/host_communicator.h"
#include "comm/local/post_office.h"

namespace lockstep::comm {

/// Where the ranks of one local communicator meet. Stricter than MPI, as NCCL is: nothing is buffered, and a
/// rank's operations run one at a time in the order in which they were started, so that programs which rely
/// on eager sends or on concurrent operations hang here, too. Data moves directly between the ranks' buffers,
/// under the lock, on the thread that came last.
///
/// Thread-safety: everything may be called from any thread.
class Hub {
 public:
  Hub(std::string name, int size);

  const std::string& name() const { return name_; }
  int size() const { return static_cast<int>(queues_.size()); }
  const std::shared_ptr<Death>& death() const { return death_; }
  /// One for all ranks, made when the first asks.
  std::shared_ptr<PostOffice> post_office();

  void start(int rank, Operation operation);
  int64_t outstanding(int rank) const;  ///< operations of `rank` that are not complete
  /// True once `rank` has nothing outstanding; false if the communicator died before, as it does at
  /// `deadline`.
  bool wait(int rank, Deadline deadline);
  void die(std::string_view reason, ExitCode code) noexcept;  ///< for all ranks, which are woken
  /// `rank` goes. Its buffers may, too: if some are still in use, the communicator dies.
  void leave(int rank) noexcept;

  struct Seat {
    bool seated = false;
    std::shared_ptr<Hub> hub;  ///< null for a negative color
    int rank = -1;
  };
  /// Of these ranks, one for all of them, made when the first asks.
  std::shared_ptr<Hub> regroup(std::span<const int> members);
  /// Blocks until all ranks have called it; false if the communicator died before.
  bool split(int rank, int color, int key, Seat& seat);

 private:
  struct Entry {
    Operation operation;
    Clock::time_point started;
    std::vector<bool> matched;  // transfers that are complete
    int color = 0, key = 0;     // split only
    Seat* seat = nullptr;       // split only: on the stack of the rank that waits
  };

  void push(int rank, Entry entry);
  void expire(int rank);
  void progress();
  bool run_collective();
  bool match_transfers(int source);
  bool match_transfer(int source, size_t index);
  void check_collective();
  void move_data();
  void make_seats();
  void kill(std::string_view reason, ExitCode code) noexcept;
  std::vector<std::string> pending_of(int rank) const;
  bool empty(int rank) const { return nth(queues_, rank).empty(); }
  Entry* head(int rank);
  const Entry* head(int rank) const { return const_cast<Hub*>(this)->head(rank); }

  std::string name_;
  std::shared_ptr<Death> death_;
  mutable std::mutex mutex_;  // guards queues_ and all buffers of operations in them
  std::condition_variable changed_;
  std::vector<std::deque<Entry>> queues_;
  std::shared_ptr<PostOffice> post_office_;
  struct Forming {
    std::shared_ptr<Hub> hub;
    size_t joined = 0;
  };
  std::map<std::vector<int>, Forming> forming_;  // by members: not all of them have asked yet
};

}  // namespace lockstep::comm
