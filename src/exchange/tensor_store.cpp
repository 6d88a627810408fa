#include "exchange/tensor_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <filesystem>
#include <fstream>
#include <set>

#include "base/text.h"
#include "checkpoint/file_names.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/strict_json.h"
#include "lockstep/error.h"
#include "tensor/convert.h"
#include "tokenizer/tokenizer.h"

namespace lockstep::exchange {
namespace {

namespace fs = std::filesystem;
using checkpoint::SafetensorsFile;
using Entries = std::map<std::string, TensorStore::Entry, std::less<>>;

constexpr int64_t kChunk = 1 << 20;  // elements converted at once

[[noreturn]] void refuse_type(const std::string& path, const std::string& name, const std::string& type) {
  throw CheckpointError(fmt::format("{}: tensor '{}' is {}; expected F32, BF16 or F16", path, name, type));
}

constexpr const char* kPickle =
    "a pickle of PyTorch, which may run any program when it is read; convert it: "
    "safetensors.torch.save_file(torch.load(FILE, weights_only=True), \"model.safetensors\")";

/// Pickles are zip archives, or begin with the number of their protocol, as does the length of some
/// safetensors files' headers, behind which is a brace.
bool is_pickle(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  char begin[9] = {};
  file.read(begin, sizeof begin);
  return std::string_view(begin, 4) == "PK\x03\x04" ||
         (begin[0] == '\x80' && begin[1] >= 2 && begin[1] <= 5 && begin[8] != '{');
}

/// The files of a folder, and what the index says of each tensor; nothing without an index.
struct Folder {
  std::vector<std::string> files;
  std::map<std::string, std::string> file_of;
};

Folder read_index(const fs::path& folder, const std::string& index) {
  require_regular_file(index);
  const auto json = checkpoint::parse_strict_json(read_text_file(index), index);
  if (!json.is_object() || !json.contains("weight_map") || !json["weight_map"].is_object() ||
      json["weight_map"].empty())
    throw CheckpointError(fmt::format("{}: expected a weight_map of tensors and files, found none", index));
  Folder found;
  std::set<std::string> files;
  for (const auto& [tensor, file] : json["weight_map"].items()) {
    const std::string name = file.is_string() ? file.get<std::string>() : "";
    if (name.empty() || name.find('/') != std::string::npos || name == "..")
      throw CheckpointError(fmt::format("{}: tensor '{}': expected the name of a file beside it, found {}",
                                        index, tensor, file.dump(-1, ' ', true)));
    found.file_of[tensor] = (folder / name).string();
    files.insert(name);
  }
  for (const auto& name : files) {
    found.files.push_back((folder / name).string());
    if (!path_exists(found.files.back()))
      throw CheckpointError(
          fmt::format("{}: expected the file {}, which {} names, found none", folder.string(), name, index));
  }
  return found;
}

Folder look_at(const std::string& path) {
  std::error_code unknown;
  if (!fs::is_directory(path, unknown)) {
    if (!fs::exists(path, unknown)) throw CheckpointError(fmt::format("there is no file or folder {}", path));
    require_regular_file(path);
    if (is_pickle(path)) throw CheckpointError(fmt::format("{}: is {}", path, kPickle));
    return {{path}, {}};
  }
  const fs::path folder(path);
  if (const std::string index = (folder / checkpoint::kIndexName).string(); path_exists(index))
    return read_index(folder, index);
  if (const std::string file = (folder / kTensorFile).string(); path_exists(file)) return {{file}, {}};
  if (const std::string pickle = (folder / "pytorch_model.bin").string(); path_exists(pickle))
    throw CheckpointError(fmt::format("{}: is {}", pickle, kPickle));
  throw CheckpointError(fmt::format("{}: expected {}, or {} with the files that it names, found neither",
                                    path, kTensorFile, checkpoint::kIndexName));
}

class SafetensorsStore : public TensorStore {
 public:
  explicit SafetensorsStore(std::string path) : path_(std::move(path)) {
    const Folder folder = look_at(path_);
    for (const auto& name : folder.files) require_regular_file(name);
    for (const auto& name : folder.files) add(files_.emplace_back(name), folder.file_of);
    for (const auto& [tensor, file] : folder.file_of)
      if (!entries_.contains(tensor))
        throw CheckpointError(fmt::format("{}: expected tensor '{}', as {} says, found none", file, tensor,
                                          checkpoint::kIndexName));
  }

  const std::string& path() const override { return path_; }
  const Entries& entries() const override { return entries_; }
  const std::map<std::string, std::string>& metadata() const override { return files_.front().metadata(); }
  std::optional<std::string> tokenizer_text() const override {
    const std::string file = (fs::path(path_) / tokenizer::kTokenizerFile).string();
    require_regular_file(file);
    return path_exists(file) ? std::optional(read_text_file(file)) : std::nullopt;
  }

  void read(const std::string& name, int64_t first, int64_t count, float* to) const override {
    const auto& [file, entry] = places_.at(name);
    if (!entry->dtype || (entry->dtype != DType::float32 && !tensor::is_narrow(*entry->dtype)))
      refuse_type(file->path(), name, entry->type);
    if (*entry->dtype == DType::float32) return file->read_slice(*entry, first, count, to);
    std::vector<std::byte> narrow(static_cast<size_t>(std::min(count, kChunk) * size_of(*entry->dtype)));
    for (int64_t done = 0; done < count; done += kChunk) {
      const int64_t some = std::min(kChunk, count - done);
      file->read_slice(*entry, first + done, some, narrow.data());
      tensor::convert(to + done, DType::float32, narrow.data(), *entry->dtype, some);
    }
  }

 private:
  void add(const SafetensorsFile& file, const std::map<std::string, std::string>& file_of) {
    for (const auto& entry : file.entries()) {
      const auto meant = file_of.find(entry.name);
      if (!file_of.empty() && meant != file_of.end() && meant->second != file.path())
        throw CheckpointError(fmt::format("{}: tensor '{}' is here, but {} says that it is in {}",
                                          file.path(), entry.name, checkpoint::kIndexName, meant->second));
      if (!entries_.emplace(entry.name, Entry{entry.type, entry.dtype, entry.shape}).second)
        throw CheckpointError(
            fmt::format("{}: tensor '{}' is in another file, too", file.path(), entry.name));
      places_.emplace(entry.name, std::pair(&file, &entry));
    }
  }

  std::string path_;
  std::deque<SafetensorsFile> files_;  // whose places stay
  Entries entries_;
  std::map<std::string, std::pair<const SafetensorsFile*, const SafetensorsFile::Entry*>> places_;
};

class CheckpointStore : public TensorStore {
 public:
  CheckpointStore(const std::string& path, const checkpoint::BeforeRead& before_read)
      : checkpoint_(path, before_read) {
    for (const auto& tensor : checkpoint_.tensors(checkpoint::FileKind::model))
      entries_.emplace(tensor.name, Entry{std::string(checkpoint::safetensors_name(tensor.dtype)),
                                          tensor.dtype, tensor.shape});
  }

  const std::string& path() const override { return checkpoint_.path(); }
  const Entries& entries() const override { return entries_; }
  const std::map<std::string, std::string>& metadata() const override { return none_; }
  std::optional<std::string> tokenizer_text() const override {
    const auto& encodings = checkpoint_.manifest().encodings;
    const auto found = encodings.find(std::string(tokenizer::kTokenizerFile));
    return found == encodings.end() ? std::nullopt : std::optional(found->second);
  }

  void read(const std::string& name, int64_t first, int64_t count, float* to) const override {
    const Entry& entry = entries_.at(name);
    if (entry.dtype != DType::float32) refuse_type(path(), name, entry.type);
    const std::vector<checkpoint::TensorDestination> destination{
        {name, DType::float32, entry.shape, to, tensor::Part::range(first, count)}};
    checkpoint_.load(checkpoint::FileKind::model, destination);
  }

 private:
  checkpoint::Checkpoint checkpoint_;
  Entries entries_;
  std::map<std::string, std::string> none_;
};

}  // namespace

void require_regular_file(const std::string& path) {
  std::error_code unknown;
  if (fs::exists(path, unknown) && !fs::is_regular_file(path, unknown))
    throw CheckpointError(fmt::format("{}: expected a file, found a folder, a pipe or a device", path));
}

std::unique_ptr<TensorStore> open_safetensors(const std::string& path) {
  return std::make_unique<SafetensorsStore>(path);
}

std::unique_ptr<TensorStore> open_checkpoint(const std::string& path,
                                             const checkpoint::BeforeRead& before_read) {
  return std::make_unique<CheckpointStore>(path, before_read);
}

}  // namespace lockstep::exchange
