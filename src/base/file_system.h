#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

/// A file being written. Destroying it without close() leaves whatever reached the disk.
class WritableFile {
 public:
  virtual ~WritableFile() = default;
  virtual void write(const void* data, size_t size_bytes) = 0;
  virtual void sync() = 0;   ///< returns when the contents would survive a power failure
  virtual void close() = 0;  ///< some file systems report a failed write only here
};

/// The file operations of what must survive a crash, such as checkpoints and packed records. It is an
/// interface so that tests can fail or crash at each of them. All methods throw IoError, which names the
/// path, the reason and, if the disk is full, the free space.
class FileSystem {
 public:
  virtual ~FileSystem() = default;
  /// Makes a folder and those above it, durably, unless it exists.
  virtual void make_directory(const std::string& path) = 0;
  virtual std::unique_ptr<WritableFile> create(
      const std::string& path) = 0;  ///< replaces a file of that name
  virtual void sync_directory(
      const std::string& path) = 0;  ///< makes entries made, renamed and removed in it durable
  virtual void rename(const std::string& from, const std::string& to) = 0;  ///< REQUIRES: `to` does not exist
  virtual void remove_all(const std::string& path) = 0;
  virtual int64_t free_bytes(const std::string& path) = 0;
};

/// The real one. Stateless.
FileSystem& posix_file_system();

/// Throws the IoError of an operation that failed with `error` (an errno): "cannot <action> <what>:
/// <reason>" and, if the disk is full, the free space at `path` and what to do.
[[noreturn]] void throw_io_error(std::string_view action, const std::string& what, const std::string& path,
                                 int error);

/// Names within a folder, sorted. Throws IoError.
std::vector<std::string> list_directory(const std::string& path);
bool path_exists(const std::string& path);

}  // namespace lockstep
