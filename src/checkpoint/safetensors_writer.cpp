#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "checkpoint/safetensors.h"
#include "lockstep/error.h"

namespace lockstep::checkpoint {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors data are little-endian");

constexpr size_t kAlignment = 8;           // of the data within the file
constexpr size_t kChunkBytes = 256 << 10;  // hashed and written while it lies in the cache

std::string header_of(std::span<const NamedTensor* const> tensors,
                      const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  int64_t offset = 0;
  for (const auto* tensor : tensors) {
    const TensorRecord entry = entry_of({tensor->name, tensor->dtype, tensor->shape, tensor->part});
    require(entry.name != "__metadata__" && !header.contains(entry.name),
            fmt::format("safetensors: expected tensors of different names, none '__metadata__', found '{}'",
                        entry.name));
    const int64_t end = offset + tensor->size_bytes();
    header[entry.name] = {{"dtype", safetensors_name(entry.dtype)},
                          {"shape", entry.shape.dims()},
                          {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const nlohmann::json::exception& error) {
    throw ConfigError(fmt::format("safetensors: expected names in UTF-8, found others ({})", error.what()));
  }
  text.resize((text.size() + kAlignment - 1) / kAlignment * kAlignment, ' ');
  return text;
}

}  // namespace

TensorRecord entry_of(const TensorRecord& record) {
  const tensor::Part& part = record.part;
  if (record.is_whole()) return record;
  if (part.is_range())
    return {fmt::format("{}[{}:{}]", record.name, part.first(), part.end()), record.dtype,
            Shape{part.count()}};
  const int64_t row = part.first() / part.pitch(), column = part.first() % part.pitch();
  return {
      fmt::format("{}[{}:{},{}:{}]", record.name, row, row + part.rows(), column, column + part.columns()),
      record.dtype, Shape{part.rows(), part.columns()}};
}

WrittenFile write_safetensors(FileSystem& files, const std::string& path,
                              std::span<const NamedTensor> tensors,
                              const std::map<std::string, std::string>& metadata) {
  std::vector<const NamedTensor*> ordered;
  for (const auto& tensor : tensors) ordered.push_back(&tensor);
  std::sort(ordered.begin(), ordered.end(), [](const NamedTensor* a, const NamedTensor* b) {
    const int64_t size_a = size_of(a->dtype), size_b = size_of(b->dtype);
    return size_a != size_b ? size_a > size_b
                            : std::pair(std::string_view(a->name), a->part.first()) <
                                  std::pair(std::string_view(b->name), b->part.first());
  });
  const std::string header = header_of(ordered, metadata);
  const auto header_bytes = static_cast<uint64_t>(header.size());

  const auto file = files.create(path);
  FileDigest digest;
  WrittenFile written;
  const auto append = [&](const void* data, size_t size_bytes) {
    const auto* bytes = static_cast<const std::byte*>(data);
    for (size_t done = 0; done < size_bytes;) {
      const size_t chunk = std::min(size_bytes - done, kChunkBytes);
      digest.update(bytes + done, chunk);
      file->write(bytes + done, chunk);
      done += chunk;
    }
    written.size_bytes += static_cast<int64_t>(size_bytes);
  };
  append(&header_bytes, sizeof header_bytes);
  append(header.data(), header.size());
  for (const auto* tensor : ordered) append(tensor->data, static_cast<size_t>(tensor->size_bytes()));
  file->sync();
  file->close();
  written.checksums = digest.checksums();
  return written;
}

}  // namespace lockstep::checkpoint
