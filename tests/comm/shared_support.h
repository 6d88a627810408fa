#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "comm/conformance_support.h"

namespace lockstep::comm {

/// What this process has left in /dev/shm: names that ranks of its groups would find there.
inline std::vector<std::string> left_in_dev_shm() {
  std::vector<std::string> names;
  const std::string own = "lockstep-" + std::to_string(getpid()) + "-";
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm"))
    if (entry.path().filename().string().starts_with(own)) names.push_back(entry.path().string());
  return names;
}

/// Runs `body` on one thread for each rank of a new local group.
inline void run_group(int size, const std::function<void(Communicator& group)>& body) {
  auto ranks = make_local_communicators(size);
  std::vector<std::thread> threads;
  for (auto& group : ranks)
    threads.emplace_back([&body, &group] {
      try {
        body(*group);
      } catch (const std::exception& error) {
        ADD_FAILURE() << error.what();
        group->abort("another rank's test failed");
      }
    });
  for (auto& thread : threads) thread.join();
}

/// The same with a shared-memory communicator over the group.
inline void run_shared(int size, const SharedMemoryOptions& options,
                       const std::function<void(Communicator& world)>& body) {
  run_group(size, [&](Communicator& group) {
    const auto world = make_shared_memory_communicator(group, options);
    try {
      body(*world);
    } catch (const std::exception& error) {
      world->abort("another rank's test failed");
      throw;
    }
  });
}

}  // namespace lockstep::comm
