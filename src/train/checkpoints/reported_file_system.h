#pragma once

#include <memory>
#include <string>

#include "base/file_system.h"
#include "control/progress.h"

namespace lockstep::train {

/// Wraps a file system and reports each of its operations in a slot of Progress. So the watchdog can tell a
/// disk that does not answer from a slow one. Thread-safety: only the thread that writes the slot.
class ReportedFileSystem : public FileSystem {
 public:
  /// `files` and `progress`, which may be null, must outlive it.
  ReportedFileSystem(FileSystem& files, control::Progress* progress, int slot)
      : files_(files), progress_(progress), slot_(slot) {}

  void make_directory(const std::string& path) override;
  std::unique_ptr<WritableFile> create(const std::string& path) override;
  void sync_directory(const std::string& path) override;
  void rename(const std::string& from, const std::string& to) override;
  void remove_all(const std::string& path) override;
  int64_t free_bytes(const std::string& path) override;

 private:
  class File;
  void report();

  FileSystem& files_;
  control::Progress* progress_;
  int slot_;
  int operations_ = 0;
};

}  // namespace lockstep::train
