#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "data/dataset.h"

namespace lockstep::data {

/// An array of bytes as the IDX format of the MNIST files holds it: big-endian magic 0x000008RR (RR: rank),
/// RR 32-bit dimensions, then the values, the last dimension fastest.
struct IdxArray {
  std::vector<int64_t> dims;
  std::vector<uint8_t> values;
};

/// Reads an IDX file, gzip or not, and demands `rank` dimensions (1: labels; 3: images; of images also 4,
/// with the channels of each pixel side by side). Throws DataError naming the file, what was expected and
/// what was found, without taking memory that the file cannot fill, or more than `most_inflated` (see
/// ByteSource).
IdxArray read_idx(const std::string& path, int rank, int64_t most_inflated = 0);

/// The bytes of an IDX file. REQUIRES: values.size() is the product of `dims`, each below 2^32.
std::vector<uint8_t> idx_bytes(std::span<const int64_t> dims, std::span<const uint8_t> values);

/// Fields "image" float32 [height, width, channels] and "label" int32 []. Files are held in memory as bytes;
/// a value becomes (value / 255 - mean) / deviation when it is read.
DatasetPair open_idx_datasets(const DataOptions& options);

}  // namespace lockstep::data
