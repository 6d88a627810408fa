#include "data/records/record_set.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "base/hash.h"
#include "base/index.h"
#include "data/byte_source.h"
#include "data/file_attempts.h"
#include "data/file_list.h"
#include "lockstep/error.h"

namespace lockstep::data {
namespace {

void check_shard(const Shard& shard, const ShardFacts& facts, const RecordIndex& index, int part,
                 size_t number) {
  const ShardFooter& footer = shard.footer();
  const auto refuse = [&](const std::string& what) {
    throw DataError(
        fmt::format("{}: {}; copy the shard again, or pack the data again", one_line(shard.path()), what));
  };
  if (footer.pack != index.pack)
    refuse(fmt::format("the shard is of another packing ({}) than {} ({})", to_hex(footer.pack), kIndexFile,
                       to_hex(index.pack)));
  if (footer.part != part || footer.number != number)
    refuse(fmt::format("the shard is {}, which has another name",
                       shard_name(footer.part, static_cast<int64_t>(footer.number))));
  if (shard.size_bytes() != facts.size_bytes || shard.count() != facts.records)
    refuse(fmt::format("expected {} bytes with {} records, found {} with {}", facts.size_bytes, facts.records,
                       shard.size_bytes(), shard.count()));
  if (footer.hash != facts.hash)
    refuse(fmt::format("expected the checksum {}, found {}", to_hex(facts.hash), to_hex(footer.hash)));
}

class RecordImages : public ImageStore {
 public:
  RecordImages(std::shared_ptr<const RecordSet> records, const std::vector<int32_t>& labels)
      : records_(std::move(records)) {
    facts_.reserve(static_cast<size_t>(records_->count()));
    for (int64_t i = 0; i < records_->count(); ++i) facts_.push_back(facts_of(i, labels));
  }
  int64_t count() const override { return records_->count(); }
  const ImageFacts& facts(int64_t image) const override { return nth(facts_, image); }
  std::string place(int64_t image) const override { return records_->place(image); }
  std::span<const uint8_t> bytes(int64_t image, std::vector<uint8_t>& room) const override {
    // Decoders own memory: they read a copy, not what may vanish.
    room.resize(static_cast<size_t>(facts(image).size_bytes));
    bool fits = true;
    RecordState state = records_->read(image, [&](std::span<const uint8_t> record) noexcept {
      fits = record.size() == room.size();
      if (fits) std::memcpy(room.data(), record.data(), room.size());
    });
    if (!fits) state = RecordState::cut_short;
    if (state == RecordState::whole) return room;
    const RecordDamage damage = records_->damage(image, state);
    throw ImageDamage{damage.byte, damage.what};
  }

 private:
  ImageFacts facts_of(int64_t record, const std::vector<int32_t>& labels) const {
    const ShardEntry entry = records_->entry(record);
    const bool known = entry.label >= 0 && static_cast<size_t>(entry.label) < labels.size();
    if (!known || entry.format > static_cast<uint8_t>(ImageFormat::pixels) || entry.orientation < 1 ||
        entry.orientation > 8 || entry.height < 1 || entry.width < 1 || entry.height > INT32_MAX ||
        entry.width > INT32_MAX)
      throw DataError(
          fmt::format("{}: expected an image of one of {} classes, found damage; pack the data "
                      "again",
                      place(record), labels.size()));
    return {.label = nth(labels, entry.label),
            .size_bytes = static_cast<int64_t>(entry.size_bytes),
            .beginning = entry.beginning,
            .header = {.format = static_cast<ImageFormat>(entry.format),
                       .height = entry.height,
                       .width = entry.width,
                       .orientation = entry.orientation}};
  }

  std::shared_ptr<const RecordSet> records_;
  std::vector<ImageFacts> facts_;
};

}  // namespace

RecordSet::RecordSet(const std::string& folder, const RecordIndex& index, int part,
                     const std::shared_ptr<FoundDamage>& found) {
  const PackedPart& packed = index.parts[part];
  FileAttempts attempt(found);
  for (size_t i = 0; i < packed.shards.size(); ++i) {
    const ShardFacts& facts = packed.shards[i];
    const std::string path = path_in(folder, facts.file);
    attempt(path, [&] {
      shards_.push_back(std::make_unique<const Shard>(path));
      check_shard(*shards_.back(), facts, index, part, i);
    });
    first_.push_back(count_);
    count_ += facts.records;
  }
  attempt.finish();
}

std::pair<const Shard*, int64_t> RecordSet::find(int64_t record) const {
  // The last shard that begins at or before it: shards without records share their beginning with the next.
  const auto next = std::ranges::upper_bound(first_, record);
  const auto shard = static_cast<size_t>(next - first_.begin()) - 1;
  return {shards_[shard].get(), record - first_[shard]};
}

ShardEntry RecordSet::entry(int64_t record) const {
  const auto [shard, within] = find(record);
  return shard->entry(within);
}

std::string RecordSet::place(int64_t record) const {
  const auto [shard, within] = find(record);
  const std::string name = shard->name(within);
  return fmt::format("{}, record {}{}", one_line(shard->path()), within,
                     name.empty() ? name : fmt::format(" ({})", one_line(name)));
}

RecordDamage RecordSet::damage(int64_t record, RecordState state) const {
  const auto [shard, within] = find(record);
  if (state == RecordState::damaged)
    return {
        static_cast<int64_t>(shard->entry(within).offset),
        "the record has another checksum than the shard's table states, or the file was overwritten since "
        "it was opened"};
  std::error_code unknown;
  const auto now = std::filesystem::file_size(shard->path(), unknown);
  return {0, fmt::format("expected the {} bytes that the shard had when it was opened, found {}: it was cut "
                         "short or overwritten, or its disk failed",
                         shard->size_bytes(), unknown ? "none" : std::to_string(now))};
}

std::unique_ptr<const ImageStore> images_of(std::shared_ptr<const RecordSet> records,
                                            const std::vector<int32_t>& labels) {
  return std::make_unique<RecordImages>(std::move(records), labels);
}

}  // namespace lockstep::data
