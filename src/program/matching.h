#pragma once

#include <deque>
#include <optional>
#include <utility>
#include <vector>

namespace lockstep::program {

/// Ends of messages that go one way between two ranks of a group. They match in order: the n-th end that
/// sends is of the same message as the n-th that receives.
template <class End>
class MessageEnds {
 public:
  /// Adds an end. Returns the other end of its message if that was added before.
  std::optional<End> match(bool sends, End end) {
    if (waiting_.empty() || sends == senders_wait_) {
      senders_wait_ = sends;
      waiting_.push_back(std::move(end));
      return {};
    }
    std::optional<End> other = std::move(waiting_.front());
    waiting_.pop_front();
    return other;
  }
  /// Ends whose other one is not there yet: all send, or all receive.
  const std::deque<End>& waiting() const { return waiting_; }

 private:
  std::deque<End> waiting_;
  bool senders_wait_ = false;
};

/// Members of a group at its collectives. All come to them in the same order, and go on to the next one when
/// the last has come.
template <class Member>
class Meeting {
 public:
  /// One more comes. If it is the last of so many: all of them, in the order in which they came; otherwise
  /// none.
  std::vector<Member> come(Member member, size_t count) {
    present_.push_back(std::move(member));
    return present_.size() < count ? std::vector<Member>{} : std::exchange(present_, {});
  }
  const std::vector<Member>& present() const { return present_; }

 private:
  std::vector<Member> present_;
};

}  // namespace lockstep::program
