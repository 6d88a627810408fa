#include "checkpoint/state_hash.h"

#include <algorithm>

#include "base/hash.h"

namespace lockstep {

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
  return fold_chunks(chunk_hashes(tensor.data, tensor.dtype, tensor.shape.count()));
}

uint64_t parameters_hash(std::span<const NamedTensor> tensors) {
  std::vector<std::pair<std::string, uint64_t>> hashes;
  for (const auto& tensor : tensors) hashes.emplace_back(tensor.name, tensor_hash(tensor));
  return fold_tensors(std::move(hashes));
}

}  // namespace lockstep
