#include "data/records/shard.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/hash.h"
#include "data/file_list.h"
#include "lockstep/error.h"

namespace lockstep::data {
namespace {

int64_t nanoseconds_of(const timespec& time) { return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec; }

}  // namespace

Shard::Shard(const std::string& path) : path_(path) {
  // Without O_NONBLOCK opening a pipe would wait for its writer.
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  struct stat info {};
  const bool is_open = descriptor >= 0 && ::fstat(descriptor, &info) == 0;
  if (!is_open || !S_ISREG(info.st_mode)) {
    const std::string reason = is_open ? "it is not a regular file" : std::strerror(errno);
    if (descriptor >= 0) ::close(descriptor);
    throw IoError(fmt::format("cannot open {}: {}; pack the data again, or copy the shard again",
                              one_line(path), reason));
  }
  size_ = static_cast<size_t>(info.st_size);
  stamp_ = {info.st_dev, info.st_ino, nanoseconds_of(info.st_mtim), nanoseconds_of(info.st_ctim)};
  if (size_ < kRecordAlignment + sizeof(ShardFooter)) {
    ::close(descriptor);
    refuse(info.st_size, fmt::format("expected at least {} bytes", kRecordAlignment + sizeof(ShardFooter)));
  }
  void* mapped = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, descriptor, 0);
  const int problem = errno;
  ::close(descriptor);
  if (mapped == MAP_FAILED)
    throw IoError(fmt::format("cannot map {}: {}", one_line(path), std::strerror(problem)));
  data_ = static_cast<const uint8_t*>(mapped);
  handle_missing_pages();
  try {
    look_at_all();
  } catch (...) {
    ::munmap(mapped, size_);
    throw;
  }
}

Shard::~Shard() { ::munmap(const_cast<uint8_t*>(data_), size_); }

void Shard::refuse(int64_t byte, const std::string& what) const {
  throw DataError(
      fmt::format("{} (byte {}): {}: the shard is damaged, or not complete; copy it again, or "
                  "pack the data again",
                  one_line(path_), byte, what));
}

void Shard::look_at_all() {
  const size_t end = size_ - sizeof footer_;
  const auto at = [](size_t byte) { return static_cast<int64_t>(byte); };
  const auto read = [&](const auto& look) {
    if (!read_mapped(data_, size_, look)) refuse(0, "the file was cut short while it was opened");
  };
  bool is_shard = false;
  read([&]() noexcept {
    is_shard = std::memcmp(data_, kShardMagic, 8) == 0;
    std::memcpy(&footer_, data_ + end, sizeof footer_);
  });
  if (!is_shard) refuse(0, fmt::format("expected {}", kShardMagic));
  if (std::memcmp(footer_.magic, kFooterMagic, sizeof footer_.magic) != 0)
    refuse(at(size_ - 8), fmt::format("expected {} at the end", kFooterMagic));
  if (footer_.version != kShardVersion)
    refuse(at(end + 48), fmt::format("expected version {}, found {}", kShardVersion, footer_.version));
  const uint64_t table = footer_.table_offset, names = footer_.names_offset;
  if (table % kRecordAlignment != 0 || table > names || names > end ||
      (names - table) / sizeof(ShardEntry) != footer_.records || (names - table) % sizeof(ShardEntry) != 0)
    refuse(at(end), fmt::format("expected a table of {} records before byte {}, found bytes {} to {}",
                                footer_.records, end, table, names));
  uint64_t hash = 0;
  read([&]() noexcept { hash = hash64(data_ + table, end - table); });
  if (hash != footer_.table_hash) refuse(at(table), "the table has another checksum");
  table_ = reinterpret_cast<const ShardEntry*>(data_ + table);
  look_at_entries();
}

/// A file of this name that is another one says nothing about the one that is mapped.
void Shard::look_for_changes() const {
  struct stat info {};
  if (::stat(path_.c_str(), &info) != 0) return;
  const Stamp now{info.st_dev, info.st_ino, nanoseconds_of(info.st_mtim), nanoseconds_of(info.st_ctim)};
  const std::lock_guard lock(mutex_);
  if (now == stamp_ || now.device != stamp_.device || now.inode != stamp_.inode) return;
  stamp_ = now;
  ++version_;
}

void Shard::look_at_entries() {
  const uint64_t name_bytes = size_ - sizeof footer_ - footer_.names_offset;
  known_ = std::make_unique<Known[]>(footer_.records);
  for (int64_t i = 0; i < count(); ++i) {
    const ShardEntry entry = this->entry(i);
    if (!is_within(entry) || entry.name_offset > name_bytes ||
        entry.name_bytes > name_bytes - entry.name_offset)
      refuse(static_cast<int64_t>(footer_.table_offset) + i * static_cast<int64_t>(sizeof entry),
             fmt::format("record {} is not within the file", i));
    known_[i].entry = hash64(&entry, sizeof entry);
    known_[i].offset = entry.offset;
  }
}

ShardEntry Shard::entry(int64_t record) const {
  ShardEntry entry;
  if (!read_mapped(data_, size_, [&]() noexcept { entry = table_[record]; }))
    refuse(static_cast<int64_t>(footer_.table_offset), "the file was cut short since it was opened");
  return entry;
}

std::string Shard::name(int64_t record) const {
  const uint64_t begin = footer_.names_offset, most = size_ - sizeof footer_ - begin;
  ShardEntry entry;
  const bool is_there = read_mapped(data_, size_, [&]() noexcept { entry = table_[record]; });
  if (!is_there || entry.name_offset > most || entry.name_bytes > most - entry.name_offset) return {};
  std::string name(entry.name_bytes, '\0');
  const bool has_name = read_mapped(data_, size_, [&]() noexcept {
    std::memcpy(name.data(), data_ + begin + entry.name_offset, name.size());
  });
  return has_name ? name : std::string();
}

bool Shard::compare(int64_t record, const ShardEntry& entry) const {
  // Of the version before it is compared: a change that comes meanwhile has another one.
  const uint32_t version = version_.load(std::memory_order_relaxed);
  const bool whole = hash64(data_ + entry.offset, entry.size_bytes) == entry.hash;
  if (whole) known_[record].compared.store(version, std::memory_order_relaxed);
  return whole;
}

bool Shard::has_its_hash() const {
  uint64_t hash = 0;
  return read_mapped(data_, size_, [&]() noexcept { hash = hash64(data_, size_ - sizeof footer_); }) &&
         hash == footer_.hash;
}

}  // namespace lockstep::data
