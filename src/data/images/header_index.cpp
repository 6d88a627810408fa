#include "data/images/header_index.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <span>
#include <thread>
#include <utility>

#include "base/file_system.h"
#include "base/hash.h"
#include "base/log.h"
#include "data/stop.h"
#include "lockstep/error.h"

namespace lockstep::data {
namespace {

static_assert(std::endian::native == std::endian::little, "entries are written as they lie in memory");

constexpr std::string_view kIndexEnding = ".headers", kLockEnding = ".lock", kNewEnding = ".new";
constexpr std::string_view kHeadersMagic = "LSHEADS2";

struct IndexHead {
  char magic[8] = {};
  uint64_t list = 0, count = 0;
};

struct IndexEntry {
  FileStamp stamp;
  uint64_t beginning = 0;
  uint32_t height = 0, width = 0;
  uint8_t format = 0, orientation = 1;
  uint8_t zeros[6] = {};
};
static_assert(sizeof(IndexEntry) == 56);

size_t index_bytes(size_t count) { return sizeof(IndexHead) + count * sizeof(IndexEntry) + sizeof(uint64_t); }

uint64_t paths_hash(const ImageList& list) {
  uint64_t hash = list.images.size();
  for (const auto& image : list.images) hash = hash_combine(hash, hash64(image.path));
  return hash;
}

/// "" if it cannot be read, or is not of this size.
std::string file_content(const std::string& path, size_t size_bytes) try {
  const ImageFile file(path);
  if (file.size_bytes() != static_cast<int64_t>(size_bytes)) return {};
  std::string bytes(size_bytes, '\0');
  bytes.resize(
      static_cast<size_t>(file.read(0, std::span(reinterpret_cast<uint8_t*>(bytes.data()), bytes.size()))));
  return bytes;
} catch (const IoError&) {
  return {};
}

bool makes_sense(const IndexEntry& entry) {
  return entry.stamp.size_bytes < 0 ||
         (entry.format < static_cast<uint8_t>(ImageFormat::pixels) && entry.orientation >= 1 &&
          entry.orientation <= 8 && entry.height >= 1 && entry.width >= 1 && entry.height <= INT32_MAX &&
          entry.width <= INT32_MAX);
}

/// Leaves the indexes that were used last, and what is being written or locked.
void tidy(const std::string& directory) {
  namespace fs = std::filesystem;
  constexpr size_t kMostOthers = 7;
  std::vector<std::pair<fs::file_time_type, fs::path>> indexes;
  const auto yesterday = fs::file_time_type::clock::now() - std::chrono::hours(24);
  std::error_code problem;
  for (fs::directory_iterator entry(directory, problem), end; !problem && entry != end;
       entry.increment(problem)) {
    std::error_code unknown;
    const std::string name = entry->path().filename().string();
    const auto used = entry->last_write_time(unknown);
    if (unknown) continue;
    if (name.ends_with(kIndexEnding))
      indexes.emplace_back(used, entry->path());
    else if (name.find(kIndexEnding) != std::string::npos && used < yesterday)
      fs::remove(entry->path(), unknown);
  }
  if (indexes.size() <= kMostOthers) return;
  std::ranges::sort(indexes);
  for (size_t i = 0; i < indexes.size() - kMostOthers; ++i) fs::remove(indexes[i].second, problem);
}

}  // namespace

std::string header_index_bytes(uint64_t list, const std::vector<KnownHeader>& headers) {
  IndexHead head{.list = list, .count = headers.size()};
  std::memcpy(head.magic, kHeadersMagic.data(), sizeof head.magic);
  std::string bytes(reinterpret_cast<const char*>(&head), sizeof head);
  for (const auto& known : headers) {
    const IndexEntry entry{.stamp = known.stamp,
                           .beginning = known.beginning,
                           .height = static_cast<uint32_t>(known.header.height),
                           .width = static_cast<uint32_t>(known.header.width),
                           .format = static_cast<uint8_t>(known.header.format),
                           .orientation = known.header.orientation};
    bytes.append(reinterpret_cast<const char*>(&entry), sizeof entry);
  }
  const uint64_t hash = hash64(bytes);
  return bytes.append(reinterpret_cast<const char*>(&hash), sizeof hash);
}

std::optional<std::vector<KnownHeader>> headers_from_bytes(std::string_view bytes, uint64_t list,
                                                           size_t count) {
  IndexHead head;
  uint64_t hash = 0;
  if (bytes.size() != index_bytes(count)) return {};
  std::memcpy(&head, bytes.data(), sizeof head);
  std::memcpy(&hash, bytes.data() + bytes.size() - sizeof hash, sizeof hash);
  bytes.remove_suffix(sizeof hash);
  if (std::string_view(head.magic, sizeof head.magic) != kHeadersMagic || head.list != list ||
      head.count != count || hash64(bytes) != hash)
    return {};
  std::vector<KnownHeader> headers(count);
  for (size_t i = 0; i < count; ++i) {
    IndexEntry entry;
    std::memcpy(&entry, bytes.data() + sizeof head + i * sizeof entry, sizeof entry);
    if (!makes_sense(entry)) return {};
    headers[i] = {.stamp = entry.stamp,
                  .beginning = entry.beginning,
                  .header = {.format = static_cast<ImageFormat>(entry.format),
                             .height = entry.height,
                             .width = entry.width,
                             .orientation = entry.orientation}};
  }
  return headers;
}

HeaderIndex::HeaderIndex(const std::string& directory, const ImageList& list,
                         std::chrono::milliseconds patience, bool (*stop_requested)())
    : directory_(directory), list_(paths_hash(list)), count_(list.images.size()) {
  posix_file_system().make_directory(directory);
  path_ = fmt::format("{}/{}{}", directory, to_hex(list_), kIndexEnding);
  known_ = look();
  if (!known_.empty()) return;
  const bool had_to_wait = wait(patience, stop_requested);
  if (lock_ < 0) return;
  known_ = look();
  // Whoever had it could keep nothing, and nor will this process: all others read at once, not in turn.
  if (had_to_wait && known_.empty()) ::close(std::exchange(lock_, -1));
}

HeaderIndex::~HeaderIndex() {
  if (lock_ >= 0) ::close(lock_);
}

std::vector<KnownHeader> HeaderIndex::look() const {
  auto known = headers_from_bytes(file_content(path_, index_bytes(count_)), list_, count_)
                   .value_or(std::vector<KnownHeader>());
  if (!known.empty()) ::utimensat(AT_FDCWD, path_.c_str(), nullptr, 0);  // used now: others go first
  return known;
}

bool HeaderIndex::wait(std::chrono::milliseconds patience, bool (*stop_requested)()) {
  using namespace std::chrono;
  const std::string path = path_ + std::string(kLockEnding);
  lock_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  struct timespec last {};
  bool waited = false, told = false;
  const auto begin = steady_clock::now();
  for (auto since = begin; lock_ >= 0; std::this_thread::sleep_for(milliseconds(20))) {
    if (::flock(lock_, LOCK_EX | LOCK_NB) == 0) {
      get_on();
      return waited;
    }
    struct stat info {};
    const bool is_busy = errno == EWOULDBLOCK && ::fstat(lock_, &info) == 0;
    if (stop_requested != nullptr && stop_requested()) {
      ::close(std::exchange(lock_, -1));  // no destructor follows
      throw StopRequested();
    }
    if (is_busy && (info.st_mtim.tv_sec != last.tv_sec || info.st_mtim.tv_nsec != last.tv_nsec)) {
      since = steady_clock::now();
      last = info.st_mtim;
    }
    if (!is_busy || steady_clock::now() - since >= patience) {
      if (is_busy)
        log_warning(
            fmt::format("data.cache_directory: the process that has locked {} does not get on; this one "
                        "reads the headers of {} images, too",
                        path, count_));
      ::close(std::exchange(lock_, -1));
    }
    waited = true;
    if (lock_ >= 0 && !told && steady_clock::now() - begin > seconds(5)) {
      log_info(fmt::format("waits for another process, which reads the headers of {} images", count_));
      told = true;
    }
  }
  return waited;
}

void HeaderIndex::get_on() const {
  if (lock_ >= 0) ::futimens(lock_, nullptr);
}

const KnownHeader* HeaderIndex::find(size_t image, const std::string& path) const {
  if (known_.empty() || known_[image].stamp.size_bytes < 0) return nullptr;
  const KnownHeader& known = known_[image];
  return file_stamp(path) == known.stamp ? &known : nullptr;
}

void HeaderIndex::keep(std::vector<KnownHeader> headers, std::chrono::nanoseconds settling) {
  using namespace std::chrono;
  const int64_t now = duration_cast<nanoseconds>(system_clock::now().time_since_epoch()).count();
  for (auto& known : headers)
    if (std::max(known.stamp.changed_ns, known.stamp.status_ns) > now - settling.count()) known = {};
  if (headers != known_) {
    write(headers);
    known_ = std::move(headers);
  }
  if (lock_ >= 0) ::close(std::exchange(lock_, -1));
}

void HeaderIndex::write(const std::vector<KnownHeader>& headers) const {
  tidy(directory_);
  // Processes of containers may have one number, and host names too.
  std::random_device random;
  const std::string part = fmt::format("{}.{:08x}{:08x}{}", path_, random(), random(), kNewEnding);
  const std::string bytes = header_index_bytes(list_, headers);
  std::ofstream file(part, std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.close();
  if (file && std::rename(part.c_str(), path_.c_str()) == 0) return;
  const int problem = errno;
  ::unlink(part.c_str());
  log_warning(fmt::format("data.cache_directory: cannot write {}: {}; the next start reads all headers again",
                          path_, std::strerror(problem)));
}

}  // namespace lockstep::data
