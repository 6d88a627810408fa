#pragma once

#include <memory>
#include <string>

#include "checkpoint/file_system.h"
#include "control/progress.h"

namespace lockstep::train {

/// Another file system, whose every operation is seen in a slot of Progress: so the watchdog knows a disk
/// that does not answer from one that is slow. Thread-safety: the one thread that writes the slot.
class ReportedFileSystem : public checkpoint::FileSystem {
 public:
  /// `files` must outlive it, and `progress`, which may be null.
  ReportedFileSystem(checkpoint::FileSystem& files, control::Progress* progress, int slot)
      : files_(files), progress_(progress), slot_(slot) {}

  void make_directory(const std::string& path) override;
  std::unique_ptr<checkpoint::WritableFile> create(const std::string& path) override;
  void sync_directory(const std::string& path) override;
  void rename(const std::string& from, const std::string& to) override;
  void remove_all(const std::string& path) override;
  int64_t free_bytes(const std::string& path) override;

 private:
  class File;
  void report();

  checkpoint::FileSystem& files_;
  control::Progress* progress_;
  int slot_;
  int operations_ = 0;
};

}  // namespace lockstep::train
