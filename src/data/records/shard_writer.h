#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file_digest.h"
#include "base/file_system.h"
#include "data/records/shard_format.h"

namespace lockstep::data {

/// Writes a shard from front to end, under the name of a part; finish() gives it its own. Throws IoError.
class ShardWriter {
 public:
  /// `path`: where the shard will be; nothing may be there once finish() is called.
  ShardWriter(FileSystem& files, std::string path);

  /// `entry`: what is known of the record; where it lies, its size and its hash are filled in.
  void add(ShardEntry entry, std::string_view name, std::span<const uint8_t> bytes);
  /// Writes the table and `footer`, of which only pack, part and number are stated; returns when all of it is
  /// on the disk under its own name. Returns the hash of the shard.
  uint64_t finish(ShardFooter footer);

 private:
  void write(const void* data, size_t size_bytes);
  void align();

  FileSystem& files_;
  std::string path_, part_path_;
  std::unique_ptr<WritableFile> file_;
  FileDigest digest_;
  uint64_t size_bytes_ = 0;
  std::vector<ShardEntry> entries_;
  std::string names_;
};

/// The name under which a file is written until it is complete.
std::string unfinished_name(const std::string& path);

}  // namespace lockstep::data
