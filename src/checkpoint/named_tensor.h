#pragma once

#include <string>
#include <vector>

#include "lockstep/tensor.h"

namespace lockstep::checkpoint {

/// Elements of a flattened tensor that one rank or one file holds.
struct Slice {
  int64_t first = 0;
  int64_t count = -1;  ///< -1: all from the first on
  bool operator==(const Slice&) const = default;
  bool is_whole() const { return first == 0 && count < 0; }
  int64_t count_of(const Shape& shape) const { return count < 0 ? shape.count() - first : count; }
};

/// What a file says about a tensor, and what a model expects of one.
struct TensorRecord {
  std::string name;
  DType dtype = DType::float32;
  Shape shape;  ///< of the whole tensor
  Slice slice = {};
  bool operator==(const TensorRecord&) const = default;
};

/// A tensor, or a slice of one, in memory, to be written or hashed. Borrows `data`.
struct NamedTensor {
  std::string name;
  DType dtype = DType::float32;
  Shape shape;  ///< of the whole tensor
  const void* data = nullptr;
  Slice slice = {};

  int64_t count() const { return slice.count_of(shape); }
  int64_t size_bytes() const { return count() * size_of(dtype); }
};

/// Host memory that a tensor of a file is loaded into.
struct TensorDestination {
  std::string name;
  DType dtype = DType::float32;
  Shape shape;  ///< of the whole tensor
  void* data = nullptr;
  Slice slice = {};
};

}  // namespace lockstep::checkpoint
