#include "control/connection.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>

namespace lockstep::control {
namespace {

constexpr size_t kReadPerRound = 256 << 10;

bool would_block(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

}  // namespace

bool Connection::receive() {
  if (!open() || !ended_.empty()) return false;
  std::array<char, 64 << 10> chunk;
  size_t total = 0;
  while (total < kReadPerRound && in_.size() - taken_ <= kFrameHeaderBytes + kLargestPayload) {
    const auto count = ::recv(socket_.get(), chunk.data(), chunk.size(), MSG_DONTWAIT);
    if (count < 0 && would_block(errno)) break;
    if (count <= 0) {
      // A process that dies with something unread resets its connections.
      ended_ = count == 0 || errno == ECONNRESET || errno == EPIPE
                   ? "its connection closed"
                   : std::string("its connection broke (") + std::strerror(errno) + ")";
      break;
    }
    in_.append(chunk.data(), static_cast<size_t>(count));
    total += static_cast<size_t>(count);
    if (static_cast<size_t>(count) < chunk.size()) break;
  }
  return total > 0;
}

std::optional<Frame> Connection::next() {
  if (!open()) return {};
  const size_t available = in_.size() - taken_;
  if (available >= kFrameHeaderBytes) {
    const auto header =
        decode_frame_header(std::span<const char, kFrameHeaderBytes>(in_.data() + taken_, kFrameHeaderBytes));
    if (!header) {
      close("it sent something that is not a lockstep message, so its connection was closed");
      return {};
    }
    if (available >= kFrameHeaderBytes + header->payload_bytes) {
      Frame frame{header->type, in_.substr(taken_ + kFrameHeaderBytes, header->payload_bytes)};
      taken_ += kFrameHeaderBytes + header->payload_bytes;
      return frame;
    }
  }
  in_.erase(0, taken_);
  taken_ = 0;
  if (!ended_.empty()) close(ended_);
  return {};
}

void Connection::send(FrameType type, std::string_view payload) {
  if (open()) out_ += encode_frame(type, payload);
}

void Connection::flush() {
  while (open() && unsent_bytes() > 0) {
    const auto count =
        ::send(socket_.get(), out_.data() + sent_, unsent_bytes(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    // A broken connection is noticed where it is read, after what had still arrived.
    if (count < 0 && !would_block(errno)) {
      out_.clear();
      sent_ = 0;
    }
    if (count < 0) return;
    sent_ += static_cast<size_t>(count);
    if (sent_ == out_.size() || sent_ > (1 << 20)) {
      out_.erase(0, sent_);
      sent_ = 0;
    }
  }
}

void Connection::shut_down() {
  if (open()) ::shutdown(socket_.get(), SHUT_WR);
}

void Connection::close(std::string_view reason) {
  if (!open()) return;
  reason_ = reason;
  socket_.reset();
  in_.clear();
  out_.clear();
  taken_ = sent_ = 0;
}

void set_up_stream_socket(int socket) {
  const int on = 1;
  ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  ::fcntl(socket, F_SETFD, FD_CLOEXEC);
  ::fcntl(socket, F_SETFL, ::fcntl(socket, F_GETFL) | O_NONBLOCK);
}

}  // namespace lockstep::control
