#pragma once

#include <string>
#include <string_view>

namespace lockstep::cli {

/// A file that was not there before: a config that lay there would be lost. It is made at once, so that what
/// is found out for it is not in vain, and goes again where nothing is written.
class NewFile {
 public:
  /// `option` is what asked for it, as messages name it. Throws ConfigError if it cannot be made.
  NewFile(std::string option, std::string path);
  ~NewFile();
  NewFile(const NewFile&) = delete;

  /// Once. Throws IoError if it cannot be written.
  void write(std::string_view text);

 private:
  [[noreturn]] void fail() const;

  std::string option_, path_;
  int file_ = -1;
};

}  // namespace lockstep::cli
