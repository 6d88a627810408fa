#pragma once

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "comm/checked_communicator.h"
#include "comm/message_port.h"

namespace lockstep::comm {

/// Where threads as ranks leave messages for each other. Nothing is buffered: data moves when both sides have
/// started, under the lock, on the thread that came last. Thread-safe.
class PostOffice {
 public:
  PostOffice(std::string name, int ranks);

  int size() const { return static_cast<int>(tickets_.size()); }
  Ticket start(int rank, const Transfer& transfer);
  bool poll(int rank, Ticket& ticket);
  void die(std::string_view reason, ExitCode code) noexcept;
  /// `rank` goes. Its buffers may, too: if some are still in use, the office dies.
  void leave(int rank) noexcept;

 private:
  struct Waiting {
    Transfer transfer{};
    bool complete = true;
  };
  struct Place {
    int rank;
    Ticket ticket;
  };
  struct Box {
    std::deque<Place> sends, receives;
  };

  void check_alive(int rank) const;

  std::string name_;
  Death death_;
  std::mutex mutex_;  // guards all below and all buffers of transfers that are not complete
  std::vector<Tickets<Waiting>> tickets_;     // by rank
  std::map<std::pair<int, int>, Box> boxes_;  // by sender and receiver
};

std::unique_ptr<MessagePort> make_local_port(std::shared_ptr<PostOffice> office, int rank);

}  // namespace lockstep::comm
