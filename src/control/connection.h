#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "control/control_protocol.h"
#include "control/descriptor.h"

namespace lockstep::control {

/// One authenticated connection that sends and receives frames and never blocks. It buffers at most one frame
/// and one read. A peer that sends something other than frames is disconnected. Thread-safety: one thread.
class Connection {
 public:
  Connection() = default;  ///< closed
  explicit Connection(Descriptor socket) : socket_(std::move(socket)) {}

  bool open() const { return socket_.valid(); }
  int descriptor() const { return socket_.get(); }
  /// Why it is closed: "its connection closed".
  const std::string& reason() const { return reason_; }

  /// Reads available bytes, within bounds; true if there were any.
  bool receive();
  /// The next whole received frame. After the last frame, a connection that has ended is closed.
  std::optional<Frame> next();

  void send(FrameType type, std::string_view payload);
  void flush();  ///< writes as much as the system accepts
  size_t unsent_bytes() const { return out_.size() - sent_; }
  void shut_down();  ///< nothing more will be sent
  void close(std::string_view reason);

 private:
  Descriptor socket_;
  std::string in_, out_;
  size_t taken_ = 0;   // of in_
  size_t sent_ = 0;    // of out_
  std::string ended_;  // why nothing more will come; frames that came before still count
  std::string reason_ = "it never connected";
};

/// Small messages leave at once; closed on exec.
void set_up_stream_socket(int socket);

}  // namespace lockstep::control
