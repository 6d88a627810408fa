#include "checkpoint/checkpoint_writer.h"

#include <fmt/format.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/ensure.h"
#include "base/text.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/file_names.h"
#include "checkpoint/safetensors.h"
#include "lockstep/error.h"

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;

/// Deletes a folder in two steps, so that one half deleted is never taken for a checkpoint.
void delete_checkpoint(const std::string& path, FileSystem& files) {
  const std::string doomed = path + ".deleted" + std::string(kTemporarySuffix);
  files.remove_all(doomed);  // of an earlier attempt
  files.rename(path, doomed);
  files.sync_directory(fs::path(path).parent_path().string());
  files.remove_all(doomed);
}

}  // namespace

NotDurableError::NotDurableError(std::string checkpoint, const Error& cause)
    : Error(fmt::format("the checkpoint is complete, but may not survive a power failure: {}", cause.what()),
            cause.code()),
      path(std::move(checkpoint)) {}

CheckpointWriter::CheckpointWriter(std::string directory, int64_t step, FileSystem& files)
    : directory_(std::move(directory)), step_(step), files_(files) {
  require(step >= 0 && !directory_.empty(),
          fmt::format("checkpoint: expected a folder and a step from 0 on, found '{}' "
                      "and {}",
                      directory_, step));
  final_path_ = (fs::path(directory_) / checkpoint_folder_name(step)).string();
  temporary_path_ = final_path_ + std::string(kTemporarySuffix);
}

void CheckpointWriter::begin(int64_t expected_bytes) {
  files_.make_directory(directory_);
  clear_leftovers();
  if (const int64_t free = files_.free_bytes(directory_); free < expected_bytes)
    throw IoError(
        fmt::format("cannot write {}: expected {} of free space, found {}; free some space, keep fewer "
                    "checkpoints, or choose another output folder",
                    final_path_, human_bytes(expected_bytes), human_bytes(free)));
  files_.make_directory(temporary_path_);
}

void CheckpointWriter::clear_leftovers() {
  std::vector<std::string> leftovers;
  for (const auto& name : list_directory(directory_))
    if (name.starts_with("step-") && (name.ends_with(kTemporarySuffix) || name.ends_with(kPreviousSuffix)))
      leftovers.push_back((fs::path(directory_) / name).string());
  for (const auto& path : leftovers) {
    try {
      clear_leftover(path);
    } catch (const IoError&) {
      // Only what has this one's names is in its way.
      if (path.starts_with(final_path_ + ".")) throw;
    }
  }
}

void CheckpointWriter::clear_leftover(const std::string& path) {
  if (path.ends_with(kTemporarySuffix)) {
    files_.remove_all(path);
    return;
  }
  const std::string successor = path.substr(0, path.size() - kPreviousSuffix.size());
  if (path_exists(successor)) {
    delete_checkpoint(path, files_);
  } else {  // interrupted between the two renames: the old one is still the newest of its step
    files_.rename(path, successor);
    files_.sync_directory(directory_);
  }
}

FileRecord CheckpointWriter::write_shard(FileKind kind, int index, int count,
                                         std::span<const NamedTensor> tensors) {
  require(has_tensors(kind) && 1 <= index && index <= count,
          fmt::format("checkpoint: expected a shard from 1 to {}, found {} {}", count, name_of(kind), index));
  FileRecord record;
  record.kind = kind;
  record.name = fmt::format("{}-{:05}-of-{:05}.safetensors", name_of(kind), index, count);
  // "format" is what Python's loaders look for before they read a file.
  // These are not: docs/weights.md.
  const auto written = write_safetensors(
      files_, temporary_path_ + "/" + record.name, tensors,
      {{"format", "pt"}, {"conv2d_weight", "[out, kh, kw, in]"}, {"flattened_images", "H, W, C"}});
  record.size_bytes = written.size_bytes;
  record.checksums = written.checksums;
  for (const auto& tensor : tensors)
    record.tensors.push_back({tensor.name, tensor.dtype, tensor.shape, tensor.part});
  return record;
}

std::string CheckpointWriter::commit(Manifest manifest) {
  check_shards(manifest);
  manifest.files.push_back(write_index(manifest));
  for (const auto& [name, text] : manifest.encodings) {
    const auto written = write_text(name, text);
    manifest.files.push_back({name, FileKind::encoding, written.size_bytes, written.checksums, {}});
  }
  write_text(std::string(kManifestName), to_text(manifest));
  files_.sync_directory(temporary_path_);

  const std::string previous = final_path_ + std::string(kPreviousSuffix);
  const bool replaces = path_exists(final_path_);
  if (replaces) files_.rename(final_path_, previous);
  files_.rename(temporary_path_, final_path_);
  try {
    files_.sync_directory(directory_);
  } catch (const Error& error) {
    throw NotDurableError(final_path_, error);
  }
  if (replaces) {
    try {
      delete_checkpoint(previous, files_);
    } catch (const IoError&) {
      // The new one is there and durable; the next writer's begin() tries again, and reports it.
    }
  }
  return final_path_;
}

void CheckpointWriter::check_shards(const Manifest& manifest) const {
  ensure(manifest.step == step_,
         fmt::format("a manifest of step {} for a checkpoint of step {}", manifest.step, step_));
  std::set<std::string> files;
  std::set<std::pair<FileKind, std::string>> entries;
  std::map<FileKind, int> counts;
  for (const auto& file : manifest.files) {
    ensure(files.insert(file.name).second, fmt::format("shard {} is recorded twice", file.name));
    ++counts[file.kind];
    for (const auto& tensor : file.tensors)
      ensure(entries.insert({file.kind, entry_of(tensor).name}).second,
             fmt::format("tensor '{}' is in two shards", entry_of(tensor).name));
  }
  for (const auto& [kind, count] : counts)
    for (int index = 1; index <= count; ++index) {
      const auto name = fmt::format("{}-{:05}-of-{:05}.safetensors", name_of(kind), index, count);
      ensure(files.contains(name), fmt::format("shard {} was not recorded", name));
    }
}

FileRecord CheckpointWriter::write_index(const Manifest& manifest) {
  nlohmann::json weight_map = nlohmann::json::object();
  int64_t total_bytes = 0;
  for (const auto& file : manifest.files) {
    if (file.kind != FileKind::model) continue;
    for (const auto& tensor : file.tensors) {
      ensure(tensor.is_whole(), "other programs read a model's tensors whole");
      weight_map[tensor.name] = file.name;
      total_bytes += tensor.shape.count() * size_of(tensor.dtype);
    }
  }
  const nlohmann::json index{{"metadata", {{"total_size", total_bytes}}}, {"weight_map", weight_map}};
  const auto written = write_text(std::string(kIndexName), index.dump(1) + "\n");
  return {std::string(kIndexName), FileKind::index, written.size_bytes, written.checksums, {}};
}

WrittenFile CheckpointWriter::write_text(const std::string& name, const std::string& text) {
  const auto file = files_.create(temporary_path_ + "/" + name);
  file->write(text.data(), text.size());
  file->sync();
  file->close();
  FileDigest digest;
  digest.update(text.data(), text.size());
  return {static_cast<int64_t>(text.size()), digest.checksums()};
}

void CheckpointWriter::abandon() noexcept {
  try {
    files_.remove_all(temporary_path_);
  } catch (const std::exception&) {
    // The failure that led here is reported already, and the next writer tries again.
  }
}

void CheckpointWriter::prune(int keep, int64_t best_step) {
  if (keep <= 0) return;
  std::vector<std::string> complete;  // newest first
  std::string best;
  for (const auto& found : find_checkpoints(directory_)) {
    if (found.step > step_ || found.path.ends_with(kPreviousSuffix)) continue;
    try {
      const Manifest manifest = read_manifest(found.path);
      complete.push_back(found.path);
      // Each best one is better than those before it. The last may be missing, its save having failed.
      if (best_step >= 0 && best.empty() && found.step <= best_step &&
          (found.step == best_step || manifest.best_step == found.step))
        best = found.path;
    } catch (const Error&) {
    }
  }
  for (size_t i = static_cast<size_t>(keep); i < complete.size(); ++i)
    if (complete[i] != best) delete_checkpoint(complete[i], files_);
}

}  // namespace lockstep::checkpoint
