#pragma once

#include <cstdint>

namespace lockstep {

/// Rows and columns of a parameter that is updated as a matrix, not element by element. A kernel of a
/// convolution has a row for each channel that it makes.
struct MatrixSize {
  int32_t rows = 0, columns = 0;  ///< 0: it is none

  bool is_matrix() const { return rows > 0; }
  int64_t count() const { return int64_t{rows} * columns; }
  bool operator==(const MatrixSize&) const = default;
};

}  // namespace lockstep
