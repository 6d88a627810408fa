#include "observe/sinks/append_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/ensure.h"
#include "base/file_size_limit.h"
#include "lockstep/error.h"

namespace lockstep::observe {
namespace {

[[noreturn]] void fail(const std::string& what, const std::string& path, int error) {
  const std::string advice = error == ENOSPC || error == EDQUOT ? "; free some space, then resume"
                             : error == EFBIG                   ? "; " + file_size_advice()
                                                                : "";
  throw IoError(fmt::format("cannot {} {}: {}{}", what, path, std::strerror(error), advice));
}

/// 0, or the error that stopped it.
int write_all(int file, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(file, text.data(), text.size());
    if (written < 0 && errno != EINTR) return errno;
    if (written > 0) text.remove_prefix(static_cast<size_t>(written));
  }
  return 0;
}

int sync_file(int file) {
  if (::fsync(file) == 0) return 0;
  // A pipe or a device holds nothing back that could be lost.
  return errno == EINVAL || errno == EROFS ? 0 : errno;
}

}  // namespace

AppendFile::~AppendFile() {
  if (file_ >= 0) ::close(file_);
}

void AppendFile::open(const std::string& path, Start start) {
  if (file_ >= 0) ::close(std::exchange(file_, -1));
  path_ = path;
  const int how = start == Start::anew ? O_TRUNC : start == Start::exclusive ? O_EXCL : 0;
  file_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | how, 0666);
  if (file_ < 0) fail("open", path_, errno);
  struct stat found {};
  size_bytes_ = ::fstat(file_, &found) == 0 ? found.st_size : 0;
}

void AppendFile::append(std::string_view text) {
  ensure(file_ >= 0, "a file is written to that is not open");
  if (const int error = write_all(file_, text)) {
    // A part of a line would spoil the next one. Where even this fails, whoever resumes drops it.
    [[maybe_unused]] const int cut = ::ftruncate(file_, size_bytes_);
    fail("write", path_, error);
  }
  size_bytes_ += static_cast<int64_t>(text.size());
}

void AppendFile::sync() {
  ensure(file_ >= 0, "a file is synced that is not open");
  if (const int error = sync_file(file_)) fail("write", path_, error);
}

void AppendFile::close() {
  sync();
  if (::close(std::exchange(file_, -1)) != 0) fail("close", path_, errno);
}

void AppendFile::discard() noexcept {
  if (file_ < 0) return;
  ::close(std::exchange(file_, -1));
  ::unlink(path_.c_str());
}

void replace_file(const std::string& path, std::string_view text) {
  const std::string temporary = path + ".tmp";
  const int file = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (file < 0) fail("open", temporary, errno);
  int error = write_all(file, text);
  if (!error) error = sync_file(file);
  if (::close(file) != 0 && !error) error = errno;
  if (!error && std::rename(temporary.c_str(), path.c_str()) != 0) error = errno;
  if (error) {
    ::unlink(temporary.c_str());
    fail("write", temporary, error);
  }
  // The name is on the disk only once its folder is.
  const std::string parent = std::filesystem::path(path).parent_path().string();
  const int folder = ::open(parent.empty() ? "." : parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) fail("open the folder of", path, errno);
  error = sync_file(folder);
  ::close(folder);
  if (error) fail("sync the folder of", path, error);
}

}  // namespace lockstep::observe
