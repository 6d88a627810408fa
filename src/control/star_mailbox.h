#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>

#include "control/mailbox.h"

namespace lockstep::control {

/// Messages that arrived for one rank and are not received yet. Thread-safe.
class Inbox {
 public:
  void put(std::string_view topic, Mailbox::Message message);
  std::optional<Mailbox::Message> receive(std::string_view topic, Deadline deadline);

 private:
  std::mutex mutex_;  // guards topics_
  std::condition_variable arrived_;
  std::map<std::string, std::deque<Mailbox::Message>, std::less<>> topics_;
};

/// The mailbox over control connections. Keeps outgoing messages until the watchdog's thread, which alone
/// uses sockets, takes them. Thread-safe.
class StarMailbox : public Mailbox {
 public:
  /// `wake`: called after something was put out.
  StarMailbox(int rank, int size, std::function<void()> wake);

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  void send(int to, std::string_view topic, std::string_view text) override;
  std::optional<Message> receive(std::string_view topic, Deadline deadline) override;

  // For the watchdog's thread:
  void deliver(Message message, std::string_view topic) { inbox_.put(topic, std::move(message)); }
  bool any() const { return queued_ > 0; }
  std::optional<std::string> take(int to);  ///< payload of a mail frame, the oldest one for `to`
  void gone(int rank);                      ///< nobody will take what is meant for `rank`

 private:
  struct Queue {
    std::deque<std::string> payloads;
    size_t bytes = 0;
    bool gone = false;
  };

  int rank_, size_;
  std::function<void()> wake_;
  Inbox inbox_;
  std::mutex mutex_;  // guards queues_, and changes of queued_
  std::condition_variable taken_;
  std::atomic<size_t> queued_{0};  // payloads in queues_
  std::vector<Queue> queues_;      // by receiver
};

}  // namespace lockstep::control
