#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep::observe {

/// A file that grows. Every failure throws IoError, which names the path and, if the disk is full, what to
/// do.
class AppendFile {
 public:
  enum class Start { anew, keep, exclusive };  ///< exclusive: there is no such file yet

  AppendFile() = default;
  ~AppendFile();
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  /// Closes what was open.
  void open(const std::string& path, Start start);
  /// All of `text` or, if that fails, none of it.
  void append(std::string_view text);
  void sync();
  void close();
  void discard() noexcept;  ///< closes and removes it
  bool is_open() const { return file_ >= 0; }

 private:
  std::string path_;
  int file_ = -1;
  int64_t size_bytes_ = 0;
};

/// Replaces the file as a whole, durably: a crash leaves the old one or the new one.
void replace_file(const std::string& path, std::string_view text);

}  // namespace lockstep::observe
