#include <exception>
#include <thread>
#include <vector>

#include "base/thread.h"
#include "comm/communicator.h"

namespace lockstep::comm {

void abort_all(std::span<Communicator* const> communicators, std::string_view reason) noexcept {
  std::vector<std::thread> threads;
  try {
    threads.reserve(communicators.size());
  } catch (const std::exception&) {
    for (Communicator* communicator : communicators)
      if (communicator != nullptr) communicator->abort(reason);
    return;
  }
  for (Communicator* communicator : communicators) {
    if (communicator == nullptr) continue;
    try {
      threads.push_back(
          start_thread_without_signals("abort", [communicator, reason] { communicator->abort(reason); }));
    } catch (const std::exception&) {
      communicator->abort(reason);  // no thread is to be had: one after the other
    }
  }
  for (auto& thread : threads) thread.join();
}

}  // namespace lockstep::comm
