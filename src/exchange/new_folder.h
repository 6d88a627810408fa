#pragma once

#include <string>

#include "base/file_system.h"

namespace lockstep::exchange {

/// A folder that is not there under its own name before it is complete: its files are written beside it, into
/// `<path>.unfinished`, which takes its name at the end. Without finish() nothing is left, unless the
/// process is killed.
class NewFolder {
 public:
  /// Throws ConfigError if `path` is the current folder, if anything but an empty folder is there, or if
  /// anything is at unfinished(): nothing that was there before is ever removed.
  NewFolder(std::string path, FileSystem& files);
  ~NewFolder();
  NewFolder(const NewFolder&) = delete;

  /// Where it will be, absolute.
  const std::string& path() const { return path_; }
  /// Where it is until then.
  std::string unfinished() const { return path_ + ".unfinished"; }
  std::string file(const std::string& name) const { return unfinished() + "/" + name; }
  void write(const std::string& name, const std::string& text);
  /// Once. Throws IoError.
  void finish();

 private:
  std::string path_;
  FileSystem& files_;
  bool finished_ = false;
};

}  // namespace lockstep::exchange
