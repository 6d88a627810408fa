#include "data/images/image_cache.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "base/file_system.h"
#include "base/hash.h"
#include "base/log.h"
#include "lockstep/error.h"

namespace lockstep::data {
namespace {

constexpr char kCopyMagic[9] = "LSCOPY1\n";
constexpr std::string_view kCopyEnding = ".copy", kPartEnding = ".part";

/// Before the bytes of a copy.
struct CopyHead {
  char magic[8] = {};
  uint64_t facts = 0;  // of the file, with another seed than its name
  uint64_t size_bytes = 0;
  uint64_t hash = 0;
};

uint64_t facts_hash(const InspectedImage& image, uint64_t seed) {
  const int64_t facts[] = {image.size_bytes, image.changed_ns, static_cast<int64_t>(image.beginning)};
  return hash64(facts, sizeof facts, hash64(image.path, seed));
}

int64_t copy_bytes(const InspectedImage& image) {
  return static_cast<int64_t>(sizeof(CopyHead)) + image.size_bytes;
}

/// An open file, closed at the end.
class OpenFile {
 public:
  OpenFile(const std::string& path, int flags) : descriptor_(::open(path.c_str(), flags | O_CLOEXEC, 0666)) {}
  ~OpenFile() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  bool is_open() const { return descriptor_ >= 0; }

  bool read_exactly(void* to, size_t size_bytes) const {
    for (size_t done = 0; done < size_bytes;) {
      const ssize_t got = ::read(descriptor_, static_cast<char*>(to) + done, size_bytes - done);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) return false;
      done += static_cast<size_t>(got);
    }
    return true;
  }
  bool write_all(const void* from, size_t size_bytes) const {
    for (size_t done = 0; done < size_bytes;) {
      const ssize_t wrote = ::write(descriptor_, static_cast<const char*>(from) + done, size_bytes - done);
      if (wrote < 0 && errno == EINTR) continue;
      if (wrote < 0) return false;
      done += static_cast<size_t>(wrote);
    }
    return true;
  }
  bool close_now() { return ::close(std::exchange(descriptor_, -1)) == 0; }

 private:
  int descriptor_;
};

/// Renames unless there is a file of that name. Returns 0 or an errno.
int rename_new(const std::string& from, const std::string& to) {
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0) return 0;
  if (errno != EINVAL && errno != ENOSYS) return errno;
  return std::rename(from.c_str(), to.c_str()) == 0 ? 0 : errno;  // the file system cannot do better
}

}  // namespace

struct ImageCache::Account {
  std::atomic<int64_t> used_bytes;
};

ImageCache::ImageCache(const std::string& directory, int64_t limit_bytes,
                       const std::vector<std::span<const InspectedImage>>& images)
    : directory_(directory), limit_bytes_(limit_bytes) {
  static_assert(std::atomic<int64_t>::is_always_lock_free, "processes share it");
  posix_file_system().make_directory(directory);
  const std::string path = directory + "/account";
  lock_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (lock_ < 0) throw_io_error("open", path, path, errno);
  // Whoever is alone tidies up before it shares; the others wait for it.
  const bool alone = ::flock(lock_, LOCK_EX | LOCK_NB) == 0;
  if (!alone && ::flock(lock_, LOCK_SH) != 0) {
    const int error = errno;
    ::close(lock_);
    throw_io_error("lock", path, path, error);
  }
  void* mapped = MAP_FAILED;
  if (::ftruncate(lock_, sizeof(Account)) == 0)
    mapped = ::mmap(nullptr, sizeof(Account), PROT_READ | PROT_WRITE, MAP_SHARED, lock_, 0);
  if (mapped == MAP_FAILED) {
    const int error = errno;
    ::close(lock_);
    throw_io_error("map", path, path, error);
  }
  account_ = static_cast<Account*>(mapped);
  if (alone) {
    tidy(images);
    ::flock(lock_, LOCK_SH);
  }
}

ImageCache::~ImageCache() {
  ::munmap(account_, sizeof(Account));
  ::close(lock_);
}

void ImageCache::tidy(const std::vector<std::span<const InspectedImage>>& images) {
  namespace fs = std::filesystem;
  std::unordered_set<std::string> own;
  int64_t needed = 0;
  for (const auto& part : images)
    for (const auto& image : part)
      if (own.insert(path_of(image)).second) needed += copy_bytes(image);
  struct Copy {
    fs::file_time_type changed;
    std::string path;
    int64_t size_bytes;
  };
  std::vector<Copy> others;
  int64_t used = 0, used_by_others = 0;
  std::error_code problem;
  for (fs::recursive_directory_iterator entry(directory_, problem), end; !problem && entry != end;
       entry.increment(problem)) {
    const std::string path = entry->path().string();
    std::error_code unknown;
    if (path.ends_with(kPartEnding)) fs::remove(path, unknown);
    if (!path.ends_with(kCopyEnding)) continue;
    const auto size_bytes = static_cast<int64_t>(entry->file_size(unknown));
    if (unknown) continue;
    used += size_bytes;
    if (own.contains(path)) continue;
    used_by_others += size_bytes;
    others.push_back({entry->last_write_time(unknown), path, size_bytes});
  }
  std::ranges::sort(others, {}, &Copy::changed);
  for (const auto& copy : others) {
    if (used_by_others + std::min(needed, limit_bytes_) <= limit_bytes_) break;
    std::error_code unknown;
    if (!fs::remove(copy.path, unknown)) continue;
    used -= copy.size_bytes;
    used_by_others -= copy.size_bytes;
  }
  account_->used_bytes = used;
}

std::string ImageCache::path_of(const InspectedImage& image) const {
  const std::string name = to_hex(facts_hash(image, 0));
  return fmt::format("{}/{}/{}{}", directory_, name.substr(0, 2), name, kCopyEnding);
}

int64_t ImageCache::used_bytes() const { return account_->used_bytes; }

bool ImageCache::reserve(int64_t size_bytes) const {
  if (account_->used_bytes.fetch_add(size_bytes) + size_bytes <= limit_bytes_) return true;
  release(size_bytes);
  return false;
}

void ImageCache::release(int64_t size_bytes) const { account_->used_bytes.fetch_sub(size_bytes); }

bool ImageCache::read(const InspectedImage& image, std::vector<uint8_t>& bytes) const {
  const std::string path = path_of(image);
  OpenFile file(path, O_RDONLY);
  if (!file.is_open()) return false;
  CopyHead head;
  bytes.resize(static_cast<size_t>(image.size_bytes));
  if (file.read_exactly(&head, sizeof head) && std::memcmp(head.magic, kCopyMagic, sizeof head.magic) == 0 &&
      head.facts == facts_hash(image, 1) && head.size_bytes == bytes.size() &&
      file.read_exactly(bytes.data(), bytes.size()) && hash64(bytes.data(), bytes.size()) == head.hash)
    return true;
  if (::unlink(path.c_str()) == 0) release(copy_bytes(image));  // damaged: it is read and kept anew
  return false;
}

void ImageCache::keep(const InspectedImage& image, std::span<const uint8_t> bytes) const {
  const int64_t size_bytes = copy_bytes(image);
  if (!keeps_.load(std::memory_order_relaxed) || static_cast<int64_t>(bytes.size()) != image.size_bytes ||
      !reserve(size_bytes))
    return;
  const std::string path = path_of(image);
  const std::string part = fmt::format("{}.{}.{}{}", path, ::getpid(), ++next_part_, kPartEnding);
  CopyHead head{.magic = {},
                .facts = facts_hash(image, 1),
                .size_bytes = bytes.size(),
                .hash = hash64(bytes.data(), bytes.size())};
  std::memcpy(head.magic, kCopyMagic, sizeof head.magic);
  const auto write = [&] {
    OpenFile file(part, O_WRONLY | O_CREAT | O_EXCL);
    if (!file.is_open()) return errno;
    if (!file.write_all(&head, sizeof head) || !file.write_all(bytes.data(), bytes.size())) return errno;
    return file.close_now() ? 0 : errno;
  };
  int error = write();
  if (error == ENOENT) {  // the first of its folder
    ::mkdir(path.substr(0, path.rfind('/')).c_str(), 0777);
    error = write();
  }
  if (error == 0) error = rename_new(part, path);
  if (error == 0) return;
  ::unlink(part.c_str());
  release(size_bytes);
  if (error != EEXIST) give_up(path, error);  // another process was faster
}

void ImageCache::give_up(const std::string& path, int error) const {
  if (!keeps_.exchange(false)) return;
  log_warning(fmt::format("data.cache_directory: cannot write {}: {}; this process keeps no more files there",
                          path, std::strerror(error)));
}

}  // namespace lockstep::data
