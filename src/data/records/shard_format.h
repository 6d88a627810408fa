#pragma once

#include <bit>
#include <cstdint>
#include <string>

namespace lockstep::data {

// A shard, all numbers little-endian (docs/records.md):
//
//     kShardMagic, then zeros up to byte kRecordAlignment
//     records, each at a multiple of kRecordAlignment, zeros between them
//     the table: a ShardEntry for each record, in order
//     the names of the records, one behind the other
//     a ShardFooter
//
// What a file is comes last, so that a file without its end is none.
static_assert(std::endian::native == std::endian::little, "shards are read as they lie in memory");

inline constexpr int64_t kRecordAlignment = 64;  ///< a cache line, and enough for any vector
inline constexpr uint16_t kShardVersion = 1;
inline constexpr char kShardMagic[9] = "LSSHARD1";
inline constexpr char kFooterMagic[9] = "1DRAHSSL";

/// What a record is, and where.
struct ShardEntry {
  uint64_t offset = 0, size_bytes = 0;
  uint64_t hash = 0;               ///< XXH3 of its bytes
  uint64_t beginning = 0;          ///< of image files: XXH3 of the first 4 KiB; otherwise `hash`
  int32_t label = 0;               ///< of images
  uint32_t height = 0, width = 0;  ///< of images, as stored; otherwise 0
  uint8_t format = 0;              ///< of images: an ImageFormat
  uint8_t orientation = 1;         ///< of images: EXIF's
  uint16_t reserved = 0;
  uint64_t name_offset = 0;  ///< among the names
  uint32_t name_bytes = 0, reserved_too = 0;
};
static_assert(sizeof(ShardEntry) == 64);

struct ShardFooter {
  uint64_t records = 0;
  uint64_t table_offset = 0, names_offset = 0;
  uint64_t table_hash = 0;  ///< XXH3 of the table and the names
  uint64_t hash = 0;        ///< XXH3 of all that is before the footer
  uint64_t pack = 0;        ///< of which packing it is: PackPlan::id
  uint16_t version = kShardVersion;
  uint16_t part = 0;    ///< 0: training, 1: evaluation
  uint32_t number = 0;  ///< within its part
  char magic[8] = {};   ///< kFooterMagic
};
static_assert(sizeof(ShardFooter) == 64);

/// "train-00007.records".
std::string shard_name(int part, int64_t number);

}  // namespace lockstep::data
