#include "control/mailbox.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/ensure.h"
#include "base/index.h"
#include "control/control_protocol.h"
#include "control/star_mailbox.h"
#include "lockstep/error.h"

namespace lockstep::control {
namespace {

/// A sender waits beyond this, and only so long: whoever does not read is found silent by the watchdog in the
/// meantime.
constexpr size_t kMostQueuedBytes = 64 << 20;
constexpr std::chrono::seconds kPatience{60};

void check_message(int rank, int size, int to, std::string_view topic, std::string_view text) {
  if (to < 0 || to >= size || (to != 0 && rank != 0))
    throw InternalError(fmt::format(
        "a message from rank {} to rank {} of {}: one of the two has to be rank 0", rank, to, size));
  if (topic.size() > kLargestTopic || text.size() > kLargestMail)
    throw InternalError(
        fmt::format("a message of {} bytes about '{}': at most {} bytes, and {} for the topic", text.size(),
                    topic.substr(0, 40), kLargestMail, kLargestTopic));
}

class MailboxAmong : public Mailbox {
 public:
  MailboxAmong(Mailbox& mailbox, std::vector<int> members)
      : mailbox_(mailbox), members_(std::move(members)), rank_(number_of(mailbox.rank())) {
    ensure(rank_ >= 0 && members_.front() == 0, "rank 0 and this one are among those that are left");
  }

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(members_.size()); }
  void send(int to, std::string_view topic, std::string_view text) override {
    mailbox_.send(nth(members_, to), topic, text);
  }
  std::optional<Message> receive(std::string_view topic, Deadline deadline) override {
    while (auto message = mailbox_.receive(topic, deadline)) {
      message->from = number_of(message->from);
      if (message->from >= 0) return message;  // otherwise it is of one that is lost
    }
    return std::nullopt;
  }

 private:
  int number_of(int rank) const {
    const auto found = std::ranges::find(members_, rank);
    return found == members_.end() ? -1 : static_cast<int>(found - members_.begin());
  }

  Mailbox& mailbox_;
  std::vector<int> members_;
  int rank_;
};

class LocalMailbox : public Mailbox {
 public:
  LocalMailbox(int rank, std::shared_ptr<std::vector<Inbox>> inboxes)
      : rank_(rank), inboxes_(std::move(inboxes)) {}

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(inboxes_->size()); }
  void send(int to, std::string_view topic, std::string_view text) override {
    check_message(rank_, size(), to, topic, text);
    nth((*inboxes_), to).put(topic, {rank_, std::string(text)});
  }
  std::optional<Message> receive(std::string_view topic, Deadline deadline) override {
    return nth((*inboxes_), rank_).receive(topic, deadline);
  }

 private:
  int rank_;
  std::shared_ptr<std::vector<Inbox>> inboxes_;
};

}  // namespace

void Inbox::put(std::string_view topic, Mailbox::Message message) {
  {
    std::lock_guard lock(mutex_);
    topics_[std::string(topic)].push_back(std::move(message));
  }
  arrived_.notify_all();
}

std::optional<Mailbox::Message> Inbox::receive(std::string_view topic, Deadline deadline) {
  std::unique_lock lock(mutex_);
  const auto there = [&] { return topics_.find(topic) != topics_.end(); };
  if (!arrived_.wait_until(lock, deadline, there)) return {};
  const auto found = topics_.find(topic);
  Mailbox::Message message = std::move(found->second.front());
  found->second.pop_front();
  if (found->second.empty()) topics_.erase(found);
  return message;
}

StarMailbox::StarMailbox(int rank, int size, std::function<void()> wake)
    : rank_(rank), size_(size), wake_(std::move(wake)), queues_(static_cast<size_t>(size)) {}

void StarMailbox::send(int to, std::string_view topic, std::string_view text) {
  check_message(rank_, size_, to, topic, text);
  if (to == rank_) return inbox_.put(topic, {rank_, std::string(text)});
  {
    std::unique_lock lock(mutex_);
    auto& queue = nth(queues_, to);
    if (!taken_.wait_for(lock, kPatience, [&] { return queue.gone || queue.bytes < kMostQueuedBytes; }))
      throw CommError(
          fmt::format("rank {} has {} bytes of messages that rank {} does not read", rank_, queue.bytes, to),
          ExitCode::hang);
    if (queue.gone) return;
    queue.payloads.push_back(encode_mail(topic, text));
    queue.bytes += queue.payloads.back().size();
    ++queued_;
  }
  wake_();
}

std::optional<Mailbox::Message> StarMailbox::receive(std::string_view topic, Deadline deadline) {
  return inbox_.receive(topic, deadline);
}

std::optional<std::string> StarMailbox::take(int to) {
  std::lock_guard lock(mutex_);
  auto& queue = nth(queues_, to);
  if (queue.payloads.empty()) return {};
  std::string payload = std::move(queue.payloads.front());
  queue.payloads.pop_front();
  queue.bytes -= payload.size();
  --queued_;
  taken_.notify_all();
  return payload;
}

void StarMailbox::gone(int rank) {
  std::lock_guard lock(mutex_);
  queued_ -= nth(queues_, rank).payloads.size();
  nth(queues_, rank) = {.payloads = {}, .bytes = 0, .gone = true};
  taken_.notify_all();
}

std::unique_ptr<Mailbox> make_mailbox_among(Mailbox& mailbox, std::vector<int> members) {
  return std::make_unique<MailboxAmong>(mailbox, std::move(members));
}

std::vector<std::unique_ptr<Mailbox>> make_local_mailboxes(int size) {
  ensure(size >= 1, "mailboxes are for one rank or more");
  const auto inboxes = std::make_shared<std::vector<Inbox>>(static_cast<size_t>(size));
  std::vector<std::unique_ptr<Mailbox>> mailboxes;
  for (int rank = 0; rank < size; ++rank) mailboxes.push_back(std::make_unique<LocalMailbox>(rank, inboxes));
  return mailboxes;
}

}  // namespace lockstep::control
