#include "checkpoint/state_hash.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <tuple>

#include "base/ensure.h"
#include "base/hash.h"
#include "checkpoint/strict_json.h"

namespace lockstep::checkpoint {

std::vector<uint64_t> chunk_hashes(const void* data, DType dtype, int64_t count) {
  const auto* bytes = static_cast<const std::byte*>(data);
  std::vector<uint64_t> hashes;
  hashes.reserve(static_cast<size_t>((count + kHashChunkElements - 1) / kHashChunkElements));
  for (int64_t first = 0; first < count; first += kHashChunkElements) {
    const int64_t elements = std::min(kHashChunkElements, count - first);
    hashes.push_back(hash64(bytes + first * size_of(dtype), static_cast<size_t>(elements * size_of(dtype))));
  }
  return hashes;
}

TensorChunks hashed_chunks_of(const NamedTensor& tensor) {
  tensor::require_whole_chunks(tensor.part, tensor.shape.count(), tensor.name);
  return {tensor.name, tensor.part.first() / kHashChunkElements,
          chunk_hashes(tensor.data, tensor.dtype, tensor.count())};
}

std::vector<std::pair<std::string, uint64_t>> fold_parts(std::vector<TensorChunks> parts) {
  std::sort(parts.begin(), parts.end(), [](const auto& a, const auto& b) {
    return std::tie(a.name, a.first) < std::tie(b.name, b.first);
  });
  std::vector<std::pair<std::string, uint64_t>> tensors;
  for (size_t begin = 0, end = 0; begin < parts.size(); begin = end) {
    std::vector<uint64_t> chunks;
    for (; end < parts.size() && parts[end].name == parts[begin].name; ++end) {
      ensure(parts[end].first == static_cast<int64_t>(chunks.size()),
             fmt::format("the hashes of '{}' have {} chunks before chunk {}", parts[end].name, chunks.size(),
                         parts[end].first));
      chunks.insert(chunks.end(), parts[end].hashes.begin(), parts[end].hashes.end());
    }
    tensors.emplace_back(parts[begin].name, fold_chunks(chunks));
  }
  return tensors;
}

std::string to_text(std::span<const TensorChunks> parts) {
  nlohmann::json json = nlohmann::json::array();
  for (const auto& part : parts) {
    std::string digits;
    for (const uint64_t hash : part.hashes) digits += to_hex(hash);
    json.push_back({part.name, part.first, digits});
  }
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::vector<TensorChunks> tensor_chunks_from_text(std::string_view text) {
  constexpr size_t kDigits = 16;
  std::vector<TensorChunks> parts;
  for (const auto& entry : parse_strict_json(text, "hashes of tensors")) {
    auto& part = parts.emplace_back(entry.at(0).get<std::string>(), entry.at(1).get<int64_t>());
    const auto& digits = entry.at(2).get_ref<const std::string&>();
    for (size_t at = 0; at + kDigits <= digits.size(); at += kDigits)
      std::from_chars(digits.data() + at, digits.data() + at + kDigits, part.hashes.emplace_back(), 16);
  }
  return parts;
}

uint64_t fold_chunks(std::span<const uint64_t> chunks) {
  uint64_t hash = chunks.size();
  for (const uint64_t chunk : chunks) hash = hash_combine(hash, chunk);
  return hash;
}

uint64_t fold_tensors(std::vector<std::pair<std::string, uint64_t>> tensors) {
  std::sort(tensors.begin(), tensors.end());
  uint64_t hash = tensors.size();
  for (const auto& [name, tensor] : tensors) hash = hash_combine(hash, hash_combine(hash64(name), tensor));
  return hash;
}

uint64_t tensor_hash(const NamedTensor& tensor) {
  ensure(tensor.count() == tensor.shape.count(), "a tensor's hash is of all of it");
  return fold_chunks(chunk_hashes(tensor.data, tensor.dtype, tensor.shape.count()));
}

uint64_t parameters_hash(std::span<const NamedTensor> tensors) {
  std::vector<std::pair<std::string, uint64_t>> hashes;
  for (const auto& tensor : tensors) hashes.emplace_back(tensor.name, tensor_hash(tensor));
  return fold_tensors(std::move(hashes));
}

}  // namespace lockstep::checkpoint
