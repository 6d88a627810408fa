#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/file_system.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/checkpoint_share.h"
#include "comm/communicator.h"
#include "control/mailbox.h"
#include "control/progress.h"
#include "optim/loss_scaling.h"
#include "train/checkpoints/checkpoint_saver.h"
#include "train/checkpoints/evaluation_history.h"
#include "train/checkpoints/reported_file_system.h"
#include "train/checkpoints/residual_change.h"
#include "train/checkpoints/starting_weights.h"
#include "train/worker/worker.h"

namespace lockstep::train {

/// The state of a training besides its tensors and its step.
struct TrainingProgress {
  bool pending_evaluation = false;  ///< an evaluation is due after the step and not done
  int64_t skipped_steps = 0;        ///< steps without an update, because gradients were not finite
  int64_t overflowed_steps = 0;     ///< of these, steps that lowered the loss scale
  int64_t optimizer_updates = 0;    ///< updates of optimizer state; with mode=async each push is one
  std::map<std::string, int64_t> learning_since = {};  ///< Worker::learning_since
  optim::LossScalingState loss_scaling;                ///< scale 0 if losses are not scaled
  EvaluationHistory evaluations;
  bool operator==(const TrainingProgress&) const = default;
};

/// Where a resumed run continues.
struct RestoredState {
  RunPosition position;
  std::string path;
  TrainingProgress progress;
};

struct RunCheckpointsOptions {
  std::string output_directory;  ///< of the run, the same on all ranks' hosts; empty: nothing is saved
  /// Writers communicate by it in the background. Null: saves are complete when save() returns. Outlives the
  /// checkpoints.
  control::Mailbox* mailbox = nullptr;
  control::Progress* progress = nullptr;  ///< may be null; outlives the checkpoints
  FileSystem* files = &posix_file_system();
  /// Called on rank 0 before a checkpoint of `step` is written: makes durable what must not be older than the
  /// checkpoint. If it throws, the save fails. May be empty.
  std::function<void(int64_t step)> before_write;
  std::function<void(const std::string&)> on_message;  ///< for people; may be empty
  bool parameters_alone = false;  ///< the restored state is only evaluated, so that only the model matters
  bool averages = false;          ///< then moving averages take the places of parameters
};

/// A run's checkpoints: saves a worker's tensors to `<output_directory>/checkpoints` and restores them. Every
/// rank writes its share and reads everything, so all ranks must see the same folder.
class RunCheckpoints {
 public:
  /// `worker` must outlive it.
  RunCheckpoints(Worker& worker, RunCheckpointsOptions options);

  /// Waits for the save in flight. Later saves are of `worker`, and writers communicate by `mailbox`.
  void follow(Worker& worker, control::Mailbox* mailbox);

  /// COLLECTIVE: waits for the save in flight, takes a snapshot in the boundary program, and begins to write
  /// it. Training may continue at once. If the config disables background writing, the save is settled on
  /// return. poll() tells the outcome, also if the save could not begin. If anything to be saved is not
  /// finite, every rank throws a CollectiveError. Older checkpoints never change.
  void save(comm::Communicator& world, int64_t step, const TrainingProgress& progress = {});
  /// Outcomes of saves, oldest first, each once; nothing if no save has ended. Does not wait, so ranks may
  /// learn an outcome at different steps. All ranks get the same outcome, unless one gives up waiting for the
  /// others.
  std::optional<checkpoint::SaveOutcome> poll();
  /// Waits until no save is in flight; then poll() tells all outcomes.
  void settle();
  /// Checkpoints say where the run's first weights came from. Those of a resumed run say what its checkpoint
  /// said.
  void began_with(StartingWeights weights) { weights_ = std::move(weights); }
  /// Of this run and those that it resumes.
  const std::string& run_id() const { return run_id_; }

  /// COLLECTIVE: resumes from the newest complete checkpoint of this run; damaged ones are reported by name.
  /// Nothing if there are no checkpoints. Throws CollectiveError if there are some but none can be used.
  std::optional<RestoredState> restore_newest(comm::Communicator& world);
  /// COLLECTIVE: resumes from the checkpoint `path`, or from the newest one if `path` is a run or a folder of
  /// checkpoints. Throws CollectiveError if it is damaged, of another model, or of another configuration
  /// without permission.
  RestoredState restore(comm::Communicator& world, const std::string& path);

 private:
  /// Throws if anything in the snapshot of `step` is not finite.
  void require_finite_snapshot(int64_t step) const;
  /// On rank 0: makes the folder that all ranks write into.
  void begin(int64_t step);
  checkpoint::CheckpointShare own_share() const;
  /// COLLECTIVE: the save without threads.
  checkpoint::SaveOutcome save_in_foreground(comm::Communicator& world,
                                             const checkpoint::CheckpointShare& share,
                                             checkpoint::Manifest manifest);
  checkpoint::Manifest make_manifest(int64_t step, const TrainingProgress& progress) const;
  /// COLLECTIVE: returns rank 0's choice on every rank. All ranks throw its errors.
  std::string first_ranks_choice(comm::Communicator& world, const std::function<std::string()>& choose);
  /// COLLECTIVE: every rank loads `path`, then they check that all have loaded the same.
  RestoredState load_on_all(comm::Communicator& world, const std::string& path);
  /// COLLECTIVE: on rank 0, the hash of what was loaded, as the checkpoint's manifest tells it; likewise on
  /// the others, if they know it.
  std::optional<uint64_t> loaded_hash(comm::Communicator& world) const;
  /// Returns the parameters that were frozen in the checkpoint.
  std::set<std::string> load_state(const checkpoint::Checkpoint& checkpoint,
                                   const checkpoint::BeforeRead& before_read);
  void load_residuals(const checkpoint::Checkpoint& checkpoint, const ResidualChange& change,
                      const checkpoint::BeforeRead& before_read);
  std::map<std::string, int64_t> learning_since(const checkpoint::Manifest& manifest, int64_t updates,
                                                const std::set<std::string>& anew) const;
  void load_averages(const std::string& path);
  void load(const std::string& path);
  void check_configuration(const checkpoint::Manifest& manifest) const;
  void check_model(const checkpoint::Manifest& manifest) const;
  /// The part of its evaluations that counts for a run that resumes from it.
  EvaluationHistory history_of(const checkpoint::Manifest& manifest) const;
  /// Marks the beginning of another part of restoring, which has its own time limit.
  void read_on() const;
  void make_saver();
  void tell(const std::string& message) const;
  std::chrono::milliseconds patience() const;

  Worker* worker_;
  RunCheckpointsOptions options_;
  ReportedFileSystem files_;  // for the training thread
  std::string directory_;     // of checkpoints
  std::string run_id_;
  StartingWeights weights_;
  RestoredState restored_;
  /// How the optimizer state of what was loaded differs from the checkpoint's, as the config explains.
  struct OtherState {
    std::set<std::string> missing;                            // there: begun afresh
    std::vector<std::pair<std::string, uint64_t>> left_over;  // here: their hashes, on rank 0
  };
  std::optional<OtherState> other_state_;
  uint64_t saved_hash_ = 0;  // of what was loaded, as its manifest has it: parameters, or all state
  std::deque<checkpoint::SaveOutcome> outcomes_;  // that poll() has not told yet
  std::unique_ptr<CheckpointSaver> saver_;        // null: saves in the foreground
};

}  // namespace lockstep::train
