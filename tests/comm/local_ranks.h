#pragma once

#include <exception>
#include <functional>
#include <thread>
#include <vector>

#include "comm/communicator.h"

namespace lockstep::comm {

/// Runs `body` once per rank, each on a thread with a communicator of its own, and rethrows the first error.
inline void run_ranks(int ranks, const std::function<void(int rank, Communicator& world)>& body) {
  auto communicators = make_local_communicators(ranks);
  std::vector<std::exception_ptr> errors(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      auto& world = *communicators[static_cast<size_t>(rank)];
      try {
        body(rank, world);
      } catch (const std::exception& error) {
        errors[static_cast<size_t>(rank)] = std::current_exception();
        world.abort(error.what());
      }
    });
  for (auto& thread : threads) thread.join();
  for (const auto& error : errors)
    if (error) std::rethrow_exception(error);
}

}  // namespace lockstep::comm
