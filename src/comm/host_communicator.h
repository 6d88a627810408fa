#pragma once

#include "comm/checked_communicator.h"

namespace lockstep::comm {

/// What the backends on host memory share: they start operations at once, on the calling thread, and never
/// touch the stream: with an asynchronous CPU stream, the calls belong into work of that stream.
class HostCommunicator : public CheckedCommunicator {
 protected:
  using CheckedCommunicator::CheckedCommunicator;
  virtual void start(Operation operation) = 0;

 private:
  void enqueue(Operation operation, device::Stream&) final { start(std::move(operation)); }
};

}  // namespace lockstep::comm
