#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "comm/communicator.h"
#include "train/worker.h"

namespace lockstep {

/// What a checkpoint tells the loop.
struct RestoredState {
  int64_t step = 0;                ///< steps complete
  std::string path;
};

/// A run's checkpoints: a worker's tensors to and from `<output_directory>/checkpoints`.
class RunCheckpoints {
 public:
  using Message = std::function<void(const std::string&)>;
  RunCheckpoints(std::string output_directory, Worker& worker, Message on_message);

  /// COLLECTIVE: runs the boundary program, in which rank 0 writes. Returns the checkpoint's path. Throws IoError on
  /// every rank where writing failed; older checkpoints stay as they were.
  std::string save(Communicator& world, int64_t step);

  /// COLLECTIVE: the newest complete checkpoint of this run; refused ones are reported by name. False where there is
  /// none at all. Throws CheckpointError where there are some and none can be used.
  bool restore_newest(Communicator& world, RestoredState& state);
  /// COLLECTIVE: the checkpoint in `path`, or the newest below it. Throws CheckpointError on every rank if it cannot be
  /// used, ConfigError where it is of another configuration and that was not allowed.
  void restore(Communicator& world, const std::string& path, RestoredState& state);

 private:
  std::string directory_;
  Worker& worker_;
  Message on_message_;
};

}  // namespace lockstep
