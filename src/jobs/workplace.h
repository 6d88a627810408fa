#pragma once

#include <string>

namespace lockstep::jobs {

/// The folder in which a command's child processes write: the requested one, or a temporary one, which is
/// removed with this object unless keep() is called.
class Workplace {
 public:
  /// `directory`: the requested folder, empty or not existing yet; "" for a temporary one, named after
  /// `command`. Throws ConfigError if it is not empty, IoError if it cannot be made.
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

/// The end of a child's output; lines after the first are indented.
std::string last_lines(const std::string& text, size_t most);

}  // namespace lockstep::jobs
