#pragma once

#include <string>
#include <vector>

#include "lockstep/tensor.h"

namespace lockstep {

/// What a file says about a tensor, and what a model expects of one.
struct TensorRecord {
  std::string name;
  DType dtype = DType::float32;
  Shape shape;
  bool operator==(const TensorRecord&) const = default;
};

/// A tensor in host memory to be written or hashed. Borrows `data`.
struct NamedTensor {
  std::string name;
  DType dtype = DType::float32;
  Shape shape;
  const void* data = nullptr;

  int64_t size_bytes() const { return shape.count() * size_of(dtype); }
};

/// Host memory that a tensor of a file is loaded into.
struct TensorDestination {
  std::string name;
  DType dtype = DType::float32;
  Shape shape;
  void* data = nullptr;
};

}  // namespace lockstep
