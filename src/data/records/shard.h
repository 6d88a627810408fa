#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "data/records/shard_format.h"

namespace lockstep::data {

/// What an index says of a shard.
struct ShardFacts {
  std::string file;
  int64_t size_bytes = 0, records = 0;
  uint64_t hash = 0;  ///< ShardFooter::hash
  bool operator==(const ShardFacts&) const = default;
};

/// A shard in memory, by mmap: pages are read when they are looked at. Immutable; thread-safe. A shard must
/// not be cut short while it is used, which would end the process; replacing or deleting it does no harm.
class Shard {
 public:
  /// Reads the footer, the table and the names, and checks them against each other and the file's size.
  /// Throws IoError if it cannot be read, DataError, which names file and byte, if it is damaged.
  explicit Shard(const std::string& path);
  ~Shard();
  Shard(const Shard&) = delete;
  Shard& operator=(const Shard&) = delete;

  const std::string& path() const { return path_; }
  const ShardFooter& footer() const { return footer_; }
  int64_t count() const { return static_cast<int64_t>(footer_.records); }
  int64_t size_bytes() const { return static_cast<int64_t>(size_); }
  const ShardEntry& entry(int64_t record) const { return table_[record]; }
  std::string_view name(int64_t record) const;
  /// The record as it lies in the file; not compared with its hash.
  std::span<const uint8_t> bytes(int64_t record) const {
    const ShardEntry& entry = table_[record];
    return {data_ + entry.offset, entry.size_bytes};
  }
  /// Whether the record's bytes have its hash. They are compared once; later calls remember.
  bool is_whole(int64_t record) const {
    return whole_[record].load(std::memory_order_relaxed) || compare(record);
  }
  /// Whether the whole file has its hash: reads all of it.
  bool has_its_hash() const;

 private:
  void look_at_all();
  bool compare(int64_t record) const;
  [[noreturn]] void refuse(int64_t byte, const std::string& what) const;

  std::string path_;
  const uint8_t* data_ = nullptr;
  size_t size_ = 0;
  ShardFooter footer_;
  const ShardEntry* table_ = nullptr;
  std::unique_ptr<std::atomic<bool>[]> whole_;
};

}  // namespace lockstep::data
