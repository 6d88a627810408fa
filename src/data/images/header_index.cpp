#include "data/images/header_index.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <span>
#include <utility>

#include "base/file_system.h"
#include "base/hash.h"
#include "base/log.h"
#include "data/images/image_file.h"
#include "lockstep/error.h"

namespace lockstep::data {
namespace {

static_assert(std::endian::native == std::endian::little, "entries are written as they lie in memory");

constexpr std::string_view kHeadersMagic = "LSHEADS1";

struct IndexHead {
  char magic[8] = {};
  uint64_t list = 0, count = 0;
};

struct IndexEntry {
  int64_t size_bytes = -1, changed_ns = 0;
  uint64_t beginning = 0;
  uint32_t height = 0, width = 0;
  uint8_t format = 0, orientation = 1;
  uint8_t zeros[6] = {};
};
static_assert(sizeof(IndexEntry) == 40);

uint64_t paths_hash(const ImageList& list) {
  uint64_t hash = list.images.size();
  for (const auto& image : list.images) hash = hash_combine(hash, hash64(image.path));
  return hash;
}

/// "" if it cannot be read.
std::string file_content(const std::string& path) try {
  const ImageFile file(path);
  std::string bytes(static_cast<size_t>(file.size_bytes()), '\0');
  bytes.resize(
      static_cast<size_t>(file.read(0, std::span(reinterpret_cast<uint8_t*>(bytes.data()), bytes.size()))));
  return bytes;
} catch (const IoError&) {
  return {};
}

bool makes_sense(const IndexEntry& entry) {
  return entry.size_bytes < 0 || (entry.format < static_cast<uint8_t>(ImageFormat::pixels) &&
                                  entry.orientation >= 1 && entry.orientation <= 8 && entry.height >= 1 &&
                                  entry.width >= 1 && entry.height <= INT32_MAX && entry.width <= INT32_MAX);
}

}  // namespace

std::string header_index_bytes(uint64_t list, const std::vector<KnownHeader>& headers) {
  IndexHead head{.list = list, .count = headers.size()};
  std::memcpy(head.magic, kHeadersMagic.data(), sizeof head.magic);
  std::string bytes(reinterpret_cast<const char*>(&head), sizeof head);
  for (const auto& known : headers) {
    const IndexEntry entry{.size_bytes = known.size_bytes,
                           .changed_ns = known.changed_ns,
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
  if (bytes.size() != sizeof head + count * sizeof(IndexEntry) + sizeof hash) return {};
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
    headers[i] = {.size_bytes = entry.size_bytes,
                  .changed_ns = entry.changed_ns,
                  .beginning = entry.beginning,
                  .header = {.format = static_cast<ImageFormat>(entry.format),
                             .height = entry.height,
                             .width = entry.width,
                             .orientation = entry.orientation}};
  }
  return headers;
}

HeaderIndex::HeaderIndex(const std::string& directory, const ImageList& list)
    : list_(paths_hash(list)), count_(list.images.size()) {
  posix_file_system().make_directory(directory);
  path_ = fmt::format("{}/headers-{}.index", directory, to_hex(list_));
  const auto look = [&] {
    return headers_from_bytes(file_content(path_), list_, count_).value_or(std::vector<KnownHeader>());
  };
  known_ = look();
  if (!known_.empty()) return;
  lock_ = ::open((path_ + ".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (lock_ < 0 || ::flock(lock_, LOCK_EX) != 0) return;  // then all read headers at once
  known_ = look();
}

HeaderIndex::~HeaderIndex() {
  if (lock_ >= 0) ::close(lock_);
}

const KnownHeader* HeaderIndex::find(size_t image, const std::string& path) const {
  if (known_.empty() || known_[image].size_bytes < 0) return nullptr;
  struct stat now {};
  if (::stat(path.c_str(), &now) != 0 || !S_ISREG(now.st_mode)) return nullptr;
  const int64_t changed_ns = int64_t{now.st_mtim.tv_sec} * 1'000'000'000 + now.st_mtim.tv_nsec;
  const KnownHeader& known = known_[image];
  return known.size_bytes == now.st_size && known.changed_ns == changed_ns ? &known : nullptr;
}

void HeaderIndex::keep(std::vector<KnownHeader> headers) {
  using namespace std::chrono;
  constexpr int64_t kSettledNs = 2'000'000'000;
  const int64_t now = duration_cast<nanoseconds>(system_clock::now().time_since_epoch()).count();
  for (auto& known : headers)
    if (known.changed_ns > now - kSettledNs) known = {};
  if (headers != known_) {
    const std::string part = fmt::format("{}.{}.part", path_, ::getpid());
    const std::string bytes = header_index_bytes(list_, headers);
    std::ofstream file(part, std::ios::binary);
    file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    file.close();
    if (!file || std::rename(part.c_str(), path_.c_str()) != 0) {
      ::unlink(part.c_str());
      log_warning(
          fmt::format("data.cache_directory: cannot write {}: {}; the next start reads all headers again",
                      path_, std::strerror(errno)));
    }
    known_ = std::move(headers);
  }
  if (lock_ >= 0) ::close(std::exchange(lock_, -1));
}

}  // namespace lockstep::data
