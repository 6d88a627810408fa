#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "data/images/image_store.h"
#include "data/records/record_index.h"
#include "data/records/shard.h"

namespace lockstep::data {

/// The records of one part, in all of its shards. Immutable; thread-safe.
class RecordSet {
 public:
  /// Opens `index.parts[part]` in `folder`. Throws IoError, and DataError for a shard that is damaged, is
  /// not the one that the index describes, or is of another packing.
  RecordSet(const std::string& folder, const RecordIndex& index, int part);

  int64_t count() const { return count_; }
  const ShardEntry& entry(int64_t record) const;
  std::string name(int64_t record) const;
  /// "FOLDER/train-00000.records, record 12 (cats/7.jpg)".
  std::string place(int64_t record) const;
  /// The file of a record.
  const std::string& path(int64_t record) const { return find(record).first->path(); }
  std::span<const uint8_t> bytes(int64_t record) const;
  /// See Shard::is_whole.
  bool is_whole(int64_t record) const;

 private:
  std::pair<const Shard*, int64_t> find(int64_t record) const;

  std::vector<std::unique_ptr<const Shard>> shards_;
  std::vector<int64_t> first_;  // record of each shard
  int64_t count_ = 0;
};

inline constexpr const char* kOtherChecksum = "the record has another checksum than the shard's table states";

/// Records as images. `labels`: for each label that entries state, the one that samples have.
std::unique_ptr<const ImageStore> images_of(std::shared_ptr<const RecordSet> records,
                                            const std::vector<int32_t>& labels);

}  // namespace lockstep::data
