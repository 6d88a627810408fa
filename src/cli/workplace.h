#pragma once

#include <string>

namespace lockstep::cli {

/// Where the children of a command write: the folder that was asked for, or a temporary one, which is removed
/// with this object unless there is something in it to see.
class Workplace {
 public:
  /// `directory`: as asked for, empty or not there yet; "" for a temporary one, named after `command`. Throws
  /// ConfigError where it is not empty, IoError if it cannot be made.
  Workplace(const std::string& command, const std::string& directory);
  ~Workplace();
  Workplace(const Workplace&) = delete;

  const std::string& path() const { return path_; }
  void keep() { kept_ = true; }
  bool kept() const { return kept_ || !temporary_; }

 private:
  std::string path_;
  bool temporary_, kept_ = false;
};

/// The end of what a child said, its lines indented after the first.
std::string last_lines(const std::string& text, size_t most);

}  // namespace lockstep::cli
