#pragma once

#include <deque>
#include <memory>

#include "comm/host_communicator.h"
#include "comm/shared/collective.h"
#include "comm/shared/exchange.h"
#include "comm/shared/segment.h"

namespace lockstep::comm {

/// Ranks on one host, through shared memory, with one operation at a time, in the order in which they were
/// started. The calling thread does all work, within start, poll() and synchronize(). A call of poll() moves
/// about half a MiB at most. The memory belongs to the group (see SharedLayout): 1 MiB per rank, and up to 1
/// MiB more for each rank that sends in exchanges, for any size of messages.
class SharedCommunicator : public HostCommunicator {
 public:
  struct Seat {
    Communicator& group;
    std::unique_ptr<Communicator> owned_group;  ///< `group`, if this communicator owns it
    std::string name;
    SharedMemoryOptions options;
  };
  explicit SharedCommunicator(Seat seat);  ///< COLLECTIVE over the group
  ~SharedCommunicator() override;

  std::string_view backend() const override { return "shared memory"; }
  bool sums_along_tree() const override { return true; }
  std::unique_ptr<Communicator> split(int color, int key) override;
  void synchronize(device::Stream&, Deadline deadline) override;

 protected:
  void start(Operation operation) override;
  int64_t outstanding() override;
  void die(std::string_view reason, ExitCode code) noexcept override;

 private:
  struct Pending {
    Operation operation;
    Clock::time_point started;
  };
  enum class Progress { complete, moved, waiting };

  SharedCommunicator(Seat seat, const SharedLayout& layout);
  Progress progress();
  bool finish_head(int64_t& budget);
  void wait(Deadline deadline);
  [[noreturn]] void expire();
  void notice_death() noexcept;

  Seat seat_;
  std::shared_ptr<SharedSegment> segment_;
  SharedArea area_;
  Collective collective_;
  Exchange exchange_;
  std::deque<Pending> pending_;  // the head is under way if begun_
  bool begun_ = false;
  const int polls_before_yield_;
};

}  // namespace lockstep::comm
