#include "base/file_system.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/file_size_limit.h"
#include "base/text.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(const char* action, const std::string& path, int error) {
  throw_io_error(action, path, path, error);
}

class PosixFile : public WritableFile {
 public:
  explicit PosixFile(const std::string& path)
      : path_(path), descriptor_(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666)) {
    if (descriptor_ < 0) fail("create", path, errno);
  }
  ~PosixFile() override {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  void write(const void* data, size_t size_bytes) override {
    const auto* bytes = static_cast<const std::byte*>(data);
    while (size_bytes > 0) {
      const ssize_t wrote = ::write(descriptor_, bytes, std::min(size_bytes, size_t{1} << 30));
      if (wrote < 0 && errno == EINTR) continue;
      if (wrote < 0) fail("write", path_, errno);
      bytes += wrote;
      size_bytes -= static_cast<size_t>(wrote);
    }
  }
  void sync() override {
    if (fsync(descriptor_) != 0) fail("write", path_, errno);
  }
  void close() override {
    const int descriptor = std::exchange(descriptor_, -1);
    if (::close(descriptor) != 0) fail("close", path_, errno);
  }

 private:
  std::string path_;
  int descriptor_;
};

class PosixFileSystem : public FileSystem {
 public:
  void make_directory(const std::string& path) override {
    const fs::path directory(path);
    std::error_code error;
    if (fs::is_directory(directory, error)) return;
    const fs::path parent = directory.parent_path();
    if (!parent.empty() && parent != directory) make_directory(parent.string());
    if (!fs::create_directory(directory, error) && error)
      fail("make the folder", path, error == std::errc::file_exists ? ENOTDIR : error.value());
    sync_directory(parent.empty() ? "." : parent.string());
  }
  std::unique_ptr<WritableFile> create(const std::string& path) override {
    return std::make_unique<PosixFile>(path);
  }
  void sync_directory(const std::string& path) override {
    const int descriptor = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (descriptor < 0) fail("open the folder", path, errno);
    const int error = fsync(descriptor) == 0 ? 0 : errno;
    ::close(descriptor);
    // Some network file systems cannot sync folders and say so; there is nothing better to be had from them.
    if (error != 0 && error != EINVAL && error != ENOTSUP) fail("sync the folder", path, error);
  }
  void rename(const std::string& from, const std::string& to) override {
    if (std::rename(from.c_str(), to.c_str()) != 0)
      throw_io_error("rename", fmt::format("{} to {}", from, to), to, errno);
  }
  void remove_all(const std::string& path) override {
    std::error_code error;
    fs::remove_all(path, error);
    if (error) fail("remove", path, error.value());
  }
  int64_t free_bytes(const std::string& path) override {
    struct statvfs disk {};
    if (statvfs(path.c_str(), &disk) != 0) fail("ask for the free space of", path, errno);
    return static_cast<int64_t>(disk.f_bavail * disk.f_frsize);
  }
};

}  // namespace

void throw_io_error(std::string_view action, const std::string& what, const std::string& path, int error) {
  std::string message = fmt::format("cannot {} {}: {}", action, what, std::strerror(error));
  if (error == ENOSPC || error == EDQUOT) {
    fs::path folder(path);
    struct statvfs disk {};
    while (statvfs(folder.empty() ? "." : folder.c_str(), &disk) != 0 && folder.has_relative_path())
      folder = folder.parent_path();  // what could not be made is not there to be asked
    message += fmt::format(
        " ({} free there); free some space, keep fewer checkpoints, or choose another output folder",
        human_bytes(static_cast<int64_t>(disk.f_bavail * disk.f_frsize)));
  }
  if (error == EFBIG) message += "; " + file_size_advice();
  throw IoError(message);
}

FileSystem& posix_file_system() {
  static PosixFileSystem file_system;
  return file_system;
}

std::vector<std::string> list_directory(const std::string& path) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(path, error), end; !error && entry != end; entry.increment(error))
    names.push_back(entry->path().filename().string());
  if (error) fail("read the folder", path, error.value());
  std::sort(names.begin(), names.end());
  return names;
}

bool path_exists(const std::string& path) {
  std::error_code error;
  return fs::exists(path, error);
}

}  // namespace lockstep
