#pragma once

#include <exception>
#include <functional>

#include "comm/agreement.h"
#include "train/start/world.h"

namespace lockstep::train {

/// COLLECTIVE: if `action` throws on any rank, all ranks throw alike.
inline void on_all_ranks(World& world, const std::function<void()>& action) {
  std::exception_ptr failure;
  try {
    action();
  } catch (const std::exception&) {
    failure = std::current_exception();
  }
  comm::agree_on_outcome(world.communicator(), failure, comm::kPatience);
}

/// The same of an action of rank 0 alone.
inline void on_first_rank(World& world, const std::function<void()>& action) {
  on_all_ranks(world, [&] {
    if (world.rank() == 0) action();
  });
}

}  // namespace lockstep::train
