#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/file_system.h"
#include "checkpoint/checkpoint_share.h"
#include "control/mailbox.h"
#include "control/progress.h"
#include "train/checkpoints/reported_file_system.h"

namespace lockstep::train {

struct CheckpointSaverOptions {
  std::string directory;                  ///< of checkpoints
  int keep = 0;                           ///< 0: all
  control::Mailbox* mailbox = nullptr;    ///< outlives the saver
  std::vector<int> writers;               ///< ranks besides 0 that have a share; rank 0 waits for these only
  FileSystem* files = nullptr;            ///< outlives the saver
  control::Progress* progress = nullptr;  ///< may be null
  /// How long rank 0 waits for the reports of other ranks, and then for the disk. Other ranks wait twice as
  /// long for rank 0.
  std::chrono::milliseconds patience{600000};
};

/// One rank's background thread, which writes its share of a checkpoint while training continues. Rank 0
/// collects the reports of all ranks, commits, and tells all ranks the outcome:
///
///     rank 0   training    snapshot, begin()  |        | training goes on ...
///              background                     |agreed: | writes | collects     commits | tells
///     rank 1   training    snapshot           |start() | training goes on ...
///              background                     |        | writes   reports              | hears
///
/// begin() comes before the agreement and start() after it, so that no rank writes into a folder that does
/// not exist yet. Every rank's save ends: by the outcome, or when its patience ends. At most one save is in
/// flight. Thread-safety: used by one thread.
class CheckpointSaver {
 public:
  explicit CheckpointSaver(const CheckpointSaverOptions& options);
  ~CheckpointSaver();  ///< waits for the save in flight
  CheckpointSaver(const CheckpointSaver&) = delete;

  /// Starts this rank's part. All ranks start the same saves in the same order. `share` borrows memory that
  /// must not change until the save is settled. `manifest`, without files and hashes, is used on rank 0.
  /// REQUIRES: settled().
  void start(checkpoint::CheckpointShare share, checkpoint::Manifest manifest);
  bool settled() const { return !thread_.joinable(); }
  /// The outcome of the save, once it has ended. Nothing before, or if no save is in flight.
  std::optional<checkpoint::SaveOutcome> poll();
  /// Waits for the save in flight and returns its outcome. Nothing if there is none.
  std::optional<checkpoint::SaveOutcome> settle();

 private:
  void save(const checkpoint::CheckpointShare& share, checkpoint::Manifest manifest);
  checkpoint::SaveOutcome collect_and_commit(checkpoint::CheckpointWriter& writer,
                                             checkpoint::Manifest manifest, checkpoint::ShareReport own);
  checkpoint::SaveOutcome report_and_wait(int64_t step, const checkpoint::ShareReport& own);
  void send(int to, const char* topic, const std::string& text);
  /// A whole text of this save, from any rank; nothing if none has come by `deadline`.
  std::optional<control::Mailbox::Message> receive(const char* topic, Deadline deadline);
  void join_writer();
  void enter(control::Activity activity);

  CheckpointSaverOptions options_;
  ReportedFileSystem files_;
  int64_t number_ = 0;  // of the save, the same on all ranks: tells its messages from those of earlier ones
  std::map<int, std::string> pieces_;  // of texts that are not whole yet, by sender
  checkpoint::SaveOutcome outcome_;    // the thread's until done_
  std::atomic<bool> done_ = false;
  std::thread thread_;
};

}  // namespace lockstep::train
