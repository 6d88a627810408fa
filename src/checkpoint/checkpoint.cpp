#include "checkpoint/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <limits>
#include <memory>
#include <set>

#include "base/ensure.h"
#include "base/hash.h"
#include "base/text.h"
#include "checkpoint/file_names.h"
#include "checkpoint/state_hash.h"
#include "lockstep/error.h"

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kResidualMark = ".residual.";

/// Reads a file once and compares size and checksums with what the manifest says.
void verify_file(const std::string& path, const FileRecord& record, const BeforeRead& before_read) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"), std::fclose);
  if (!file)
    throw CheckpointError(fmt::format("{}: expected a file, found none ({})", path, std::strerror(errno)));
  std::vector<char> chunk(256 << 10);
  FileDigest digest;
  int64_t size_bytes = 0;
  while (true) {
    if (before_read) before_read();
    const size_t got = std::fread(chunk.data(), 1, chunk.size(), file.get());
    if (got == 0) break;
    digest.update(chunk.data(), got);
    size_bytes += static_cast<int64_t>(got);
  }
  if (std::ferror(file.get())) throw IoError(fmt::format("cannot read {}: {}", path, std::strerror(errno)));
  if (size_bytes != record.size_bytes)
    throw CheckpointError(
        fmt::format("{}: expected {} bytes, found {}", path, record.size_bytes, size_bytes));
  const FileChecksums found = digest.checksums();
  if (found != record.checksums)
    throw CheckpointError(fmt::format(
        "{}: expected checksums {:08x} and {}, found {:08x} and {}: the file is damaged, or "
        "belongs to another checkpoint",
        path, record.checksums.crc32c, to_hex(record.checksums.xxh3), found.crc32c, to_hex(found.xxh3)));
}

void verify_tensors(const SafetensorsFile& file, const FileRecord& record) {
  for (const auto& whole : record.tensors) {
    const TensorRecord tensor = entry_of(whole);
    const auto* entry = file.find(tensor.name);
    if (!entry || entry->dtype != tensor.dtype || entry->shape != tensor.shape)
      throw CheckpointError(fmt::format("{}: expected tensor '{}' of {} {}, as the manifest says, found {}",
                                        file.path(), tensor.name, name_of(tensor.dtype),
                                        tensor.shape.to_string(),
                                        entry ? entry->type + " " + entry->shape.to_string() : "none"));
  }
  if (file.entries().size() != record.tensors.size())
    throw CheckpointError(fmt::format("{}: expected {} tensors, as the manifest says, found {}", file.path(),
                                      record.tensors.size(), file.entries().size()));
}

std::string join_problems(const std::string& path, FileKind kind, const std::vector<std::string>& problems) {
  constexpr size_t kShown = 8;
  std::vector<std::string> shown(
      problems.begin(), problems.begin() + static_cast<std::ptrdiff_t>(std::min(kShown, problems.size())));
  if (problems.size() > kShown) shown.push_back(fmt::format("and {} more", problems.size() - kShown));
  return fmt::format("{}: its {} tensors are not those of this model: {}", path, name_of(kind),
                     join(shown, "; "));
}

/// The last part of a path, also of one that ends with a slash.
std::string folder_name(const std::string& path) {
  const fs::path normal = fs::path(path).lexically_normal();
  return normal.has_filename() ? normal.filename().string() : normal.parent_path().filename().string();
}

}  // namespace

std::string checkpoint_folder_name(int64_t step) { return fmt::format("step-{:08}", step); }

std::optional<int64_t> step_of_folder_name(const std::string& name) {
  constexpr std::string_view kPrefix = "step-";
  int64_t step = 0;
  const char* end = name.data() + name.size();
  if (!name.starts_with(kPrefix)) return {};
  const auto [parsed, status] = std::from_chars(name.data() + kPrefix.size(), end, step);
  if (status != std::errc{} || parsed != end || step < 0 || checkpoint_folder_name(step) != name) return {};
  return step;
}

std::string to_text(const ResidualName& name) {
  return fmt::format("{}{}{}.{}", name.parameter, kResidualMark, name.use, name.leaf);
}

std::optional<ResidualName> residual_name_from(std::string_view text) {
  const size_t mark = text.rfind(kResidualMark);
  if (mark == text.npos) return {};
  ResidualName name{.parameter = std::string(text.substr(0, mark))};
  const char* const end = text.data() + text.size();
  const auto [dot, of_use] = std::from_chars(text.data() + mark + kResidualMark.size(), end, name.use);
  if (of_use != std::errc{} || dot == end || *dot != '.') return {};
  const auto [last, of_leaf] = std::from_chars(dot + 1, end, name.leaf);
  // Whatever is written otherwise is another name.
  if (of_leaf != std::errc{} || last != end || name.use < 0 || name.leaf < 0 ||
      name.leaf == std::numeric_limits<int>::max() || to_text(name) != text)
    return {};
  return name;
}

bool claims_to_be_checkpoint(const std::string& path) {
  return path_exists(path + "/" + std::string(kManifestName)) || step_of_folder_name(folder_name(path));
}

std::vector<FoundCheckpoint> find_checkpoints(const std::string& directory) {
  struct Found {
    FoundCheckpoint checkpoint;
    bool set_aside;
  };
  std::vector<Found> found;
  if (!path_exists(directory)) return {};
  for (const auto& entry : list_directory(directory)) {
    std::string name = entry;
    const bool set_aside = name.ends_with(kPreviousSuffix);
    if (set_aside) name.resize(name.size() - kPreviousSuffix.size());
    if (const auto step = step_of_folder_name(name))
      found.push_back({{*step, (fs::path(directory) / entry).string()}, set_aside});
  }
  // The one set aside is the older one of its step.
  std::sort(found.begin(), found.end(), [](const Found& a, const Found& b) {
    return a.checkpoint.step != b.checkpoint.step ? a.checkpoint.step > b.checkpoint.step
                                                  : a.set_aside < b.set_aside;
  });
  std::vector<FoundCheckpoint> checkpoints;
  for (auto& each : found) checkpoints.push_back(std::move(each.checkpoint));
  return checkpoints;
}

Manifest read_manifest(const std::string& path) {
  const std::string name = path + "/" + std::string(kManifestName);
  if (!path_exists(name))
    throw CheckpointError(
        fmt::format("{}: expected a checkpoint with a {}, found none", path, kManifestName));
  Manifest manifest = manifest_from_text(read_text_file(name), name);
  std::string folder = folder_name(path);
  if (folder.ends_with(kPreviousSuffix)) folder.resize(folder.size() - kPreviousSuffix.size());
  // A folder that was given another name is its owner's business; one that claims another step is a mix-up.
  if (const auto step = step_of_folder_name(folder); step && *step != manifest.step)
    throw CheckpointError(
        fmt::format("{}: expected the manifest of step {}, found that of step {}: it belongs to another "
                    "checkpoint",
                    name, *step, manifest.step));
  for (const auto& file : manifest.files) {
    const std::string file_path = path + "/" + file.name;
    std::error_code error;
    const auto size_bytes = fs::file_size(file_path, error);
    if (error)
      throw CheckpointError(fmt::format("{}: expected a file, found none ({})", file_path, error.message()));
    if (static_cast<int64_t>(size_bytes) != file.size_bytes)
      throw CheckpointError(
          fmt::format("{}: expected {} bytes, found {}", file_path, file.size_bytes, size_bytes));
    if (file.kind != FileKind::encoding) continue;
    verify_file(file_path, file, {});
    manifest.encodings[file.name] = read_text_file(file_path);
  }
  return manifest;
}

Checkpoint::Checkpoint(const std::string& path, const BeforeRead& before_read)
    : path_(path), manifest_(read_manifest(path)) {
  for (const auto& record : manifest_.files) {
    const std::string file_path = path_ + "/" + record.name;
    verify_file(file_path, record, before_read);
    if (!has_tensors(record.kind)) continue;
    const Shard& shard = shards_.emplace_back(record.kind, SafetensorsFile(file_path));
    verify_tensors(shard.file, record);
    for (const auto& part : record.tensors) {
      const TensorRecord whole{part.name, part.dtype, part.shape};
      Tensor& tensor = tensors_.try_emplace({record.kind, part.name}, Tensor{whole, {}}).first->second;
      if (tensor.record != whole)
        throw CheckpointError(fmt::format("{}: expected all parts of tensor '{}' to be of one type and shape",
                                          path_, part.name));
      tensor.parts.push_back({part.part, &shard.file, shard.file.find(entry_of(part).name)});
    }
  }
  for (const auto& [name, tensor] : tensors_) require_complete(tensor);
}

void Checkpoint::require_complete(const Tensor& tensor) const {
  std::vector<tensor::Part> parts;
  for (const StoredPart& stored : tensor.parts) parts.push_back(stored.part);
  if (const auto fault = tensor::tiling_fault(tensor.record.shape.count(), parts))
    throw CheckpointError(fmt::format("{}: expected element {} of tensor '{}' once, found it in {}", path_,
                                      fault->element, tensor.record.name,
                                      fault->is_twice ? "two parts" : "no file"));
}

std::vector<TensorRecord> Checkpoint::tensors(FileKind kind) const {
  std::vector<TensorRecord> all;
  for (const auto& [key, tensor] : tensors_)
    if (key.first == kind) all.push_back(tensor.record);
  return all;
}

const Checkpoint::Tensor* Checkpoint::find(FileKind kind, const std::string& name) const {
  const auto found = tensors_.find({kind, name});
  return found == tensors_.end() ? nullptr : &found->second;
}

std::string Checkpoint::mismatch(FileKind kind, const TensorRecord& expected) const {
  const Tensor* tensor = find(kind, expected.name);
  if (tensor == nullptr) return fmt::format("'{}' is missing", expected.name);
  const auto& [name, dtype, shape, whole] = tensor->record;
  if (dtype == expected.dtype && shape == expected.shape) return "";
  return fmt::format("'{}' is {} {}, expected {} {}", expected.name, safetensors_name(dtype),
                     shape.to_string(), safetensors_name(expected.dtype), expected.shape.to_string());
}

void Checkpoint::require_exactly(FileKind kind, std::span<const TensorRecord> expected) const {
  std::vector<std::string> problems;
  std::set<std::string> names;
  for (const auto& tensor : expected) {
    names.insert(tensor.name);
    if (auto problem = mismatch(kind, tensor); !problem.empty()) problems.push_back(std::move(problem));
  }
  for (const auto& tensor : tensors(kind))
    if (!names.contains(tensor.name)) problems.push_back(fmt::format("the model has no '{}'", tensor.name));
  if (!problems.empty()) throw CheckpointError(join_problems(path_, kind, problems));
}

void Checkpoint::load(FileKind kind, std::span<const TensorDestination> destinations,
                      const BeforeRead& before_read) const {
  std::vector<std::string> problems;
  for (const auto& destination : destinations)
    if (auto problem = mismatch(kind, {destination.name, destination.dtype, destination.shape});
        !problem.empty())
      problems.push_back(std::move(problem));
  if (!problems.empty()) throw CheckpointError(join_problems(path_, kind, problems));
  for (const auto& destination : destinations)
    ensure(destination.part.fits(destination.shape), "a part of a tensor lies within it");
  for (const auto& destination : destinations)
    for (const StoredPart& stored : find(kind, destination.name)->parts)
      read_common(destination, stored, before_read);
}

/// Reads what a destination needs of a part. Short runs that lie close together in the file are read at once,
/// with what lies between them.
void Checkpoint::read_common(const TensorDestination& destination, const StoredPart& stored,
                             const BeforeRead& before_read) {
  const int64_t width = size_of(destination.dtype);
  const int64_t most = (256 << 10) / width;
  auto* to = static_cast<std::byte*>(destination.data);
  std::vector<std::byte> together;
  std::vector<tensor::CommonRun> runs;  // of the same read: ascending in the file
  const auto read = [&] {
    if (runs.empty()) return;
    if (before_read) before_read();
    const int64_t begin = runs.front().in_b, end = runs.back().in_b + runs.back().count;
    if (runs.size() == 1) {
      stored.file->read_slice(*stored.entry, begin, end - begin, to + runs.front().in_a * width);
    } else {
      together.resize(static_cast<size_t>((end - begin) * width));
      stored.file->read_slice(*stored.entry, begin, end - begin, together.data());
      for (const auto& run : runs)
        std::memcpy(to + run.in_a * width, together.data() + (run.in_b - begin) * width,
                    static_cast<size_t>(run.count * width));
    }
    runs.clear();
  };
  tensor::for_common_runs(destination.part, stored.part, [&](const tensor::CommonRun& run) {
    const bool fits = runs.empty() || run.in_b + run.count - runs.front().in_b <= most;
    const bool goes_on = !runs.empty() && run.in_a == runs.back().in_a + runs.back().count &&
                         run.in_b == runs.back().in_b + runs.back().count;
    // A run by itself needs no memory beside the destination, however long it is.
    if (goes_on && (fits || runs.size() == 1)) {
      runs.back().count += run.count;
      return;
    }
    if (!fits) read();
    runs.push_back(run);
  });
  read();
}

uint64_t Checkpoint::hash_of(FileKind kind, const TensorRecord& record, const BeforeRead& before_read) const {
  constexpr int64_t kPieceElements = 16 * kHashChunkElements;
  const int64_t count = record.shape.count();
  std::vector<std::byte> piece(static_cast<size_t>(std::min(count, kPieceElements) * size_of(record.dtype)));
  std::vector<uint64_t> chunks;
  for (int64_t first = 0; first < count; first += kPieceElements) {
    const auto part = tensor::Part::range(first, std::min(kPieceElements, count - first));
    load(kind, std::vector<TensorDestination>{{record.name, record.dtype, record.shape, piece.data(), part}},
         before_read);
    const auto hashes = chunk_hashes(piece.data(), record.dtype, part.count());
    chunks.insert(chunks.end(), hashes.begin(), hashes.end());
  }
  return fold_chunks(chunks);
}

void Checkpoint::load_weights(Weights weights, std::span<const TensorDestination> destinations,
                              const BeforeRead& before_read) const {
  if (weights == Weights::parameters) return load(FileKind::model, destinations, before_read);
  std::vector<TensorDestination> parameters, averages;
  for (TensorDestination destination : destinations) {
    const std::string average = destination.name + std::string(kAverageSuffix);
    if (find(FileKind::optimizer, average) == nullptr) {
      parameters.push_back(std::move(destination));
    } else {
      destination.name = average;
      averages.push_back(std::move(destination));
    }
  }
  const auto is_average = [](const auto& tensor) {
    return tensor.first.first == FileKind::optimizer && tensor.first.second.ends_with(kAverageSuffix);
  };
  if (std::ranges::none_of(tensors_, is_average))
    throw ConfigError(fmt::format(
        "checkpoint {} has no moving averages: its run had no optimizer.ema; use it with --no-average",
        path_));
  load(FileKind::model, parameters, before_read);
  load(FileKind::optimizer, averages, before_read);
}

std::optional<Checkpoint> load_latest_valid(
    const std::string& directory,
    const std::function<void(const std::string&, const std::string&)>& on_refused,
    const BeforeRead& before_read) {
  for (const auto& found : find_checkpoints(directory)) {
    try {
      return Checkpoint(found.path, before_read);
    } catch (const CheckpointError& error) {
      on_refused(found.path, error.what());
    } catch (const IoError& error) {
      on_refused(found.path, error.what());
    }
  }
  return {};
}

}  // namespace lockstep::checkpoint
