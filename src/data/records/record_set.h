#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "data/images/image_store.h"
#include "data/records/record_index.h"
#include "data/records/shard.h"

namespace lockstep::data {

/// What is wrong with a record, and where in its shard.
struct RecordDamage {
  int64_t byte = 0;
  std::string what;
};

/// The records of one part, in all of its shards. Immutable; thread-safe.
class RecordSet {
 public:
  /// Opens `index.parts[part]` in `folder`. Throws IoError, and DataError for a shard that is damaged, is
  /// not the one that the index describes, or is of another packing. If `found` is not null, all such shards
  /// are added to it first, and ListedDamage is thrown.
  RecordSet(const std::string& folder, const RecordIndex& index, int part,
            const std::shared_ptr<FoundDamage>& found = nullptr);

  int64_t count() const { return count_; }
  /// Throws DataError if the shard was cut short.
  ShardEntry entry(int64_t record) const;
  /// "FOLDER/train-00000.records, record 12 (cats/7.jpg)".
  std::string place(int64_t record) const;
  /// The file of a record.
  const std::string& path(int64_t record) const { return find(record).first->path(); }
  /// See Shard::read. If bytes of a shard are changed in place, that is noticed after at most kReadsPerLook
  /// reads of one thread for each shard.
  template <class Read>
  RecordState read(int64_t record, Read&& read) const {
    if (is_time_to_look()) look_at_one();
    const auto [shard, within] = find(record);
    return shard->read(within, read);
  }
  /// See Shard::expect.
  void expect(int64_t record) const {
    const auto [shard, within] = find(record);
    shard->expect(within);
  }
  /// Why a record could not be read. REQUIRES: its state is not whole.
  RecordDamage damage(int64_t record, RecordState state) const;

 private:
  std::pair<const Shard*, int64_t> find(int64_t record) const;

  /// Looking takes as long as reading a record.
  static constexpr uint32_t kReadsPerLook = 64;
  static bool is_time_to_look() {
    thread_local uint32_t reads = 0;
    return ++reads % kReadsPerLook == 0;
  }
  /// By turns: reads in the order of the files would let a count of reads choose the same shards in each
  /// epoch.
  void look_at_one() const {
    shards_[next_look_.fetch_add(1, std::memory_order_relaxed) % shards_.size()]->look_for_changes();
  }

  std::vector<std::unique_ptr<const Shard>> shards_;
  std::vector<int64_t> first_;  // record of each shard
  int64_t count_ = 0;
  mutable std::atomic<size_t> next_look_ = 0;
};

/// Records as images. `labels`: for each label that entries state, the one that samples have.
std::unique_ptr<const ImageStore> images_of(std::shared_ptr<const RecordSet> records,
                                            const std::vector<int32_t>& labels);

}  // namespace lockstep::data
