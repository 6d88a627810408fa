#include "comm/message_port.h"

#include <fmt/format.h>

#include "lockstep/error.h"

namespace lockstep::comm {

std::unique_ptr<Communicator> Communicator::regroup(std::span<const int>) {
  throw InternalError(fmt::format("backend {} cannot leave ranks out", backend()));
}

std::unique_ptr<MessagePort> Communicator::open_port() {
  throw InternalError(fmt::format("communicators of kind {} have no port for messages", backend()));
}

}  // namespace lockstep::comm
