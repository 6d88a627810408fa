#pragma once

#include "comm/checked_communicator.h"

namespace lockstep::comm {

/// The common base of backends on host memory. They start operations at once, on the calling thread, and
/// never use the stream. With an asynchronous CPU stream, calls belong into work of that stream.
class HostCommunicator : public CheckedCommunicator {
 protected:
  using CheckedCommunicator::CheckedCommunicator;
  virtual void start(Operation operation) = 0;

 private:
  void enqueue(Operation operation, device::Stream&) final { start(std::move(operation)); }
};

}  // namespace lockstep::comm
