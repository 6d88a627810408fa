#include <gtest/gtest.h>

#include <thread>

#include "control/mailbox.h"
#include "lockstep/error.h"

namespace lockstep::control {
namespace {

std::string text_of(const std::optional<Mailbox::Message>& message) {
  return message ? std::to_string(message->from) + ":" + message->text : "none";
}

TEST(MailboxAmong, NumbersThoseThatAreLeftAnew) {
  const auto all = make_local_mailboxes(4);
  const auto first = make_mailbox_among(*all[0], {0, 1, 3}), last = make_mailbox_among(*all[3], {0, 1, 3});
  EXPECT_EQ(last->rank(), 2);
  EXPECT_EQ(last->size(), 3);
  all[2]->send(0, "a", "of one that was lost then");
  last->send(0, "a", "one");
  EXPECT_EQ(text_of(first->receive("a", Clock::now())), "2:one");
  EXPECT_EQ(text_of(first->receive("a", Clock::now())), "none");
  first->send(2, "a", "two");
  EXPECT_EQ(text_of(last->receive("a", Clock::now())), "0:two");
  EXPECT_THROW(make_mailbox_among(*all[2], {0, 1, 3}), InternalError);
}

TEST(LocalMailbox, DeliversBySenderTopicAndOrder) {
  const auto mailboxes = make_local_mailboxes(3);
  EXPECT_EQ(mailboxes[2]->rank(), 2);
  EXPECT_EQ(mailboxes[2]->size(), 3);
  mailboxes[2]->send(0, "a", "one");
  mailboxes[1]->send(0, "b", "");
  mailboxes[2]->send(0, "a", "two");
  mailboxes[0]->send(0, "a", "own");
  EXPECT_EQ(text_of(mailboxes[0]->receive("b", Clock::now())), "1:");
  EXPECT_EQ(text_of(mailboxes[0]->receive("a", Clock::now())), "2:one");
  EXPECT_EQ(text_of(mailboxes[0]->receive("a", Clock::now())), "2:two");
  EXPECT_EQ(text_of(mailboxes[0]->receive("a", Clock::now())), "0:own");
  EXPECT_EQ(text_of(mailboxes[0]->receive("a", Clock::now())), "none");
  EXPECT_THROW(mailboxes[2]->send(1, "a", "x"), InternalError);
}

TEST(LocalMailbox, WaitsForAMessageOfAnotherThread) {
  const auto mailboxes = make_local_mailboxes(2);
  std::thread sender([&] { mailboxes[0]->send(1, "a", "late"); });
  EXPECT_EQ(text_of(mailboxes[1]->receive("a", deadline_in(std::chrono::minutes(1)))), "0:late");
  sender.join();
}

}  // namespace
}  // namespace lockstep::control
