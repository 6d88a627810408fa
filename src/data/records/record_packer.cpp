#include "data/records/record_packer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <filesystem>
#include <mutex>
#include <optional>
#include <thread>

#include "base/hash.h"
#include "base/log.h"
#include "base/text.h"
#include "data/byte_source.h"
#include "data/file_list.h"
#include "data/images/image_dataset.h"
#include "data/records/record_set.h"
#include "data/records/shard_writer.h"
#include "lockstep/error.h"

namespace lockstep::data {
namespace {

/// Samples [begin, end) of a part.
struct PlannedShard {
  int part = 0;
  int64_t number = 0, begin = 0, end = 0;
  std::string name() const { return shard_name(part, number); }
};

std::vector<PlannedShard> plan_shards(const RecordSource& source, int64_t shard_bytes) {
  std::vector<PlannedShard> shards;
  for (int part = 0; part < 2; ++part) {
    const int64_t count = source.count(part);
    int64_t number = 0;
    for (int64_t begin = 0, end = 0; begin < count; begin = end) {
      for (int64_t bytes = 0; end < count && (end == begin || bytes < shard_bytes); ++end)
        bytes += source.expected_bytes(part, end) + static_cast<int64_t>(sizeof(ShardEntry));
      shards.push_back({part, number++, begin, end});
    }
  }
  return shards;
}

/// While it lives, no other process packs into the folder.
class FolderLock {
 public:
  explicit FolderLock(const std::string& folder)
      : descriptor_(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
    if (descriptor_ < 0) throw_io_error("open the folder", folder, folder, errno);
    if (::flock(descriptor_, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return;
    ::close(descriptor_);
    throw ConfigError(
        fmt::format("data pack: another process packs into {}; wait for it, or choose another "
                    "folder",
                    folder));
  }
  ~FolderLock() { ::close(descriptor_); }
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  int descriptor_;
};

class Packer {
 public:
  Packer(const RecordSource& source, const PackOptions& options)
      : source_(source), options_(options), plan_(plan_shards(source, options.shard_bytes)) {
    const int64_t how[] = {options.shard_bytes, kShardVersion};
    id_ = hash_combine(source.identity(), hash64(how, sizeof how));
    done_.resize(plan_.size());
  }

  PackResult run() {
    options_.files->make_directory(options_.directory);
    const FolderLock lock(options_.directory);
    clear();
    make_all();
    return write_index();
  }

 private:
  std::string path_of(std::string_view name) const { return path_in(options_.directory, std::string(name)); }

  /// Removes what is unfinished or damaged, and, if it may, what is of another packing.
  void clear() {
    FileSystem& files = *options_.files;
    for (const auto& name : list_directory(options_.directory)) {
      const std::string path = path_of(name);
      if (name.ends_with(".records.part") || name == unfinished_name(std::string(kIndexFile)))
        files.remove_all(path);
      if (name == kIndexFile ? !is_own_index(path) : name.ends_with(".records") && !is_own_shard(path)) {
        if (!options_.overwrite)
          throw ConfigError(
              fmt::format("data pack: {} has records of other data, or packed in another way "
                          "({}); choose another folder, or replace them (--force)",
                          options_.directory, name));
        files.remove_all(path);
      }
    }
  }

  bool is_own_index(const std::string& path) const try {
    return index_from_json(read_text_file(path), path).pack == id_;
  } catch (const DataError&) {
    return false;
  }

  /// A damaged shard under the name of a planned one counts as own: it is made anew.
  bool is_own_shard(const std::string& path) const try {
    return Shard(path).footer().pack == id_;
  } catch (const DataError&) {
    return std::ranges::any_of(plan_, [&](const auto& shard) { return path == path_of(shard.name()); });
  }

  void make_all() {
    std::atomic<size_t> next = 0;
    std::exception_ptr error;
    std::mutex mutex;
    const auto work = [&] {
      while (!stopping_) {
        const size_t i = next++;
        if (i >= plan_.size()) return;
        try {
          make_one(i);
        } catch (...) {
          const std::lock_guard lock(mutex);
          if (!error) error = std::current_exception();
          stopping_ = true;
        }
      }
    };
    const int most = options_.threads > 0
                         ? options_.threads
                         : static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
    const size_t threads = std::min(plan_.size(), static_cast<size_t>(most));
    {
      std::vector<std::jthread> others;
      for (size_t i = 1; i < threads; ++i) others.emplace_back(work);
      work();
    }
    if (error) std::rethrow_exception(error);
  }

  void make_one(size_t i) {
    const PlannedShard& shard = plan_[i];
    done_[i] = find_finished(shard);
    const bool kept = done_[i].has_value();
    kept_ += kept;
    if (!kept) done_[i] = write(shard);
    if (!done_[i]) return;  // another thread has failed
    log_info(fmt::format("{}: {} records, {}{} ({} of {})", shard.name(), done_[i]->records,
                         human_bytes(done_[i]->size_bytes), kept ? ", kept" : "", ++finished_, plan_.size()));
  }

  std::optional<ShardFacts> find_finished(const PlannedShard& planned) const {
    const std::string path = path_of(planned.name());
    if (!path_exists(path)) return {};
    try {
      const Shard shard(path);
      const ShardFooter& footer = shard.footer();
      if (footer.pack == id_ && footer.part == planned.part && footer.number == planned.number &&
          shard.has_its_hash())
        return ShardFacts{planned.name(), shard.size_bytes(), shard.count(), footer.hash};
      log_warning(fmt::format("{}: the checksum is another; it is made anew", path));
    } catch (const DataError& damage) {
      log_warning(fmt::format("{}; it is made anew", damage.what()));
    }
    options_.files->remove_all(path);
    return {};
  }

  std::optional<ShardFacts> write(const PlannedShard& planned) {
    const std::string path = path_of(planned.name());
    ShardWriter writer(*options_.files, path);
    MadeRecord record;
    int64_t records = 0;
    for (int64_t sample = planned.begin; sample < planned.end; ++sample) {
      if (stopping_) return {};
      if (!source_.make(planned.part, sample, record)) continue;
      writer.add(record.entry, record.name, record.bytes);
      ++records;
    }
    ShardFooter footer;
    footer.pack = id_;
    footer.part = static_cast<uint16_t>(planned.part);
    footer.number = static_cast<uint32_t>(planned.number);
    const uint64_t hash = writer.finish(footer);
    return ShardFacts{planned.name(), static_cast<int64_t>(std::filesystem::file_size(path)), records, hash};
  }

  PackResult write_index() {
    RecordIndex index = source_.index();
    index.pack = id_;
    for (size_t i = 0; i < plan_.size(); ++i) index.parts[plan_[i].part].shards.push_back(*done_[i]);
    PackResult result{.shards = static_cast<int64_t>(plan_.size()), .kept_shards = kept_};
    for (int part = 0; part < 2; ++part) {
      PackedPart& packed = index.parts[part];
      result.records[part] = packed.records();
      packed.left_out += source_.count(part) - packed.records();
      result.left_out += packed.left_out;
      for (const auto& shard : packed.shards) result.bytes += shard.size_bytes;
      if (source_.count(part) > 0 && packed.records() == 0)
        throw DataError("data pack: expected samples, but all are damaged");
      if (index.content != RecordContent::samples && packed.records() > 0)
        packed.identity = identity_of_images(index, part);
    }
    const std::string text = to_json(index), path = path_of(kIndexFile);
    if (path_exists(path)) {
      if (read_text_file(path) == text) return result;
      options_.files->remove_all(path);
    }
    const auto file = options_.files->create(unfinished_name(path));
    file->write(text.data(), text.size());
    file->sync();
    file->close();
    options_.files->rename(unfinished_name(path), path);
    options_.files->sync_directory(options_.directory);
    return result;
  }

  uint64_t identity_of_images(const RecordIndex& index, int part) const {
    std::vector<int32_t> labels(static_cast<size_t>(index.classes));
    for (size_t i = 0; i < labels.size(); ++i) labels[i] = static_cast<int32_t>(i);
    return identity_of(
        *images_of(std::make_shared<const RecordSet>(options_.directory, index, part), labels));
  }

  const RecordSource& source_;
  const PackOptions& options_;
  std::vector<PlannedShard> plan_;
  uint64_t id_ = 0;
  std::vector<std::optional<ShardFacts>> done_;
  std::atomic<bool> stopping_ = false;
  std::atomic<int64_t> kept_ = 0;
  std::atomic<size_t> finished_ = 0;
};

}  // namespace

PackResult pack_records(const DataOptions& data, const PackOptions& options) {
  require(options.shard_bytes >= 1 << 16,
          fmt::format("data pack: expected shards of at least 65536 bytes, found {}", options.shard_bytes));
  require(options.images.longest_side >= 0 && options.images.longest_side <= 65535,
          fmt::format("data pack: expected a longest side from 1 to 65535 pixels, found {}",
                      options.images.longest_side));
  require(options.images.quality >= 1 && options.images.quality <= 100,
          fmt::format("data pack: expected a JPEG quality from 1 to 100, found {}", options.images.quality));
  const auto source = open_record_source(data, options.images);
  return Packer(*source, options).run();
}

}  // namespace lockstep::data
