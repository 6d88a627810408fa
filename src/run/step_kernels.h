#pragma once

#include <cmath>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <vector>

#include "base/host_device.h"
#include "device/device.h"
#include "layout/norm_chunks.h"
#include "lockstep/tensor.h"
#include "ops/orthogonalizer.h"
#include "optim/formulas.h"
#include "optim/optimizer.h"
#include "program/step_scalars.h"

namespace lockstep::run {

/// Contents of a program's `constants` buffer, which `load` copies as they are.
struct StepScalars {
  ops::StepConstants kernels;
  optim::UpdateConstants update;
};
static_assert(sizeof(StepScalars) == program::kStepScalarsBytes &&
              std::is_trivially_copyable_v<StepScalars> &&
              offsetof(StepScalars, kernels) == 0);  // kernels find what they read at the buffer's start

/// All ranks' records, one after the other, which `agree` folds into the first part of a verdict.
struct AgreementCall {
  const std::byte* records = nullptr;
  int64_t block_bytes = 0;  ///< of one rank's record and its leaves' metrics
  int ranks = 0;
  int compared = 1;  ///< so many in a row have equal hashes, if any
  program::Verdict* verdict = nullptr;
};

/// Elements of a parameter, or of its gradient, for work by chunks of layout::kNormChunk.
struct ChunkedPiece {
  const float* data;  ///< null: none of it is here, and what belongs to its chunks is 0
  int64_t count;
  int64_t first_chunk;  ///< index of what belongs to its first chunk
};

/// Sums of squares, by chunks of layout::kNormChunk elements of each piece; of gradients they are folded to
/// the second part of a verdict.
struct NormCall {
  std::vector<ChunkedPiece> pieces;  ///< of all chunks, as they are folded: weights, then statistics
  int64_t weight_chunks = 0, chunks = 0;
  double* sums = nullptr;  ///< one per chunk
  program::Verdict* verdict = nullptr;
  const StepScalars* constants = nullptr;
  double static_count = 1;  ///< terms of the loss in a global batch, ignored ones included
  double clip_norm = 0;     ///< 0: none
};

/// Moves the first slots of the optimizer's state, and sums the squares of what updates follow from it, by
/// chunks.
struct ProposeCall {
  struct Piece {
    const float* gradients;  ///< null: none of it is here, and what belongs to its chunks is 0
    const float* parameters;
    float* state[2];
    int64_t count;
    int64_t first_chunk;
    optim::ParameterRates rates;
    int32_t parameter = 0;
  };
  std::vector<Piece> pieces;  ///< of all chunks, ascending
  int64_t chunks = 0;
  double* sums = nullptr;  ///< one per chunk
  optim::OptimizerOptions optimizer;
  const program::Verdict* verdict = nullptr;
  const StepScalars* constants = nullptr;
  bool whole_step = false;  ///< the verdict's clipping applies
  bool predicated = false;  ///< no state moves if the verdict is not finite
  double static_count = 1;
};

/// A scale for each parameter, from sums of squares of its chunks.
struct RatiosCall {
  struct Piece {
    int64_t first_chunk, chunks;
    int32_t parameter;
    bool is_scaled;  ///< otherwise its scale is 1
    optim::ParameterRates rates;
  };
  std::vector<Piece> pieces;  ///< of each parameter
  optim::OptimizerOptions optimizer;
  const double* sums[layout::kMeasuredCount] = {};  ///< one per chunk; null: not measured
  const program::Verdict* verdict = nullptr;
  const StepScalars* constants = nullptr;
  bool whole_step = false;  ///< the verdict's clipping applies
  double static_count = 1;
  double* scales = nullptr;  ///< by parameter
};

/// A number for each chunk of parameters. Any changed bit changes it, and it depends only on the bits.
struct DigestCall {
  std::vector<ChunkedPiece> pieces;  ///< of all chunks, ascending
  int64_t chunks = 0;
  uint64_t* digests = nullptr;  ///< one per chunk
};

/// The term of element `index` in its chunk's digest. Products of 32-bit numbers do not overflow 64 bits, and
/// the second factor is odd: if one element changes, so does the sum modulo 2^64. The sum is the same in any
/// order.
LOCKSTEP_HOST_DEVICE inline uint64_t digest_term(uint32_t bits, uint32_t index) {
  return uint64_t{bits} * (index * 0x9e3779b1u | 1u);
}

/// The scale of a parameter from its sums of squares; those of gradients are as they were summed.
LOCKSTEP_HOST_DEVICE inline double scale_from_sums(const RatiosCall::Piece& piece,
                                                   const optim::OptimizerOptions& optimizer,
                                                   double gradient_scale,
                                                   const double (&sums)[layout::kMeasuredCount]) {
  if (!piece.is_scaled) return 1;
  return optim::scale_of(optimizer, piece.rates,
                         {.gradient = std::sqrt(sums[0]) * gradient_scale,
                          .parameter = std::sqrt(sums[1]),
                          .update = std::sqrt(sums[2])});
}

/// The optimizer on a bucket.
struct UpdateCall {
  struct Piece {
    int64_t offset;  ///< elements from the bucket's start
    int64_t count;
    optim::ParameterRates rates;
    bool is_statistic;  ///< follows the mean of what lies in its gradient, by `momentum`
    float momentum;
    int32_t parameter = 0;  ///< of the model, and index into `scales`
  };
  /// A parameter that is updated as a whole: the update's direction is made, then made orthogonal.
  struct Matrix {
    Piece piece;
    float* direction = nullptr;
    NormCall squares = {};  ///< of the direction
    std::shared_ptr<ops::Orthogonalizer> orthogonalizer = nullptr;
    void* workspace = nullptr;
  };
  std::vector<Piece> pieces;
  std::vector<Matrix> matrices = {};
  optim::OptimizerOptions optimizer;
  float* parameters = nullptr;
  optim::NarrowCopy copy = {};  ///< of the parameters, gaps between pieces excepted
  const float* gradients = nullptr;
  float* state[optim::kMostStateSlots] = {};
  const double* scales = nullptr;  ///< by parameter; null: all are 1
  const program::Verdict* verdict = nullptr;
  const StepScalars* constants = nullptr;
  bool whole_step = false;  ///< the verdict's clipping applies
  bool predicated = false;  ///< nothing is written if the verdict is not finite
  double static_count = 1;
  double statistic_scale = 1;  ///< 1 / micro-batches of a global batch
};

/// Tells a call's pieces ParameterRates::updates_before, by parameter of the model; empty: all are 0. Writes
/// only what differs, because kernels of a launch before may still read the rest. Matrices need none: muon
/// has no such correction.
template <class Call>
void tell_updates_before(Call& call, const std::vector<uint32_t>& of_parameters) {
  for (auto& piece : call.pieces) {
    const uint32_t now = of_parameters.empty() ? 0 : of_parameters[static_cast<size_t>(piece.parameter)];
    if (piece.rates.updates_before != now) piece.rates.updates_before = now;
  }
}

/// The work of instructions that are neither kernels of ops nor communication, on one kind of device.
/// Everything is launched on `stream` and reads its pointer arguments when it runs; calls must outlive that.
/// On CPUs streams run immediately.
class StepKernels {
 public:
  virtual ~StepKernels() = default;
  /// destination += source, both of `dtype`, each sum rounded to it once
  virtual void add(void* destination, const void* source, DType dtype, int64_t count,
                   device::Stream& stream) = 0;
  /// to = from in another element type; both are float32 or narrower
  virtual void cast(void* to, DType to_type, const void* from, DType from_type, int64_t count,
                    device::Stream& stream) = 0;
  /// to = from + residuals, rounded to a type narrower than float32; residuals = what that loses
  /// (tensor/error_feedback.h)
  virtual void round_with_feedback(void* to, DType to_type, const float* from, float* residuals,
                                   int64_t count, device::Stream& stream) = 0;
  virtual void agree(const AgreementCall& call, device::Stream& stream) = 0;
  /// The sums of all chunks.
  virtual void sum_squares(const NormCall& call, device::Stream& stream) = 0;
  /// From these sums and the first part of the verdict, the second.
  virtual void conclude_norm(const NormCall& call, device::Stream& stream) = 0;
  virtual void propose(const ProposeCall& call, device::Stream& stream) = 0;
  virtual void ratios(const RatiosCall& call, device::Stream& stream) = 0;
  /// All chunks' digests.
  virtual void digest(const DigestCall& call, device::Stream& stream) = 0;
  virtual void update(const UpdateCall& call, device::Stream& stream) = 0;
};

/// The order in which a processor adds squares: its own, or that of GPUs, if workers use GPUs.
enum class SumOrder { own, as_gpus };

/// `threads`: of the processor that sums and updates may use; their bits do not depend on it. Throws
/// DeviceError if the program is linked to no backend for the kind.
std::unique_ptr<StepKernels> make_step_kernels(device::DeviceKind device, int threads = 1,
                                               SumOrder order = SumOrder::own);
std::unique_ptr<StepKernels> make_cpu_step_kernels(int threads = 1, SumOrder order = SumOrder::own);
std::unique_ptr<StepKernels> make_gpu_step_kernels();

}  // namespace lockstep::run
