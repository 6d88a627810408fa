#pragma once

#include <cstdint>

#include "layout/norm_chunks.h"
#include "ops/orthogonalizer.h"

namespace lockstep::program {

/// Where the update of a whole matrix keeps what it makes: first the direction of the update, then the sums
/// of squares of its chunks, then the workspace of its ops::Orthogonalizer.
struct MatrixScratch {
  int64_t squares = 0, workspace = 0;  ///< where they begin
  int64_t size_bytes = 0;

  MatrixScratch(const MatrixSize& size, int64_t workspace_bytes) {
    squares = ops::workspace_lines(size.count() * static_cast<int64_t>(sizeof(float)));
    workspace = squares +
                ops::workspace_lines(layout::chunks_in(size.count()) * static_cast<int64_t>(sizeof(double)));
    size_bytes = workspace + ops::workspace_lines(workspace_bytes);
  }
};

}  // namespace lockstep::program
