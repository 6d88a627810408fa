#include <algorithm>
#include <cstring>

#include "device/cuda/kernel.h"
#include "optim/formulas.h"
#include "run/cuda/chunk_blocks.h"
#include "run/cuda/measure_kernels.h"

namespace lockstep::run {
namespace {

using ProposedPieces = ChunkedList<ProposeCall::Piece, 32>;
using Floats = device::Pack<float, 4>;

/// What a kernel takes of a ProposeCall besides its pieces.
struct ProposeTerms {
  double* sums;
  optim::OptimizerOptions optimizer;
  const program::Verdict* verdict;
  const StepScalars* constants;
  bool whole_step, predicated;
  double static_count;
};

/// 16 bytes are read and 8 written for each element. Squares are added in the order of norms.
__global__ void __launch_bounds__(kChunkThreads) propose_kernel(const __grid_constant__ ProposedPieces pieces,
                                                                const __grid_constant__ ProposeTerms terms) {
  __shared__ double scratch[device::kWarpSize + 1];
  __shared__ unsigned shared[sizeof(optim::LambDirection) / sizeof(unsigned)];
  const auto [chunk, p, begin, count] = chunk_of_block(pieces);
  const ProposeCall::Piece& piece = pieces.piece[p];
  if (piece.gradients == nullptr || (terms.predicated && terms.verdict->finite == 0)) {
    if (threadIdx.x == 0) terms.sums[chunk] = 0;
    return;
  }
  if (threadIdx.x == 0) {
    optim::UpdateArguments arguments;
    arguments.rates = piece.rates;
    arguments.gradient_scale =
        program::update_scale(*terms.verdict, terms.constants->kernels, terms.static_count, terms.whole_step);
    const optim::LambDirection made(terms.optimizer, arguments, terms.constants->update);
    memcpy(shared, &made, sizeof made);
  }
  __syncthreads();
  optim::LambDirection formula;
  memcpy(&formula, shared, sizeof formula);
  const float *gradients = piece.gradients + begin, *parameters = piece.parameters + begin;
  float *means = piece.state[0] + begin, *squares = piece.state[1] + begin;
  double lanes[4] = {};
  for (int64_t i = threadIdx.x; i < count / 4; i += blockDim.x) {
    const Floats w = reinterpret_cast<const Floats*>(parameters)[i],
                 g = reinterpret_cast<const Floats*>(gradients)[i];
    Floats m = reinterpret_cast<const Floats*>(means)[i], v = reinterpret_cast<const Floats*>(squares)[i];
    for (int e = 0; e < 4; ++e) {
      const double u = formula.propose(w.value[e], g.value[e], m.value[e], v.value[e]);
      lanes[e] = std::fma(u, u, lanes[e]);
    }
    reinterpret_cast<Floats*>(means)[i] = m;
    reinterpret_cast<Floats*>(squares)[i] = v;
  }
  double sum = (lanes[0] + lanes[1]) + (lanes[2] + lanes[3]);
  if (const int64_t i = count / 4 * 4 + threadIdx.x; i < count) {
    const double u = formula.propose(parameters[i], gradients[i], means[i], squares[i]);
    sum = std::fma(u, u, sum);
  }
  sum = device::block_sum(sum, scratch);
  if (threadIdx.x == 0) terms.sums[chunk] = sum;
}

constexpr int kMostRatios = 64;

struct RatioPieces {
  int count;
  RatiosCall::Piece piece[kMostRatios];
  optim::OptimizerOptions optimizer;
  const double* sums[layout::kMeasuredCount];
  const program::Verdict* verdict;
  const StepScalars* constants;
  bool whole_step;
  double static_count;
  double* scales;
};

/// A block takes a parameter, and adds its chunks' sums as those of a norm are added.
__global__ void __launch_bounds__(kChunkThreads) ratios_kernel(const __grid_constant__ RatioPieces call) {
  __shared__ double scratch[layout::kMeasuredCount][device::kWarpSize + 1];
  const RatiosCall::Piece& piece = call.piece[blockIdx.x];
  double sums[layout::kMeasuredCount] = {};
  for (int m = 0; m < layout::kMeasuredCount; ++m) {
    if (call.sums[m] == nullptr) continue;
    for (int64_t i = threadIdx.x; i < piece.chunks; i += blockDim.x)
      sums[m] += call.sums[m][piece.first_chunk + i];
    sums[m] = device::block_sum(sums[m], scratch[m]);
  }
  if (threadIdx.x != 0) return;
  const double gradient_scale =
      program::update_scale(*call.verdict, call.constants->kernels, call.static_count, call.whole_step);
  call.scales[piece.parameter] = scale_from_sums(piece, call.optimizer, gradient_scale, sums);
}

}  // namespace

void launch_propose(const ProposeCall& call, device::Stream& stream) {
  const ProposeTerms terms{.sums = call.sums,
                           .optimizer = call.optimizer,
                           .verdict = call.verdict,
                           .constants = call.constants,
                           .whole_step = call.whole_step,
                           .predicated = call.predicated,
                           .static_count = call.static_count};
  for_lists<ProposedPieces>(call.pieces, call.chunks,
                            [&](const ProposedPieces& list, const device::Grid& grid) {
                              device::launch(stream, grid, propose_kernel, list, terms);
                            });
}

void launch_ratios(const RatiosCall& call, device::Stream& stream) {
  for (size_t first = 0; first < call.pieces.size(); first += kMostRatios) {
    RatioPieces part{.count = 0,
                     .piece = {},
                     .optimizer = call.optimizer,
                     .sums = {call.sums[0], call.sums[1], call.sums[2]},
                     .verdict = call.verdict,
                     .constants = call.constants,
                     .whole_step = call.whole_step,
                     .static_count = call.static_count,
                     .scales = call.scales};
    for (size_t p = first; p < std::min(first + kMostRatios, call.pieces.size()); ++p)
      part.piece[part.count++] = call.pieces[p];
    device::launch(stream, {.blocks = static_cast<unsigned>(part.count), .threads = kChunkThreads},
                   ratios_kernel, part);
  }
}

}  // namespace lockstep::run
