#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "checkpoint/checkpoint.h"
#include "comm/communicator.h"
#include "train/worker.h"

namespace lockstep {

/// Where a resumed run goes on.
struct RestoredState {
  int64_t step = 0;                ///< steps complete
  std::string path;
};

/// A run's checkpoints: a worker's tensors to and from `<output_directory>/checkpoints`. Rank 0 writes; every rank
/// reads, so the folder must be visible to all of them.
class RunCheckpoints {
 public:
  using Message = std::function<void(const std::string&)>;
  /// `worker` must outlive it; `on_message` may be empty.
  RunCheckpoints(const std::string& output_directory, Worker& worker, Message on_message);

  /// COLLECTIVE: runs the boundary program, in which rank 0 writes. Returns the checkpoint's path. Where writing failed,
  /// or anything to be saved is not finite, every rank throws a CollectiveError; older checkpoints stay as they were.
  std::string save(Communicator& world, int64_t step);

  /// COLLECTIVE: goes on from the newest complete checkpoint of this run; damaged ones are reported by name. Nothing
  /// where there is none at all. Throws CollectiveError where there are some and none can be used.
  std::optional<RestoredState> restore_newest(Communicator& world);
  /// COLLECTIVE: goes on from the checkpoint in `path`, or from the newest in the run or folder of checkpoints that
  /// `path` names. Throws CollectiveError: damaged, of another model, or of another configuration without permission.
  RestoredState restore(Communicator& world, const std::string& path);

 private:
  std::string write(int64_t step);
  Manifest make_manifest(int64_t step) const;
  /// COLLECTIVE: what rank 0 chooses, on every rank; its errors reach all.
  std::string first_ranks_choice(Communicator& world, const std::function<std::string()>& choose);
  /// COLLECTIVE: every rank loads `path`, then they make sure that it was the same.
  RestoredState load_on_all(Communicator& world, const std::string& path);
  void load(const std::string& path);
  void check_configuration(const Manifest& manifest) const;
  std::optional<std::string> newest_below(const std::string& directory) const;
  void tell(const std::string& message) const;

  std::string directory_;          // empty: nothing is written
  Worker& worker_;
  Message on_message_;
  std::string run_id_;
  int64_t restored_step_ = 0;
};

}  // namespace lockstep
