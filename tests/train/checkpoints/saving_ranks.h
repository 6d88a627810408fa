#pragma once

#include <memory>
#include <string>
#include <vector>

#include "checkpoint/checkpoint_testing.h"
#include "control/mailbox.h"
#include "train/checkpoints/checkpoint_saver.h"

namespace lockstep::test {

/// What each of three ranks saves of a SmallState: rank 0 the weight and its state, rank 1 the bias, rank 2
/// nothing.
inline checkpoint::CheckpointShare share_of(const SmallState& state, int rank) {
  const auto parameters = state.parameters();
  checkpoint::CheckpointShare share;
  if (rank == 0) share = {{parameters[0]}, state.state(), {1, 2}, {1, 1}};
  if (rank == 1) share = {{parameters[1]}, {}, {2, 2}, {0, 1}};
  return share;
}

/// Three ranks' savers in one process, as RunCheckpoints uses them.
class SavingRanks {
 public:
  static constexpr int kRanks = 3;

  /// `files`: by rank; outlive this.
  SavingRanks(const std::string& directory, std::vector<FileSystem*> files, int keep,
              std::chrono::milliseconds patience = std::chrono::minutes(2))
      : directory_(directory), files_(std::move(files)) {
    for (int rank = 0; rank < kRanks; ++rank)
      savers_.push_back(std::make_unique<train::CheckpointSaver>(
          train::CheckpointSaverOptions{.directory = directory,
                                        .keep = keep,
                                        .mailbox = mailboxes_[static_cast<size_t>(rank)].get(),
                                        .writers = {1, 2},
                                        .files = files_[static_cast<size_t>(rank)],
                                        .progress = &progress_[static_cast<size_t>(rank)],
                                        .patience = patience}));
  }

  /// `state` stays as it is until settle().
  void start(int64_t step, const SmallState& state) {
    checkpoint::CheckpointWriter(directory_, step, *files_[0]).begin();
    for (int rank = 0; rank < kRanks; ++rank)
      savers_[static_cast<size_t>(rank)]->start(share_of(state, rank), state.manifest(step));
  }
  /// By rank.
  std::vector<checkpoint::SaveOutcome> settle() {
    std::vector<checkpoint::SaveOutcome> outcomes;
    for (auto& saver : savers_) outcomes.push_back(saver->settle().value());
    return outcomes;
  }
  /// Where the start fails, that is every rank's outcome.
  std::vector<checkpoint::SaveOutcome> save(int64_t step, const SmallState& state) {
    try {
      start(step, state);
    } catch (const std::exception& error) {
      return std::vector<checkpoint::SaveOutcome>(
          kRanks, {.step = step, .path = "", .error = error.what(), .code = ExitCode::disk});
    }
    return settle();
  }

  control::Mailbox& mailbox(int rank) { return *mailboxes_[static_cast<size_t>(rank)]; }
  train::CheckpointSaver& saver(int rank) { return *savers_[static_cast<size_t>(rank)]; }
  control::Progress& progress(int rank) { return progress_[static_cast<size_t>(rank)]; }
  control::Progress::Entry writer(int rank) const {
    return progress_[static_cast<size_t>(rank)].at(control::Progress::kWriterSlot);
  }

 private:
  std::string directory_;
  std::vector<FileSystem*> files_;
  std::vector<std::unique_ptr<control::Mailbox>> mailboxes_ = control::make_local_mailboxes(kRanks);
  control::Progress progress_[kRanks];
  std::vector<std::unique_ptr<train::CheckpointSaver>> savers_;
};

}  // namespace lockstep::test
