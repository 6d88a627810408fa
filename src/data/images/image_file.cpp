#include "data/images/image_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "data/file_list.h"
#include "lockstep/error.h"

namespace lockstep::data {
namespace {

int64_t nanoseconds(const timespec& time) { return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec; }

FileStamp stamp_of(const struct stat& info) {
  return {.size_bytes = info.st_size,
          .changed_ns = nanoseconds(info.st_mtim),
          .status_ns = nanoseconds(info.st_ctim),
          .inode = info.st_ino};
}

}  // namespace

std::optional<FileStamp> file_stamp(const std::string& path) {
  struct stat now {};
  if (::stat(path.c_str(), &now) != 0 || !S_ISREG(now.st_mode)) return {};
  return stamp_of(now);
}

ImageFile::ImageFile(const std::string& path) : path_(path) {
  // Without O_NONBLOCK opening a pipe would wait for its writer, perhaps for ever.
  descriptor_ = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  struct stat info {};
  if (descriptor_ < 0 || ::fstat(descriptor_, &info) != 0) {
    const std::string reason = std::strerror(errno);
    if (descriptor_ >= 0) ::close(descriptor_);
    throw IoError(fmt::format("cannot open {}: {}", one_line(path), reason));
  }
  if (!S_ISREG(info.st_mode)) {
    ::close(descriptor_);
    throw IoError(fmt::format("cannot read {}: it is not a regular file", one_line(path)));
  }
  stamp_ = stamp_of(info);
}

ImageFile::~ImageFile() { ::close(descriptor_); }

bool ImageFile::is_unchanged() const {
  struct stat now {};
  if (::fstat(descriptor_, &now) != 0) return false;
  const FileStamp stamp = stamp_of(now);
  return stamp.size_bytes == size_bytes() && stamp.changed_ns == changed_ns();
}

int64_t ImageFile::read(int64_t offset, std::span<uint8_t> destination) const {
  int64_t done = 0;
  while (done < static_cast<int64_t>(destination.size())) {
    const auto got = ::pread(descriptor_, destination.data() + done,
                             destination.size() - static_cast<size_t>(done), offset + done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw IoError(fmt::format("cannot read {}: {}", one_line(path_), std::strerror(errno)));
    if (got == 0) break;
    done += got;
  }
  return done;
}

}  // namespace lockstep::data
