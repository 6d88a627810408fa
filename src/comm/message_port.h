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

/// Messages between pairs of ranks, each of which is complete by itself: for ranks that react to whoever
/// comes first. Transfers of one pair and direction match in the order in which they were started, and only
/// those. A rank may send to itself. Buffers belong to a transfer until it is complete.
///
/// Made by Communicator::open_port(). Thread-safety: one thread at a time, except abort().
/// Errors: CommError, after which the port is dead and only abort() and destruction are allowed.
class MessagePort {
 public:
  virtual ~MessagePort() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// Returns at once. A receive states as many bytes as are sent, or a CommError results where the
  /// backend can tell.
  virtual Ticket start(const Transfer& transfer) = 0;
  /// Makes progress without blocking; true when the transfer is complete, whose ticket is then none. None is
  /// complete.
  virtual bool poll(Ticket& transfer) = 0;
  /// Without blocking: what this rank has sent goes on its way, also where it is complete here.
  virtual void progress() {}
  /// By all transfers that were started so far.
  virtual TransferredBytes transferred() const = 0;
  /// Marks the port dead, where threads are ranks on all of them: pending and later calls throw CommError
  /// with `reason`.
  virtual void abort(std::string_view reason) noexcept = 0;
};

/// Tickets of transfers that end in any order: places that are used again. Numbers begin with 1.
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
