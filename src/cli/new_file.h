#pragma once

#include <string>
#include <string_view>

namespace lockstep::cli {

/// A file that must not exist before, so that no config is overwritten. It is made at once, so that the work
/// for it is not in vain, and removed if nothing is written.
class NewFile {
 public:
  /// `option`: the option that asked for it, for messages. Throws ConfigError if it cannot be made.
  NewFile(std::string option, std::string path);
  ~NewFile();
  NewFile(const NewFile&) = delete;

  /// The whole of it, once. Throws IoError if it cannot be written.
  void write(std::string_view text) {
    append(text);
    finish();
  }
  /// In parts: all of them, then finish(), without which the file is removed.
  void append(std::string_view text);
  void finish();

 private:
  [[noreturn]] void fail() const;

  std::string option_, path_;
  int file_ = -1;
};

}  // namespace lockstep::cli
