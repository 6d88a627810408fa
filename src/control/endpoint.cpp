#include "control/endpoint.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "base/text.h"
#include "control/connection.h"

namespace lockstep::control {
namespace {

constexpr int kBacklog = 4096;  // the system caps it; short ones make ranks wait while others flood the port

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
};

SocketAddress socket_address(const HostAddress& address, int port) {
  SocketAddress result;
  if (address.v6) {
    auto* v6 = reinterpret_cast<sockaddr_in6*>(&result.storage);
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(static_cast<uint16_t>(port));
    std::memcpy(&v6->sin6_addr, address.bytes.data(), 16);
    result.size = sizeof(sockaddr_in6);
  } else {
    auto* v4 = reinterpret_cast<sockaddr_in*>(&result.storage);
    v4->sin_family = AF_INET;
    v4->sin_port = htons(static_cast<uint16_t>(port));
    std::memcpy(&v4->sin_addr, address.bytes.data(), 4);
    result.size = sizeof(sockaddr_in);
  }
  return result;
}

Descriptor new_socket(const HostAddress& address) {
  Descriptor socket(::socket(address.v6 ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int on = 1;
  if (socket.valid() && address.v6) ::setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof(on));
  return socket;
}

uint16_t port_of(int socket) {
  sockaddr_storage storage{};
  socklen_t size = sizeof(storage);
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&storage), &size) != 0) return 0;
  return ntohs(storage.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&storage)->sin6_port
                                             : reinterpret_cast<sockaddr_in*>(&storage)->sin_port);
}

}  // namespace

std::string endpoint_text(const Endpoint& endpoint) {
  const std::string address = address_text(endpoint.address);
  return endpoint.address.v6 ? fmt::format("[{}]:{}", address, endpoint.port)
                             : fmt::format("{}:{}", address, endpoint.port);
}

std::string endpoints_text(const std::vector<Endpoint>& endpoints) {
  std::vector<std::string> texts;
  for (const auto& endpoint : endpoints) texts.push_back(endpoint_text(endpoint));
  return join(texts, ", ");
}

std::optional<Listener> listen_at(const HostAddress& address, int port, std::string& error) {
  Descriptor socket = new_socket(address);
  auto target = socket_address(address, port);
  const int on = 1;
  // A fixed port is free again right after the job before has ended.
  if (socket.valid() && port != 0) ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (!socket.valid() || ::bind(socket.get(), target.get(), target.size) != 0 ||
      ::listen(socket.get(), kBacklog) != 0) {
    error = std::strerror(errno);
    return {};
  }
  const uint16_t bound = port_of(socket.get());
  return Listener{std::move(socket), {address, bound}};
}

Descriptor begin_connecting(const Endpoint& endpoint, std::string& error) {
  Descriptor socket = new_socket(endpoint.address);
  auto target = socket_address(endpoint.address, endpoint.port);
  if (socket.valid()) set_up_stream_socket(socket.get());
  if (!socket.valid() || (::connect(socket.get(), target.get(), target.size) != 0 && errno != EINPROGRESS)) {
    error = std::strerror(errno);
    return {};
  }
  return socket;
}

}  // namespace lockstep::control
