#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "checkpoint/checkpoint.h"
#include "checkpoint/checkpoint_share.h"
#include "checkpoint/file_system.h"
#include "comm/communicator.h"
#include "control/mailbox.h"
#include "control/progress.h"
#include "optim/loss_scaling.h"
#include "train/checkpoints/checkpoint_saver.h"
#include "train/checkpoints/evaluation_history.h"
#include "train/checkpoints/reported_file_system.h"
#include "train/worker/worker.h"

namespace lockstep::train {

/// What a training is besides its tensors and its step.
struct TrainingProgress {
  bool pending_evaluation = false;  ///< one is due after the step, and is not done
  int64_t skipped_steps = 0;        ///< steps that updated nothing, their gradients not being finite
  int64_t overflowed_steps = 0;     ///< of these, those that lowered the scale of the loss
  int64_t optimizer_updates = 0;    ///< that optimizer state has seen, each worker's push one where it is
  optim::LossScalingState loss_scaling;  ///< scale 0 where losses are not scaled
  EvaluationHistory evaluations;
  bool operator==(const TrainingProgress&) const = default;
};

/// Where a resumed run goes on.
struct RestoredState {
  RunPosition position;
  std::string path;
  TrainingProgress progress;
};

struct RunCheckpointsOptions {
  std::string output_directory;  ///< of the run, the same on all ranks' hosts; empty: nothing is saved
  /// By which writers talk in the background; null: saves are complete when save() returns. Outlives the
  /// checkpoints.
  control::Mailbox* mailbox = nullptr;
  control::Progress* progress = nullptr;  ///< may be null; outlives the checkpoints
  checkpoint::FileSystem* files = &checkpoint::posix_file_system();
  /// On rank 0, before anything of a checkpoint of `step` is written: makes durable what must not be older
  /// than it. What it throws makes the save fail. May be empty.
  std::function<void(int64_t step)> before_write;
  std::function<void(const std::string&)> on_message;  ///< for people; may be empty
  bool parameters_alone = false;  ///< what is restored is evaluated, so that nothing but the model counts
};

/// A run's checkpoints: a worker's tensors to and from `<output_directory>/checkpoints`. Every rank writes
/// its share and reads everything, so the folder must be the same for all of them.
class RunCheckpoints {
 public:
  /// `worker` must outlive it.
  RunCheckpoints(Worker& worker, RunCheckpointsOptions options);

  /// Waits for the save under way; from here on saves are of `worker`, and writers talk by `mailbox`.
  void follow(Worker& worker, control::Mailbox* mailbox);

  /// COLLECTIVE: waits for the save under way, takes a snapshot in the boundary program, and begins to write
  /// it; training may go on at once. Where the config wants no background, the save is settled when this
  /// returns. How it went is for poll() to tell, also where it could not begin, for whatever reason. Where
  /// anything to be saved is not finite, every rank throws a CollectiveError. Older checkpoints stay as they
  /// were whatever happens.
  void save(comm::Communicator& world, int64_t step, const TrainingProgress& progress = {});
  /// How a save ended, oldest first, each once; nothing where none has ended. Does not wait, so that ranks
  /// may hear of one outcome at different steps; they all hear the same, unless one gives up waiting for the
  /// others.
  std::optional<checkpoint::SaveOutcome> poll();
  /// Waits until no save is under way; poll() tells all outcomes then.
  void settle();

  /// COLLECTIVE: goes on from the newest complete checkpoint of this run; damaged ones are reported by name.
  /// Nothing where there is none at all. Throws CollectiveError where there are some and none can be used.
  std::optional<RestoredState> restore_newest(comm::Communicator& world);
  /// COLLECTIVE: goes on from the checkpoint in `path`, or from the newest in the run or folder of
  /// checkpoints that `path` names. Throws CollectiveError: damaged, of another model, or of another
  /// configuration without permission.
  RestoredState restore(comm::Communicator& world, const std::string& path);

 private:
  /// Throws where anything of the snapshot of `step` is not finite.
  void require_finite_snapshot(int64_t step) const;
  /// On rank 0: makes the folder that all write into.
  void begin(int64_t step);
  checkpoint::CheckpointShare own_share() const;
  /// COLLECTIVE: the save without threads.
  checkpoint::SaveOutcome save_in_foreground(comm::Communicator& world,
                                             const checkpoint::CheckpointShare& share,
                                             checkpoint::Manifest manifest);
  checkpoint::Manifest make_manifest(int64_t step, const TrainingProgress& progress) const;
  /// COLLECTIVE: what rank 0 chooses, on every rank; its errors reach all.
  std::string first_ranks_choice(comm::Communicator& world, const std::function<std::string()>& choose);
  /// COLLECTIVE: every rank loads `path`, then they make sure that it was the same.
  RestoredState load_on_all(comm::Communicator& world, const std::string& path);
  void load(const std::string& path);
  void check_configuration(const checkpoint::Manifest& manifest) const;
  void check_model(const checkpoint::Manifest& manifest) const;
  /// What of its evaluations counts for the run that goes on from it.
  EvaluationHistory history_of(const checkpoint::Manifest& manifest) const;
  /// The checkpoint of the lowest evaluation loss of a run, or of a folder of checkpoints.
  std::string best_of(const std::string& run) const;
  std::optional<std::string> newest_below(const std::string& directory) const;
  /// Another piece of the restoring begins, with a limit of its own.
  void read_on() const;
  void make_saver();
  void tell(const std::string& message) const;
  std::chrono::milliseconds patience() const;

  Worker* worker_;
  RunCheckpointsOptions options_;
  ReportedFileSystem files_;  // for the training thread
  std::string directory_;     // of checkpoints
  std::string run_id_;
  RestoredState restored_;
  uint64_t saved_hash_ = 0;  // of what was loaded, as its manifest has it: parameters, or all state
  std::deque<checkpoint::SaveOutcome> outcomes_;  // that poll() has not told yet
  std::unique_ptr<CheckpointSaver> saver_;        // null: saves in the foreground
};

}  // namespace lockstep::train
