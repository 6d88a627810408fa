#include "cli/new_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "lockstep/error.h"

namespace lockstep::cli {

NewFile::NewFile(std::string option, std::string path) : option_(std::move(option)), path_(std::move(path)) {
  file_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (file_ < 0)
    throw ConfigError(fmt::format(
        "{} {}: {}", option_, path_,
        errno == EEXIST ? "is there already; remove it, or name another file" : std::strerror(errno)));
}

NewFile::~NewFile() {
  if (file_ < 0) return;
  ::close(file_);
  ::unlink(path_.c_str());
}

void NewFile::append(std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(file_, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) fail();
    text.remove_prefix(static_cast<size_t>(written));
  }
}

void NewFile::finish() {
  if (::close(std::exchange(file_, -1)) == 0) return;
  const int error = errno;
  ::unlink(path_.c_str());
  errno = error;
  fail();
}

void NewFile::fail() const {
  throw IoError(fmt::format("{} {}: cannot write: {}", option_, path_, std::strerror(errno)));
}

}  // namespace lockstep::cli
