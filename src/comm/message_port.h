#pragma once

#include <memory>
#include <vector>

#include "base/index.h"
#include "comm/communicator.h"

namespace lockstep::comm {

inline Transfer send_to(int peer, const void* data, int64_t size_bytes) {
  return {Transfer::Direction::send, peer, const_cast<void*>(data), size_bytes};
}
inline Transfer receive_from(int peer, void* data, int64_t size_bytes) {
  return {Transfer::Direction::receive, peer, data, size_bytes};
}

/// Messages between pairs of ranks that complete independently, for ranks that react to whichever message
/// comes first. Only transfers of the same pair and direction match, in the order in which they were started.
/// A rank may send to itself. Buffers belong to a transfer until it is complete.
///
/// Made by Communicator::open_port(). Thread-safety: one thread at a time, except abort().
/// Errors: CommError, after which the port is dead and only abort() and destruction are allowed.
class MessagePort {
 public:
  virtual ~MessagePort() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// Returns at once. A receive states as many bytes as are sent; otherwise a CommError, if the backend can
  /// detect it.
  virtual Ticket start(const Transfer& transfer) = 0;
  /// Makes progress without blocking. True when the transfer is complete; the ticket is then none, which
  /// counts as complete.
  virtual bool poll(Ticket& transfer) = 0;
  /// Makes progress without blocking with this rank's sends, also with those that are complete here.
  virtual void progress() {}
  /// Bytes of all transfers that were started so far.
  virtual TransferredBytes transferred() const = 0;
  /// Marks the port dead; if ranks are threads, on all of them. Pending and later calls throw CommError with
  /// `reason`.
  virtual void abort(std::string_view reason) noexcept = 0;
};

/// Tickets of transfers that end in any order: slots that are reused. Numbers begin with 1.
template <class Entry>
class Tickets {
 public:
  Ticket add(Entry entry) {
    if (free_.empty()) {
      entries_.push_back(std::move(entry));
      return {static_cast<int64_t>(entries_.size())};
    }
    const int64_t number = free_.back();
    free_.pop_back();
    (*this)[{number}] = std::move(entry);
    return {number};
  }
  Entry& operator[](Ticket ticket) { return nth(entries_, ticket.number - 1); }
  void remove(Ticket& ticket) {
    (*this)[ticket] = Entry{};
    free_.push_back(ticket.number);
    ticket = {};
  }
  auto begin() { return entries_.begin(); }
  auto end() { return entries_.end(); }

 private:
  std::vector<Entry> entries_;
  std::vector<int64_t> free_;
};

}  // namespace lockstep::comm
