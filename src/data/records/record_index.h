#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "data/records/shard.h"

namespace lockstep::data {

/// What records hold.
enum class RecordContent {
  files,   ///< image files, as they were or made smaller
  pixels,  ///< images as bytes, upright, [height, width, channels]
  samples  ///< the fields of a sample, one behind the other
};
const char* name_of(RecordContent content);

/// A field of samples, and what only the data set that was packed knows of it.
struct PackedField {
  Field field;
  int64_t vocabulary = 0;
  int64_t largest = -1;
  bool operator==(const PackedField&) const = default;
};

/// The samples that train, or those that evaluate.
struct PackedPart {
  uint64_t identity = 0;  ///< that of the data set that reads them
  int64_t left_out = 0;   ///< damaged, by on_damage: SKIP
  std::vector<ShardFacts> shards;
  bool operator==(const PackedPart&) const = default;
  int64_t records() const;
};

/// records.json: what a folder of shards holds. It is written last.
struct RecordIndex {
  RecordContent content = RecordContent::files;
  std::string source;  ///< for people: what was packed, and how
  uint64_t pack = 0;   ///< that all shards state, too
  int64_t classes = 0;
  std::vector<std::string> class_names;  ///< empty: labels are numbers
  int64_t channels = 3;                  ///< of pixels
  std::vector<PackedField> fields;       ///< of samples
  Encodings encodings;
  PackedPart parts[2];  ///< training, evaluation; without shards: there is none
  bool operator==(const RecordIndex&) const = default;
};

inline constexpr std::string_view kIndexFile = "records.json";

/// With the checksum of the rest.
std::string to_json(const RecordIndex& index);
/// Throws DataError, which begins with `name`, for what is no index, or damaged.
RecordIndex index_from_json(const std::string& text, const std::string& name);

}  // namespace lockstep::data
