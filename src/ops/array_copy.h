#pragma once

#include <cstdint>
#include <vector>

#include "ops/parts.h"

namespace lockstep::ops {

inline constexpr int kMostCopyDimensions = 9;  // of a sample and of the batch

/// Elements that lie in one array of any dimensions, and go to another. Strides are in elements.
struct ArrayCopy {
  int rank = 0;
  int64_t dims[kMostCopyDimensions] = {};
  int64_t from_strides[kMostCopyDimensions] = {}, to_strides[kMostCopyDimensions] = {};
  int64_t from_offset = 0, to_offset = 0;

  int64_t count() const;
  ArrayCopy inverse() const;  ///< back
  /// The same elements with as few dimensions as they take.
  ArrayCopy joined() const;
};

/// An op that only moves elements: from each input into the output.
struct ArrayCopies {
  std::vector<ArrayCopy> of_inputs;
  /// Whether some elements of an input go nowhere, so that their gradients are 0.
  bool leaves_out = false;
};
ArrayCopies copies_of(const Concatenate& op, Inputs inputs, int64_t batch);
ArrayCopies copies_of(const Slice& op, Inputs inputs, int64_t batch);
ArrayCopies copies_of(const Transpose& op, Inputs inputs, int64_t batch);

}  // namespace lockstep::ops
