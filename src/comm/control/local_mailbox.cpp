#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "comm/control/mailbox.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

/// One rank's messages by topic, filled by any thread.
class Inbox {
 public:
  void put(Mailbox::Message message, std::string_view topic) {
    {
      const std::lock_guard lock(mutex_);
      messages_[std::string(topic)].push_back(std::move(message));
    }
    arrived_.notify_all();
  }
  std::optional<Mailbox::Message> take(std::string_view topic, Deadline deadline) {
    std::unique_lock lock(mutex_);
    auto& queue = messages_[std::string(topic)];  // its place in the map stays
    if (!arrived_.wait_until(lock, deadline, [&] { return !queue.empty(); })) return std::nullopt;
    auto message = std::move(queue.front());
    queue.pop_front();
    return message;
  }

 private:
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::map<std::string, std::deque<Mailbox::Message>, std::less<>> messages_;
};

class LocalMailbox : public Mailbox {
 public:
  LocalMailbox(std::shared_ptr<std::vector<Inbox>> inboxes, int rank)
      : inboxes_(std::move(inboxes)), rank_(rank) {}
  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(inboxes_->size()); }
  void send(int to, std::string_view topic, std::string_view text) override {
    ensure(to == 0 || rank_ == 0, "mailboxes connect rank 0 with the others, nobody else");
    inboxes_->at(static_cast<size_t>(to)).put({rank_, std::string(text)}, topic);
  }
  std::optional<Message> receive(std::string_view topic, Deadline deadline) override {
    return inboxes_->at(static_cast<size_t>(rank_)).take(topic, deadline);
  }

 private:
  std::shared_ptr<std::vector<Inbox>> inboxes_;
  int rank_;
};

}  // namespace

std::vector<std::unique_ptr<Mailbox>> make_local_mailboxes(int size) {
  auto inboxes = std::make_shared<std::vector<Inbox>>(static_cast<size_t>(size));
  std::vector<std::unique_ptr<Mailbox>> mailboxes;
  for (int rank = 0; rank < size; ++rank) mailboxes.push_back(std::make_unique<LocalMailbox>(inboxes, rank));
  return mailboxes;
}

}  // namespace lockstep
