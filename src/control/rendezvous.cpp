#include "control/rendezvous.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/index.h"
#include "base/text.h"
#include "control/admission.h"

namespace lockstep::control {
namespace {

using std::chrono::milliseconds;

/// A lost request to connect is repeated sooner than the system would.
constexpr milliseconds kConnectAttempt{2000};
constexpr milliseconds kBetweenAttempts{50};
constexpr milliseconds kAwaitTick{100};

bool ready(int socket, short events) {
  pollfd polled{socket, events, 0};
  return ::poll(&polled, 1, 0) > 0;
}

/// A call to one address, from attempt to attempt.
class Call {
 public:
  Call(const Endpoint& endpoint, const Hello& hello, const Secret& answer, milliseconds patience)
      : endpoint_(endpoint), hello_(hello), answer_(answer), patience_(patience) {}

  /// Does what can be done now; true once whoever is at the other end has shown that it knows the token, too.
  bool advance(Clock::time_point now) {
    if (connection_.open()) return hear(now);
    if (socket_.valid()) {
      greet(now);
    } else if (now >= until_) {
      begin(now);
    }
    return false;
  }

  /// What to wait for, at most until due().
  void add_to(std::vector<pollfd>& polled) const {
    if (socket_.valid()) polled.push_back({socket_.get(), POLLOUT, 0});
    if (connection_.open()) polled.push_back({connection_.descriptor(), POLLIN, 0});
  }
  Clock::time_point due() const { return until_; }
  Connection take_connection() { return std::move(connection_); }
  std::string outcome() const { return fmt::format("{}: {}", endpoint_text(endpoint_), outcome_); }

 private:
  void begin(Clock::time_point now) {
    std::string error;
    socket_ = begin_connecting(endpoint_, error);
    until_ = now + kConnectAttempt;
    if (!socket_.valid()) fail(now, error);
  }

  void greet(Clock::time_point now) {
    if (!ready(socket_.get(), POLLOUT)) {
      if (now >= until_) fail(now, kNoAnswer);
      return;
    }
    int error = 0;
    socklen_t size = sizeof(error);
    ::getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) return fail(now, std::strerror(error));
    outcome_ = "connected, but this job's rank 0 did not answer";
    // A new connection takes so few bytes at once.
    const auto bytes = encode_hello(hello_);
    const auto sent = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent != static_cast<ssize_t>(bytes.size())) return fail(now, outcome_);
    connection_ = Connection(std::move(socket_));
    until_ = now + patience_;
  }

  bool hear(Clock::time_point now) {
    connection_.receive();
    const auto frame = connection_.next();
    const auto answer =
        frame && frame->type == FrameType::welcome ? decode_secret(frame->payload) : std::nullopt;
    if (answer && same_secret(*answer, answer_)) return true;
    if (frame || !connection_.open() || now >= until_) fail(now, outcome_);
    return false;
  }

  void fail(Clock::time_point now, const std::string& outcome) {
    socket_.reset();
    connection_ = Connection();
    outcome_ = outcome;
    until_ = now + kBetweenAttempts;
  }

  static constexpr const char* kNoAnswer = "no answer";

  const Endpoint endpoint_;
  const Hello hello_;
  const Secret answer_;
  const milliseconds patience_;
  Descriptor socket_;                // being connected
  Connection connection_;            // greeted
  Clock::time_point until_{};        // when this attempt has failed, or the next one begins
  std::string outcome_ = kNoAnswer;  // of the last attempt that came to an end
};

}  // namespace

std::vector<Connection> await_ranks(std::vector<Listener> listeners, const JobToken& token, int size,
                                    const ControlTimings& timings, Deadline deadline) {
  Admission admission(std::move(listeners), token, size, timings);
  std::vector<Connection> links(static_cast<size_t>(size));
  std::vector<pollfd> polled;
  while (!admission.missing().empty()) {
    const auto now = Clock::now();
    if (now >= deadline) break;
    // Ranks that are there come first, however many strangers knock. They have nothing to say yet: one that
    // does, or that ends, is none, and may come again.
    for (size_t rank = 1; rank < links.size(); ++rank) {
      if (!links[rank].open()) continue;
      links[rank].flush();
      if (links[rank].receive()) links[rank].close("it sent a message too early");
      links[rank].next();
      if (!links[rank].open()) admission.expect_again(static_cast<int>(rank));
    }
    for (auto& arrival : admission.serve(now)) nth(links, arrival.rank) = std::move(arrival.connection);
    if (admission.missing().empty()) break;
    polled.clear();
    admission.add_to(polled, now);
    for (const auto& link : links)
      if (link.open()) polled.push_back({link.descriptor(), POLLIN, 0});
    ::poll(polled.data(), polled.size(), static_cast<int>(kAwaitTick.count()));
  }
  return links;
}

Connection call_root(const std::vector<Endpoint>& endpoints, const JobToken& token, int rank, int64_t pid,
                     const ControlTimings& timings, Deadline deadline, std::string& failure) {
  std::vector<Call> calls;
  calls.reserve(endpoints.size());
  for (const auto& endpoint : endpoints)
    calls.emplace_back(endpoint, Hello{token.hello, rank, pid}, token.answer, timings.answer);
  std::vector<pollfd> polled;
  for (;;) {
    const auto now = Clock::now();
    auto next = deadline;
    polled.clear();
    for (auto& call : calls) {
      if (call.advance(now)) return call.take_connection();
      call.add_to(polled);
      next = std::min(next, call.due());
    }
    if (now >= deadline) break;
    const auto left = std::chrono::ceil<milliseconds>(next - now).count();
    ::poll(polled.data(), polled.size(), static_cast<int>(std::clamp<int64_t>(left, 1, 60000)));
  }
  std::vector<std::string> outcomes;
  for (const auto& call : calls) outcomes.push_back(call.outcome());
  failure = join(outcomes, "; ");
  return {};
}

}  // namespace lockstep::control
