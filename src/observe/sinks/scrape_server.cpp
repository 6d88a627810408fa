#include "observe/sinks/scrape_server.h"

#include <fmt/format.h>
#include <netdb.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>

#include "base/clock.h"
#include "base/thread.h"
#include "lockstep/error.h"
#include "observe/sinks/scrape_answer.h"

namespace lockstep::observe {
namespace {

constexpr size_t kMostConnections = 16;
constexpr size_t kMostRequestBytes = 4096;
constexpr int kMostAcceptedPerSecond = 100;
constexpr std::chrono::milliseconds kRequestTime{2000};
constexpr std::chrono::milliseconds kSecond{1000};

int listen_at(const std::string& address, int port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | AI_PASSIVE;
  addrinfo* found = nullptr;
  if (::getaddrinfo(address.c_str(), std::to_string(port).c_str(), &hints, &found) != 0)
    throw ConfigError(fmt::format("metrics.prometheus_address: expected an IP address, found '{}'", address));
  const int listener = ::socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  const int yes = 1;
  int error = listener < 0 ? errno : 0;
  // A run that was just stopped leaves connections that hold its port for a minute.
  if (!error) ::setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  if (!error && ::bind(listener, found->ai_addr, found->ai_addrlen) != 0) error = errno;
  if (!error && ::listen(listener, static_cast<int>(kMostConnections)) != 0) error = errno;
  ::freeaddrinfo(found);
  if (!error) return listener;
  if (listener >= 0) ::close(listener);
  throw IoError(fmt::format("metrics.prometheus_port: cannot listen at port {} of {}: {}{}", port, address,
                            std::strerror(error), error == EADDRINUSE ? "; name another port" : ""));
}

int port_of(int listener) {
  sockaddr_storage own{};
  socklen_t size = sizeof(own);
  char port[NI_MAXSERV] = "0";
  if (::getsockname(listener, reinterpret_cast<sockaddr*>(&own), &size) == 0)
    ::getnameinfo(reinterpret_cast<sockaddr*>(&own), size, nullptr, 0, port, sizeof(port), NI_NUMERICSERV);
  return std::atoi(port);
}

}  // namespace

struct ScrapeServer::Connection {
  Connection(int descriptor, Deadline last) : file(descriptor), deadline(last) {}
  Connection(Connection&& other) noexcept { *this = std::move(other); }
  Connection& operator=(Connection&& other) noexcept {
    std::swap(file, other.file);
    std::swap(deadline, other.deadline);
    std::swap(request, other.request);
    std::swap(answer, other.answer);
    std::swap(sent, other.sent);
    return *this;
  }
  ~Connection() {
    if (file >= 0) ::close(file);
  }

  int file = -1;
  Deadline deadline;
  std::string request, answer;  // an answer: the request is complete
  size_t sent = 0;
};

ScrapeServer::ScrapeServer(const std::string& address, int port)
    : listener_(listen_at(address, port)),
      stop_(::eventfd(0, EFD_CLOEXEC)),
      port_(port_of(listener_)),
      page_(std::make_shared<std::string>()) {
  if (stop_ < 0) {
    const int error = errno;
    ::close(listener_);
    throw IoError(fmt::format("metrics.prometheus_port: cannot make an eventfd: {}", std::strerror(error)));
  }
  thread_ = start_thread_without_signals("scrape", [this] { serve(); });
}

ScrapeServer::~ScrapeServer() {
  const uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(stop_, &one, sizeof(one));
  thread_.join();
  ::close(stop_);
  ::close(listener_);
}

void ScrapeServer::set_page(std::string page) {
  auto shared = std::make_shared<const std::string>(std::move(page));
  const std::lock_guard lock(mutex_);
  page_ = std::move(shared);
}

void ScrapeServer::accept_connections(std::vector<Connection>& connections) {
  while (accepted_ < kMostAcceptedPerSecond) {
    const int file = ::accept4(listener_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (file < 0) {
      // Otherwise the connection that waits would wake this thread again at once.
      if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
        accepted_ = kMostAcceptedPerSecond;
      return;
    }
    ++accepted_;
    // Whoever is slow makes room for the next.
    if (connections.size() == kMostConnections) connections.erase(connections.begin());
    connections.emplace_back(file, deadline_in(kRequestTime));
  }
}

bool ScrapeServer::advance(Connection& connection) {
  if (connection.answer.empty()) {
    char bytes[kMostRequestBytes];
    const ssize_t count = ::recv(connection.file, bytes, sizeof(bytes), 0);
    if (count < 0) return errno == EAGAIN || errno == EINTR;
    if (count == 0) return false;
    connection.request.append(bytes, static_cast<size_t>(count));
    std::shared_ptr<const std::string> page;
    {
      const std::lock_guard lock(mutex_);
      page = page_;
    }
    auto answer = scrape_answer(connection.request, *page);
    // A request that grows without an end is not worth an answer.
    if (!answer) return connection.request.size() < kMostRequestBytes;
    connection.answer = std::move(*answer);
  }
  const std::string_view rest = std::string_view(connection.answer).substr(connection.sent);
  const ssize_t count = ::send(connection.file, rest.data(), rest.size(), MSG_NOSIGNAL);
  if (count < 0) return errno == EAGAIN || errno == EINTR;
  connection.sent += static_cast<size_t>(count);
  return connection.sent < connection.answer.size();
}

void ScrapeServer::serve() {
  // On Linux a thread has a priority of its own: training comes first.
  ::setpriority(PRIO_PROCESS, 0, std::max(10, ::getpriority(PRIO_PROCESS, 0)));
  std::vector<Connection> connections;
  Deadline second = deadline_in(kSecond);
  while (true) {
    std::vector<pollfd> files{{stop_, POLLIN, 0}};
    for (const auto& connection : connections)
      files.push_back({connection.file, static_cast<short>(connection.answer.empty() ? POLLIN : POLLOUT), 0});
    const bool accepts = accepted_ < kMostAcceptedPerSecond;
    if (accepts) files.push_back({listener_, POLLIN, 0});
    const bool waits = accepts && connections.empty();
    if (::poll(files.data(), files.size(), waits ? -1 : 100) < 0 && errno != EINTR) return;
    if (files[0].revents != 0) return;
    const auto now = Clock::now();
    if (now >= second) {
      second = now + kSecond;
      accepted_ = 0;
    }
    size_t place = 1;
    std::erase_if(connections, [&](Connection& connection) {
      const bool ready = files[place++].revents != 0;
      return (ready && !advance(connection)) || now >= connection.deadline;
    });
    if (accepts && files.back().revents != 0) accept_connections(connections);
  }
}

}  // namespace lockstep::observe
