#pragma once

#include <cstdint>
#include <memory>

#include "base/matrix_size.h"
#include "device/device.h"

namespace lockstep::ops {

/// Makes a matrix nearly orthogonal: X = U S Vᵀ becomes about U Vᵀ, by iterations of Newton and Schulz
/// (ops/newton_schulz.h), in float32. With k = min(rows, columns) and n = max(rows, columns), an iteration
/// takes 4 k² n + 2 k³ operations. The same bits in every call with the same values; on processors they
/// depend neither on threads nor on the instruction set. Thread-safety: one call at a time.
class Orthogonalizer {
 public:
  virtual ~Orthogonalizer() = default;
  /// Of scratch memory, aligned to 64 bytes.
  virtual int64_t workspace_bytes() const = 0;
  /// Once, before the first run.
  virtual void prepare(device::Device& device) = 0;
  /// Replaces `x`, row by row, by work launched on `stream`. `squares`: numbers whose sum is that of the
  /// squares of all elements; nobody changes them meanwhile.
  virtual void run(float* x, const double* squares, int64_t square_count, void* workspace,
                   device::Stream& stream) = 0;
};

/// `threads`: of processors. Throws DeviceError if the program is linked to no backend for the kind.
std::unique_ptr<Orthogonalizer> make_orthogonalizer(device::DeviceKind device, const MatrixSize& size,
                                                    int iterations, int threads = 1);
std::unique_ptr<Orthogonalizer> make_gpu_orthogonalizer(const MatrixSize& size, int iterations);

/// Matrices in a workspace begin at multiples of so many bytes.
inline constexpr int64_t kWorkspaceLine = 256;
inline int64_t workspace_lines(int64_t bytes) {
  return (bytes + kWorkspaceLine - 1) / kWorkspaceLine * kWorkspaceLine;
}

/// Of an iteration: what its matrices take, beside what products need.
struct NewtonSchulzWorkspace {
  int64_t product = 0;         ///< where (b A + c A²) X begins, at 0
  int64_t a = 0, squared = 0;  ///< A and A²
  int64_t of_products = 0;     ///< where that of products begins

  explicit NewtonSchulzWorkspace(const MatrixSize& size) {
    const int64_t least = size.rows < size.columns ? size.rows : size.columns, square = least * least;
    a = workspace_lines(size.count() * static_cast<int64_t>(sizeof(float)));
    squared = a + workspace_lines(square * static_cast<int64_t>(sizeof(float)));
    of_products = squared + workspace_lines(square * static_cast<int64_t>(sizeof(float)));
  }
};

}  // namespace lockstep::ops
