#include "control/admission.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "base/index.h"

namespace lockstep::control {
namespace {

constexpr std::chrono::milliseconds kPause{100};

bool out_of_resources(int error) {
  return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

}  // namespace

Admission::Admission(std::vector<Listener> listeners, const JobToken& token, int size,
                     const ControlTimings& timings)
    : listeners_(std::move(listeners)),
      token_(token),
      timings_(timings),
      arrived_(static_cast<size_t>(size), false) {
  arrived_[0] = true;
}

void Admission::add_to(std::vector<pollfd>& polled, Clock::time_point now) const {
  if (now >= accepts_from_)
    for (const auto& listener : listeners_) polled.push_back({listener.socket.get(), POLLIN, 0});
  for (const auto& stranger : strangers_) polled.push_back({stranger.socket.get(), POLLIN, 0});
}

std::vector<Admission::Arrival> Admission::serve(Clock::time_point now) {
  if (now >= accepts_from_)
    for (const auto& listener : listeners_) accept_some(listener, now);
  std::vector<Arrival> arrivals;
  std::deque<Stranger> still;
  for (auto& stranger : strangers_) {
    const Reading reading = read_hello(stranger);
    if (reading == Reading::waits && now - stranger.since < timings_.hello) {
      still.push_back(std::move(stranger));
      continue;
    }
    const auto hello = reading == Reading::whole ? decode_hello(stranger.hello) : std::nullopt;
    if (!hello || !acceptable(*hello)) {
      turn_away(stranger);
      continue;
    }
    nth(arrived_, hello->rank) = true;
    arrivals.push_back({hello->rank, Connection(std::move(stranger.socket))});
    arrivals.back().connection.send(FrameType::welcome, encode_secret(token_.answer));
    arrivals.back().connection.flush();
  }
  strangers_ = std::move(still);
  return arrivals;
}

void Admission::accept_some(const Listener& listener, Clock::time_point now) {
  for (int accepted = 0; accepted < kAcceptsPerRound; ++accepted) {
    Descriptor socket(::accept4(listener.socket.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket.valid()) {
      const int error = errno;
      if (error == ECONNABORTED || error == EINTR) continue;
      if (out_of_resources(error)) {
        // The strangers' descriptors are the ones that can be had.
        for (auto& stranger : strangers_) turn_away(stranger);
        strangers_.clear();
        accepts_from_ = now + kPause;
      }
      return;
    }
    set_up_stream_socket(socket.get());
    strangers_.push_back({std::move(socket), now, {}, 0});
    if (strangers_.size() <= kMostStrangers) continue;
    // The oldest may have said hello just now; it is dropped only if it has not.
    auto& oldest = strangers_.front();
    if (read_hello(oldest) == Reading::whole) return;
    turn_away(oldest);
    strangers_.pop_front();
  }
}

Admission::Reading Admission::read_hello(Stranger& stranger) const {
  if (stranger.count == kHelloBytes) return Reading::whole;
  const auto count = ::recv(stranger.socket.get(), stranger.hello.data() + stranger.count,
                            kHelloBytes - stranger.count, MSG_DONTWAIT);
  if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return Reading::waits;
  if (count <= 0) return Reading::no_rank;
  stranger.count += static_cast<size_t>(count);
  if (!may_begin_hello({stranger.hello.data(), stranger.count})) return Reading::no_rank;
  return stranger.count == kHelloBytes ? Reading::whole : Reading::waits;
}

bool Admission::acceptable(const Hello& hello) const {
  const bool knows = same_secret(hello.token, token_.hello);
  return knows && hello.rank > 0 && static_cast<size_t>(hello.rank) < arrived_.size() &&
         !nth(arrived_, hello.rank);
}

void Admission::turn_away(Stranger& stranger) {
  ++turned_away_;
  // With a reset, so that thousands of them leave nothing waiting in the system.
  const linger at_once{1, 0};
  ::setsockopt(stranger.socket.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
  stranger.socket.reset();
}

std::vector<int> Admission::missing() const {
  std::vector<int> ranks;
  for (size_t rank = 0; rank < arrived_.size(); ++rank)
    if (!arrived_[rank]) ranks.push_back(static_cast<int>(rank));
  return ranks;
}

}  // namespace lockstep::control
