#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>

#include "base/hash.h"
#include "base/mapped_memory.h"
#include "data/records/shard_format.h"

namespace lockstep::data {

/// What an index says of a shard.
struct ShardFacts {
  std::string file;
  int64_t size_bytes = 0, records = 0;
  uint64_t hash = 0;  ///< ShardFooter::hash
  bool operator==(const ShardFacts&) const = default;
};

/// What a record turned out to be when it was read.
enum class RecordState {
  whole,
  damaged,   ///< its bytes have another checksum than the table states, or the table is another one
  cut_short  ///< the file is shorter than when it was opened, or its disk failed
};

/// A shard in memory, by mmap: pages are read when they are looked at. Immutable; thread-safe. If the file is
/// cut short while it is used, its records are `cut_short`; if it is overwritten with others, these are
/// `damaged`. If bytes change under the same table, the file's times tell whoever looks. Replacing or
/// deleting the file does no harm.
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
  /// Throws DataError if the file was cut short.
  ShardEntry entry(int64_t record) const;
  std::string name(int64_t record) const;  ///< "" if the file was cut short
  /// Calls `read` with a record's bytes as they lie in the file, if they are whole. They are compared with
  /// their hash once, and again after look_for_changes() has found that the file was changed. REQUIRES: of
  /// `read` what read_mapped() requires.
  template <class Read>
  RecordState read(int64_t record, Read&& read) const {
    RecordState state = RecordState::whole;
    const bool is_there = read_mapped(data_, size_, [&]() noexcept {
      // A copy: the file may be overwritten now. It then has another table.
      const ShardEntry entry = table_[record];
      const Known& known = known_[record];
      if (hash64(&entry, sizeof entry) != known.entry ||
          (known.compared.load(std::memory_order_relaxed) != version_.load(std::memory_order_relaxed) &&
           !compare(record, entry)))
        state = RecordState::damaged;
      else
        read(std::span<const uint8_t>(data_ + entry.offset, entry.size_bytes));
    });
    return is_there ? state : RecordState::cut_short;
  }
  /// Begins to load what read() of a record looks at first, some time before it is called. What is where the
  /// processor finds out by itself, but three places that have nothing to do with each other are three waits.
  void expect(int64_t record) const {
    __builtin_prefetch(&table_[record]);
    __builtin_prefetch(&known_[record]);
    __builtin_prefetch(data_ + known_[record].offset);
  }
  /// Looks whether the file was changed since it was opened, or since the last look.
  void look_for_changes() const;
  /// Whether the whole file has its hash: reads all of it.
  bool has_its_hash() const;

 private:
  void look_at_all();
  void look_at_entries();
  bool is_within(const ShardEntry& entry) const {
    const uint64_t table = footer_.table_offset;
    return entry.offset <= table && entry.size_bytes <= table - entry.offset;
  }
  bool compare(int64_t record, const ShardEntry& entry) const;
  [[noreturn]] void refuse(int64_t byte, const std::string& what) const;

  struct Known {
    uint64_t entry = 0;                  // hash of the table's entry, as it was when the file was opened
    uint64_t offset = 0;                 // of the record
    std::atomic<uint32_t> compared = 0;  // the version of the file in which it had its hash; 0: none
  };
  /// What tells that a file was changed.
  struct Stamp {
    uint64_t device = 0, inode = 0;
    int64_t written_ns = 0;  // which whoever writes may set back
    int64_t changed_ns = 0;  // which nobody can
    bool operator==(const Stamp&) const = default;
  };

  std::string path_;
  const uint8_t* data_ = nullptr;
  size_t size_ = 0;
  ShardFooter footer_;
  const ShardEntry* table_ = nullptr;
  std::unique_ptr<Known[]> known_;
  mutable std::atomic<uint32_t> version_ = 1;
  mutable std::mutex mutex_;  // guards stamp_
  mutable Stamp stamp_;
};

}  // namespace lockstep::data
