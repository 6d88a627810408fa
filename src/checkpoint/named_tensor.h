#pragma once

#include <string>
#include <vector>

#include "lockstep/tensor.h"
#include "tensor/part.h"

namespace lockstep::checkpoint {

/// What a file says about a tensor, and what a model expects of one.
struct TensorRecord {
  std::string name;
  DType dtype = DType::float32;
  Shape shape;  ///< of the whole tensor
  tensor::Part part = tensor::Part::whole(shape);
  bool operator==(const TensorRecord&) const = default;
  bool is_whole() const { return part.is_whole(shape.count()); }
};

/// A tensor, or a part of one, packed in memory, to be written or hashed. Borrows `data`.
struct NamedTensor {
  std::string name;
  DType dtype = DType::float32;
  Shape shape;  ///< of the whole tensor
  const void* data = nullptr;
  tensor::Part part = tensor::Part::whole(shape);

  int64_t count() const { return part.count(); }
  int64_t size_bytes() const { return count() * size_of(dtype); }
};

/// Host memory that a part of a tensor of some files is loaded into, packed.
struct TensorDestination {
  std::string name;
  DType dtype = DType::float32;
  Shape shape;  ///< of the whole tensor
  void* data = nullptr;
  tensor::Part part = tensor::Part::whole(shape);
};

}  // namespace lockstep::checkpoint
