#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"

namespace lockstep::control {

/// Small messages between rank 0 and the other ranks, independent of programs' communication, for background
/// threads. Messages of one sender and topic arrive in the order in which they were sent. Rank 0 may send to
/// itself. Thread-safe.
class Mailbox {
 public:
  struct Message {
    int from = 0;
    std::string text;
  };

  virtual ~Mailbox() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// Never blocks for long. Messages to a lost rank are dropped, because the job is ending, or continues
  /// without it. REQUIRES: `to` or this rank is 0; at most 1 MiB.
  virtual void send(int to, std::string_view topic, std::string_view text) = 0;
  /// The oldest unreceived message of `topic`; waits for one until `deadline`.
  virtual std::optional<Message> receive(std::string_view topic, Deadline deadline) = 0;
};

/// The mailbox of a job's remaining ranks, numbered anew: rank i is `members[i]` of `mailbox`, which outlives
/// it. REQUIRES: members[0] is 0.
std::unique_ptr<Mailbox> make_mailbox_among(Mailbox& mailbox, std::vector<int> members);

/// Mailboxes of `size` ranks in one process: for one process alone, and for threads as ranks.
std::vector<std::unique_ptr<Mailbox>> make_local_mailboxes(int size);

}  // namespace lockstep::control
