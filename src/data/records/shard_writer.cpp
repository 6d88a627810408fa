#include "data/records/shard_writer.h"

#include <fmt/format.h>

#include <array>
#include <cstring>
#include <filesystem>

#include "base/hash.h"

namespace lockstep::data {

std::string shard_name(int part, int64_t number) {
  return fmt::format("{}-{:05}.records", part == 0 ? "train" : "eval", number);
}

std::string unfinished_name(const std::string& path) { return path + ".part"; }

ShardWriter::ShardWriter(FileSystem& files, std::string path)
    : files_(files), path_(std::move(path)), part_path_(unfinished_name(path_)) {
  file_ = files_.create(part_path_);
  write(kShardMagic, 8);
}

void ShardWriter::write(const void* data, size_t size_bytes) {
  if (size_bytes == 0) return;
  file_->write(data, size_bytes);
  digest_.update(data, size_bytes);
  size_bytes_ += size_bytes;
}

void ShardWriter::align() {
  static constexpr std::array<uint8_t, kRecordAlignment> kZeros{};
  const uint64_t beyond = size_bytes_ % kRecordAlignment;
  if (beyond > 0) write(kZeros.data(), kRecordAlignment - beyond);
}

void ShardWriter::add(ShardEntry entry, std::string_view name, std::span<const uint8_t> bytes) {
  align();
  entry.offset = size_bytes_;
  entry.size_bytes = bytes.size();
  entry.hash = hash64(bytes.data(), bytes.size());
  entry.name_offset = names_.size();
  entry.name_bytes = static_cast<uint32_t>(name.size());
  names_ += name;
  entries_.push_back(entry);
  write(bytes.data(), bytes.size());
}

uint64_t ShardWriter::finish(ShardFooter footer) {
  align();
  footer.records = entries_.size();
  footer.table_offset = size_bytes_;
  FileDigest table;
  table.update(entries_.data(), entries_.size() * sizeof(ShardEntry));
  table.update(names_.data(), names_.size());
  footer.table_hash = table.checksums().xxh3;
  write(entries_.data(), entries_.size() * sizeof(ShardEntry));
  footer.names_offset = size_bytes_;
  write(names_.data(), names_.size());
  footer.hash = digest_.checksums().xxh3;
  std::memcpy(footer.magic, kFooterMagic, sizeof footer.magic);
  file_->write(&footer, sizeof footer);
  file_->sync();
  file_->close();
  files_.rename(part_path_, path_);
  files_.sync_directory(std::filesystem::path(path_).parent_path().string());
  return footer.hash;
}

}  // namespace lockstep::data
