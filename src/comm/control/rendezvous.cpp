#include "comm/control/rendezvous.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>

#include "base/text.h"
#include "comm/control/admission.h"

namespace lockstep {
namespace {

using std::chrono::milliseconds;

/// For one address: a firewall that answers nothing must not use up the time of the others.
constexpr milliseconds kConnectAttempt{2000};
constexpr milliseconds kBetweenRounds{50};
constexpr milliseconds kAwaitTick{100};

bool wait_for(int socket, short events, Deadline deadline) {
  for (;;) {
    const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now()).count();
    pollfd polled{socket, events, 0};
    const int ready = ::poll(&polled, 1, static_cast<int>(std::clamp<int64_t>(left, 0, 60000)));
    if (ready > 0) return true;
    if (left <= 0) return false;
  }
}

bool send_all(int socket, std::string_view bytes, Deadline deadline) {
  while (!bytes.empty()) {
    if (!wait_for(socket, POLLOUT, deadline)) return false;
    const auto count = ::send(socket, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (count > 0) bytes.remove_prefix(static_cast<size_t>(count));
    if (count < 0 && errno != EAGAIN && errno != EINTR) return false;
  }
  return true;
}

/// Whether whoever is at the other end knows the token, too.
bool welcomed(Connection& connection, const JobToken& token, Deadline deadline) {
  while (connection.open() && wait_for(connection.descriptor(), POLLIN, deadline)) {
    connection.receive();
    const auto frame = connection.next();
    if (!frame) continue;
    const auto answer = frame->type == FrameType::welcome ? decode_secret(frame->payload) : std::nullopt;
    return answer && same_secret(*answer, token.answer);
  }
  return false;
}

Connection call(const Endpoint& endpoint, const JobToken& token, int rank, int64_t pid,
                const ControlTimings& timings, Deadline deadline, std::string& failure) {
  Descriptor socket = begin_connecting(endpoint, failure);
  if (!socket.valid()) return {};
  if (!wait_for(socket.get(), POLLOUT, std::min(deadline, deadline_in(kConnectAttempt)))) {
    failure = "no answer";
    return {};
  }
  int error = 0;
  socklen_t size = sizeof(error);
  ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  if (error != 0) {
    failure = std::strerror(error);
    return {};
  }
  const auto hello = encode_hello({token.hello, rank, pid});
  const Deadline answer = std::min(deadline, deadline_in(timings.answer));
  failure = "a connection, but no answer of this job's rank 0";
  if (!send_all(socket.get(), {hello.data(), hello.size()}, answer)) return {};
  Connection connection(std::move(socket));
  if (welcomed(connection, token, answer)) return connection;
  return {};
}

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
      if (links[rank].receive()) links[rank].close("it spoke before its time");
      links[rank].next();
      if (!links[rank].open()) admission.expect_again(static_cast<int>(rank));
    }
    for (auto& arrival : admission.serve(now))
      links[static_cast<size_t>(arrival.rank)] = std::move(arrival.connection);
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
  std::vector<std::string> failures;
  do {
    failures.clear();
    for (const auto& endpoint : endpoints) {
      std::string reason;
      Connection connection = call(endpoint, token, rank, pid, timings, deadline, reason);
      if (connection.open()) return connection;
      failures.push_back(fmt::format("{}: {}", endpoint_text(endpoint), reason));
    }
    std::this_thread::sleep_for(kBetweenRounds);
  } while (Clock::now() < deadline);
  failure = join(failures, "; ");
  return {};
}

}  // namespace lockstep
