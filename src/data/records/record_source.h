#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "data/data_options.h"
#include "data/records/record_index.h"
#include "data/records/shard_format.h"

namespace lockstep::data {

/// How images are packed.
struct PackImages {
  bool as_pixels = false;    ///< decoded
  int64_t longest_side = 0;  ///< larger images are made so large; 0: none is
  int64_t quality = 90;      ///< of JPEGs that are written, 1 to 100
};

/// A record that is being made. Its memory serves for the next one.
struct MadeRecord {
  ShardEntry entry;
  std::string name;
  std::span<const uint8_t> bytes;  ///< in the room, or in memory that outlives the call
  std::vector<uint8_t> room;
};

/// What is packed. Immutable; thread-safe.
class RecordSource {
 public:
  virtual ~RecordSource() = default;
  /// 0 if the part is not there.
  virtual int64_t count(int part) const = 0;
  /// About what the record will take; decides how many are in a shard, so it must always be the same.
  virtual int64_t expected_bytes(int part, int64_t sample) const = 0;
  /// Makes the record. Returns false if it is damaged and is left out, with a warning. Throws DataError if it
  /// is damaged and `on_damage` is FAIL.
  virtual bool make(int part, int64_t sample, MadeRecord& record) const = 0;
  /// Changes with whatever decides a byte of the records.
  virtual uint64_t identity() const = 0;
  /// All of the index but its parts' shards and its `pack`. `left_out` counts what opening left out.
  virtual RecordIndex index() const = 0;
};

/// Opens the data of the options and finds out how they are packed. Throws ConfigError, which says why, for
/// kinds that are not.
std::unique_ptr<const RecordSource> open_record_source(const DataOptions& options, const PackImages& images);

/// As make_record_source(), of images in files.
std::unique_ptr<const RecordSource> open_image_source(const DataOptions& options, const PackImages& images);

}  // namespace lockstep::data
