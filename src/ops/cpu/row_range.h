#pragma once

#include <cstdint>

#include "ops/op.h"

namespace lockstep::ops {

/// Positions [begin, end) of every sample, which a call computes.
struct RowRange {
  int64_t begin, end;
  int64_t count() const { return end - begin; }
};

/// Of a sample of so many `positions`. REQUIRES: they are within it.
inline RowRange rows_of(const KernelOptions& options, const KernelArguments& arguments, int64_t positions) {
  if (options.rows == 0) return {0, positions};
  return {arguments.first_row, arguments.first_row + options.rows};
}

}  // namespace lockstep::ops
