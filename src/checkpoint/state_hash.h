#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "checkpoint/named_tensor.h"
#include "tensor/part.h"

namespace lockstep::checkpoint {

// A hash that is equal for runs with equal bits, in any layout. Each chunk of 65,536 elements has a hash; a
// tensor folds the hashes of its chunks in order; a model folds its tensors by ascending name. So the owner
// of a part that begins and ends on chunk borders can compute the hashes of the part alone.

inline constexpr int64_t kHashChunkElements = tensor::kChunkElements;

/// Hashes of the chunks of `count` elements, the last one shorter.
std::vector<uint64_t> chunk_hashes(const void* data, DType dtype, int64_t count);
/// Hashes of neighbouring chunks of a tensor.
struct TensorChunks {
  std::string name;
  int64_t first = 0;  ///< number of the first one
  std::vector<uint64_t> hashes;
  bool operator==(const TensorChunks&) const = default;
};
/// Throws InternalError unless the part has whole chunks.
TensorChunks hashed_chunks_of(const NamedTensor& tensor);
/// (name, hash) of every tensor, whose chunks may be in several parts, in any order. Throws InternalError
/// where some are missing between others or are there twice.
std::vector<std::pair<std::string, uint64_t>> fold_parts(std::vector<TensorChunks> parts);
std::string to_text(std::span<const TensorChunks> parts);
std::vector<TensorChunks> tensor_chunks_from_text(std::string_view text);

/// The hash of a tensor from those of all its chunks, in order.
uint64_t fold_chunks(std::span<const uint64_t> chunks);
/// The hash of all tensors from (name, hash) of each, in any order.
uint64_t fold_tensors(std::vector<std::pair<std::string, uint64_t>> tensors);

/// REQUIRES: the tensor is whole.
uint64_t tensor_hash(const NamedTensor& tensor);
/// fold_tensors over all of them. Shapes do not enter: tensors of equal names and bits have equal hashes.
uint64_t parameters_hash(std::span<const NamedTensor> tensors);

}  // namespace lockstep::checkpoint
