#pragma once

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
  /// See Shard::read.
  template <class Read>
  RecordState read(int64_t record, Read&& read) const {
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

  std::vector<std::unique_ptr<const Shard>> shards_;
  std::vector<int64_t> first_;  // record of each shard
  int64_t count_ = 0;
};

/// Records as images. `labels`: for each label that entries state, the one that samples have.
std::unique_ptr<const ImageStore> images_of(std::shared_ptr<const RecordSet> records,
                                            const std::vector<int32_t>& labels);

}  // namespace lockstep::data
