#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "base/ensure.h"
#include "device/cuda/kernel.h"
#include "lockstep/error.h"
#include "optim/formulas.h"
#include "run/cuda/chunk_blocks.h"
#include "run/cuda/measure_kernels.h"
#include "run/step_kernels.h"
#include "tensor/error_feedback.h"

namespace lockstep::run {
namespace {

constexpr int kThreads = 256;
/// Pieces that one launch takes in its parameters, of at most 4,096 bytes.
constexpr int kMostPieces = 48;
/// Elements that a block of the update takes: 16 of each thread, in packs of 4.
constexpr int64_t kUpdateElements = 16 * kThreads;

using Floats = device::Pack<float, 4>;

/// 12 bytes move for each element.
__global__ void add_kernel(float* destination, const float* source, int64_t count, int64_t packs) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x,
                first = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  auto* to = reinterpret_cast<Floats*>(destination);
  const auto* from = reinterpret_cast<const Floats*>(source);
  for (int64_t i = first; i < packs; i += stride) {
    Floats sum = to[i];
    const Floats other = from[i];
    for (int e = 0; e < 4; ++e) sum.value[e] += other.value[e];
    to[i] = sum;
  }
  for (int64_t i = packs * 4 + first; i < count; i += stride) destination[i] += source[i];
}

/// Of a two-byte type: 6 bytes move for each element.
template <class T>
__global__ void add_narrow_kernel(T* destination, const T* source, int64_t count) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride)
    destination[i] = T(static_cast<float>(destination[i]) + static_cast<float>(source[i]));
}

template <class To, class From>
__global__ void cast_kernel(To* to, const From* from, int64_t count, int64_t packs) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x,
                first = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  auto* packed_to = reinterpret_cast<device::Pack<To, 4>*>(to);
  const auto* packed_from = reinterpret_cast<const device::Pack<From, 4>*>(from);
  for (int64_t i = first; i < packs; i += stride) {
    const device::Pack<From, 4> values = packed_from[i];
    device::Pack<To, 4> results;
    for (int e = 0; e < 4; ++e) results.value[e] = static_cast<To>(static_cast<float>(values.value[e]));
    packed_to[i] = results;
  }
  for (int64_t i = packs * 4 + first; i < count; i += stride)
    to[i] = static_cast<To>(static_cast<float>(from[i]));
}

/// To two-byte types: 14 bytes move for each element.
template <class To>
__global__ void feedback_kernel(To* to, const float* from, float* residuals, int64_t count, int64_t packs) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x,
                first = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  auto* packed_to = reinterpret_cast<device::Pack<To, 4>*>(to);
  const auto* packed_from = reinterpret_cast<const Floats*>(from);
  auto* packed_residuals = reinterpret_cast<Floats*>(residuals);
  for (int64_t i = first; i < packs; i += stride) {
    const Floats values = packed_from[i];
    Floats lost = packed_residuals[i];
    device::Pack<To, 4> results;
    for (int e = 0; e < 4; ++e)
      results.value[e] = tensor::round_with_feedback<To>(values.value[e], lost.value[e]);
    packed_to[i] = results;
    packed_residuals[i] = lost;
  }
  for (int64_t i = packs * 4 + first; i < count; i += stride)
    to[i] = tensor::round_with_feedback<To>(from[i], residuals[i]);
}

__global__ void agree_kernel(const std::byte* records, int64_t block_bytes, int ranks, int compared,
                             program::Verdict* verdict) {
  program::fold_agreement(records, block_bytes, ranks, compared, *verdict);
}

using ChunkedPieces = ChunkedList<ChunkedPiece, 64>;

struct Chunk {
  int64_t index;
  const float* data;  // null: none of it is here
  int64_t count;
};

__device__ Chunk data_of_block(const ChunkedPieces& pieces) {
  const BlockChunk chunk = chunk_of_block(pieces);
  const float* data = pieces.piece[chunk.piece].data;
  return {chunk.index, data == nullptr ? nullptr : data + chunk.begin, chunk.count};
}

/// Every element is read once.
__global__ void __launch_bounds__(1024)
    digest_kernel(const __grid_constant__ ChunkedPieces pieces, uint64_t* digests) {
  __shared__ uint64_t scratch[device::kWarpSize + 1];
  const auto [chunk, data, count] = data_of_block(pieces);
  uint64_t sum = 0;
  if (data != nullptr) {
    const auto* words = reinterpret_cast<const uint32_t*>(data);
    const auto* packed = reinterpret_cast<const device::Pack<uint32_t, 4>*>(data);
    for (int64_t i = threadIdx.x; i < count / 4; i += blockDim.x) {
      const device::Pack<uint32_t, 4> values = packed[i];
      for (int e = 0; e < 4; ++e) sum += digest_term(values.value[e], static_cast<uint32_t>(i * 4 + e));
    }
    if (const int64_t i = count / 4 * 4 + threadIdx.x; i < count)
      sum += digest_term(words[i], static_cast<uint32_t>(i));
  }
  sum = device::block_sum(sum, scratch);
  if (threadIdx.x == 0) digests[chunk] = sum;
}

/// Every element is read once.
__global__ void __launch_bounds__(1024)
    chunk_kernel(const __grid_constant__ ChunkedPieces pieces, double* sums) {
  __shared__ double scratch[device::kWarpSize + 1];
  const auto [chunk, data, count] = data_of_block(pieces);
  if (data == nullptr) {
    if (threadIdx.x == 0) sums[chunk] = 0;
    return;
  }
  // Four sums a thread, each of every fourth element: their order depends on nothing but the count.
  double lanes[4] = {};
  const auto* packed = reinterpret_cast<const Floats*>(data);
  for (int64_t i = threadIdx.x; i < count / 4; i += blockDim.x) {
    const Floats values = packed[i];
    for (int e = 0; e < 4; ++e)
      lanes[e] = std::fma(double{values.value[e]}, double{values.value[e]}, lanes[e]);
  }
  double sum = (lanes[0] + lanes[1]) + (lanes[2] + lanes[3]);
  if (const int64_t i = count / 4 * 4 + threadIdx.x; i < count)
    sum = std::fma(double{data[i]}, double{data[i]}, sum);
  sum = device::block_sum(sum, scratch);
  if (threadIdx.x == 0) sums[chunk] = sum;
}

__global__ void __launch_bounds__(1024)
    conclude_kernel(const double* sums, int64_t weight_chunks, int64_t chunks, double static_count,
                    double clip_norm, const StepScalars* constants, program::Verdict* verdict) {
  __shared__ double scratch[2][device::kWarpSize + 1];
  double weights = 0, statistics = 0;
  for (int64_t i = threadIdx.x; i < weight_chunks; i += blockDim.x) weights += sums[i];
  for (int64_t i = weight_chunks + threadIdx.x; i < chunks; i += blockDim.x) statistics += sums[i];
  weights = device::block_sum(weights, scratch[0]);
  statistics = device::block_sum(statistics, scratch[1]);
  if (threadIdx.x == 0)
    lockstep::program::conclude_norm(weights, statistics, static_count, clip_norm, constants->kernels,
                                     *verdict);
}

struct UpdatePieces {
  int count;
  UpdateCall::Piece piece[kMostPieces];
  int first_block[kMostPieces];  // of each piece
  float* parameters;
  optim::NarrowCopy copy;
  const float* gradients;
  float* state[optim::kMostStateSlots];
  const double* scales;
  const program::Verdict* verdict;
  const StepScalars* constants;
  optim::OptimizerOptions optimizer;
  double static_count, statistic_scale;
  bool whole_step, predicated;
};

/// Rounds `Count` parameters, from element i on, to their copy of two bytes each.
template <int Count>
__device__ inline void write_copy(const optim::NarrowCopy& copy, int64_t i,
                                  const device::Pack<float, Count>& values) {
  const auto write = [&]<class T>(T* to) {
    device::Pack<T, Count> rounded;
    for (int e = 0; e < Count; ++e) rounded.value[e] = static_cast<T>(values.value[e]);
    *reinterpret_cast<device::Pack<T, Count>*>(to + i) = rounded;
  };
  if (copy.dtype == DType::bfloat16)
    write(static_cast<bfloat16*>(copy.data));
  else
    write(static_cast<float16*>(copy.data));
}

/// Applies `formula` to the elements of a block's range, `Slots` of whose state are used: (2 + Slots) reads
/// and (1 + Slots) writes of 4 bytes an element, less those of slots that are kept, and one of 2 if there is
/// a copy.
template <int Slots, class Formula>
__device__ void apply(const Formula& formula, const UpdatePieces& call, int64_t begin, int64_t end) {
  const auto element = [&](int64_t i) {
    float p = call.parameters[i];
    [[maybe_unused]] constexpr int kept = Formula::kKeptSlots;
    if constexpr (Slots == 0) {
      formula(p, call.gradients[i]);
    } else if constexpr (Slots == 1) {
      float s = call.state[0][i];
      formula(p, call.gradients[i], s);
      call.state[0][i] = s;
    } else if constexpr (Slots == 2) {
      float s = call.state[0][i], t = call.state[1][i];
      formula(p, call.gradients[i], s, t);
      if constexpr (kept < 1) call.state[0][i] = s;
      if constexpr (kept < 2) call.state[1][i] = t;
    } else {
      float s = call.state[0][i], t = call.state[1][i], u = call.state[2][i];
      formula(p, call.gradients[i], s, t, u);
      if constexpr (kept < 1) call.state[0][i] = s;
      if constexpr (kept < 2) call.state[1][i] = t;
      call.state[2][i] = u;
    }
    call.parameters[i] = p;
    if (call.copy.data != nullptr) write_copy<1>(call.copy, i, {p});
  };
  // Buckets and the parameters in them begin at multiples of 64 bytes, and so do blocks' ranges.
  for (int64_t i = begin + 4 * int64_t{threadIdx.x}; i < end; i += 4 * int64_t{blockDim.x}) {
    if (i + 4 > end) {
      for (int64_t rest = i; rest < end; ++rest) element(rest);
      continue;
    }
    Floats p = *reinterpret_cast<const Floats*>(call.parameters + i);
    const Floats g = *reinterpret_cast<const Floats*>(call.gradients + i);
    if constexpr (Slots == 0) {
      for (int e = 0; e < 4; ++e) formula(p.value[e], g.value[e]);
    } else if constexpr (Slots == 1) {
      Floats s = *reinterpret_cast<const Floats*>(call.state[0] + i);
      for (int e = 0; e < 4; ++e) formula(p.value[e], g.value[e], s.value[e]);
      *reinterpret_cast<Floats*>(call.state[0] + i) = s;
    } else {
      Floats s = *reinterpret_cast<const Floats*>(call.state[0] + i),
             t = *reinterpret_cast<const Floats*>(call.state[1] + i);
      if constexpr (Slots == 2) {
        for (int e = 0; e < 4; ++e) formula(p.value[e], g.value[e], s.value[e], t.value[e]);
      } else {
        Floats u = *reinterpret_cast<const Floats*>(call.state[2] + i);
        for (int e = 0; e < 4; ++e) formula(p.value[e], g.value[e], s.value[e], t.value[e], u.value[e]);
        *reinterpret_cast<Floats*>(call.state[2] + i) = u;
      }
      if constexpr (Formula::kKeptSlots < 1) *reinterpret_cast<Floats*>(call.state[0] + i) = s;
      if constexpr (Formula::kKeptSlots < 2) *reinterpret_cast<Floats*>(call.state[1] + i) = t;
    }
    *reinterpret_cast<Floats*>(call.parameters + i) = p;
    if (call.copy.data != nullptr) write_copy<4>(call.copy, i, p);
  }
}

template <class Formula, int Slots>
__global__ void __launch_bounds__(kThreads) update_kernel(const __grid_constant__ UpdatePieces call) {
  if (call.predicated && call.verdict->finite == 0) return;
  int p = 0;
  while (p + 1 < call.count && call.first_block[p + 1] <= static_cast<int>(blockIdx.x)) ++p;
  const UpdateCall::Piece& piece = call.piece[p];
  const int64_t begin = (static_cast<int64_t>(blockIdx.x) - call.first_block[p]) * kUpdateElements;
  const int64_t end = begin + kUpdateElements < piece.count ? begin + kUpdateElements : piece.count;
  if (piece.is_statistic) {
    const optim::StatisticFormula formula{piece.momentum, static_cast<float>(call.statistic_scale)};
    return apply<0>(formula, call, piece.offset + begin, piece.offset + end);
  }
  // What all elements share takes divisions and roots in double precision: one thread works it out.
  __shared__ unsigned shared[sizeof(Formula) / sizeof(unsigned)];
  if (threadIdx.x == 0) {
    optim::UpdateArguments arguments;
    arguments.rates = piece.rates;
    arguments.gradient_scale =
        program::update_scale(*call.verdict, call.constants->kernels, call.static_count, call.whole_step);
    if (call.scales != nullptr) optim::apply_scale(call.optimizer, call.scales[piece.parameter], arguments);
    const Formula formula(call.optimizer, arguments, call.constants->update);
    memcpy(shared, &formula, sizeof formula);
  }
  __syncthreads();
  Formula formula;
  memcpy(&formula, shared, sizeof formula);
  apply<Slots>(formula, call, piece.offset + begin, piece.offset + end);
}

/// What pieces of a call share.
UpdatePieces shared_by_pieces(const UpdateCall& call) {
  return UpdatePieces{.parameters = call.parameters,
                      .copy = call.copy,
                      .gradients = call.gradients,
                      .state = {call.state[0], call.state[1], call.state[2]},
                      .scales = call.scales,
                      .verdict = call.verdict,
                      .constants = call.constants,
                      .optimizer = call.optimizer,
                      .static_count = call.static_count,
                      .statistic_scale = call.statistic_scale,
                      .whole_step = call.whole_step,
                      .predicated = call.predicated};
}

template <class Formula, int Slots>
void launch_update(const UpdatePieces& shared, std::span<const UpdateCall::Piece> pieces,
                   device::Stream& stream) {
  for (size_t first = 0; first < pieces.size(); first += kMostPieces) {
    UpdatePieces part = shared;
    int64_t blocks = 0;
    for (size_t p = first; p < std::min(first + kMostPieces, pieces.size()); ++p) {
      part.first_block[part.count] = static_cast<int>(blocks);
      part.piece[part.count++] = pieces[p];
      blocks += (pieces[p].count + kUpdateElements - 1) / kUpdateElements;
    }
    ensure(blocks <= 0x7fffffff, "a launch has fewer than 2^31 blocks");
    if (blocks > 0)
      device::launch(stream, {.blocks = static_cast<unsigned>(blocks), .threads = kThreads},
                     update_kernel<Formula, Slots>, part);
  }
}

/// Its parts go through the kernel of all updates: 20 bytes move for each element to the direction (which the
/// kernel reads before it writes it, though nothing follows from what was there), 12 from it, or 20 with an
/// average.
void launch_matrix(const UpdateCall& call, const UpdateCall::Matrix& matrix, device::Stream& stream,
                   StepKernels& kernels) {
  UpdateCall::Piece piece = matrix.piece;
  const int64_t offset = std::exchange(piece.offset, 0);
  UpdatePieces shared = shared_by_pieces(call);
  shared.parameters = matrix.direction;
  shared.copy = {};
  shared.gradients = call.gradients + offset;
  shared.state[0] = call.state[0] + offset;
  launch_update<optim::MuonDirection, 1>(shared, {&piece, 1}, stream);
  kernels.sum_squares(matrix.squares, stream);
  matrix.orthogonalizer->run(matrix.direction, matrix.squares.sums, matrix.squares.chunks, matrix.workspace,
                             stream);
  shared.parameters = call.parameters + offset;
  shared.copy = call.copy.from(offset);
  shared.gradients = matrix.direction;
  // By the formulas: kernels are linked without what counts slots otherwise.
  const int slots_of_all =
      optim::visit_formula(call.optimizer, [&]<class Formula, int slots> { return slots; });
  shared.state[0] = call.state[slots_of_all - 1] + offset;
  optim::visit_matrix_formula(call.optimizer, [&]<class Formula, int slots> {
    launch_update<Formula, slots>(shared, {&piece, 1}, stream);
  });
}

/// A block for each chunk of all pieces.
template <class Result>
void launch_by_chunks(const std::vector<ChunkedPiece>& pieces, int64_t chunks,
                      void (*kernel)(ChunkedPieces, Result*), Result* results, device::Stream& stream) {
  for_lists<ChunkedPieces>(pieces, chunks, [&](const ChunkedPieces& list, const device::Grid& grid) {
    device::launch(stream, grid, kernel, list, results);
  });
}

template <class To>
void launch_cast(void* to, const void* from, DType from_type, int64_t count, device::Stream& stream) {
  const device::Grid grid{.blocks = device::blocks_for(count, 4 * kThreads), .threads = kThreads};
  // Shares of a bucket may begin anywhere.
  const bool aligned = reinterpret_cast<uintptr_t>(to) % sizeof(device::Pack<To, 4>) == 0 &&
                       reinterpret_cast<uintptr_t>(from) % (4 * size_of(from_type)) == 0;
  const int64_t packs = aligned ? count / 4 : 0;
  switch (from_type) {
    case DType::float32:
      return device::launch(stream, grid, cast_kernel<To, float>, static_cast<To*>(to),
                            static_cast<const float*>(from), count, packs);
    case DType::bfloat16:
      return device::launch(stream, grid, cast_kernel<To, bfloat16>, static_cast<To*>(to),
                            static_cast<const bfloat16*>(from), count, packs);
    case DType::float16:
      return device::launch(stream, grid, cast_kernel<To, float16>, static_cast<To*>(to),
                            static_cast<const float16*>(from), count, packs);
    default:
      throw InternalError("a cast is between float32 and narrower types");
  }
}

template <class To>
void launch_feedback(void* to, const float* from, float* residuals, int64_t count, device::Stream& stream) {
  const device::Grid grid{.blocks = device::blocks_for(count, 4 * kThreads), .threads = kThreads};
  const bool aligned =
      reinterpret_cast<uintptr_t>(to) % sizeof(device::Pack<To, 4>) == 0 &&
      (reinterpret_cast<uintptr_t>(from) | reinterpret_cast<uintptr_t>(residuals)) % sizeof(Floats) == 0;
  device::launch(stream, grid, feedback_kernel<To>, static_cast<To*>(to), from, residuals, count,
                 aligned ? count / 4 : 0);
}

class GpuStepKernels : public StepKernels {
 public:
  void add(void* destination, const void* source, DType dtype, int64_t count,
           device::Stream& stream) override {
    if (count == 0) return;
    const device::Grid grid{.blocks = device::blocks_for(count, 4 * kThreads), .threads = kThreads};
    // Shares of a bucket may begin anywhere.
    const bool aligned =
        (reinterpret_cast<uintptr_t>(destination) | reinterpret_cast<uintptr_t>(source)) % sizeof(Floats) ==
        0;
    switch (dtype) {
      case DType::float32:
        return device::launch(stream, grid, add_kernel, static_cast<float*>(destination),
                              static_cast<const float*>(source), count, aligned ? count / 4 : 0);
      case DType::bfloat16:
        return device::launch(stream, grid, add_narrow_kernel<bfloat16>, static_cast<bfloat16*>(destination),
                              static_cast<const bfloat16*>(source), count);
      case DType::float16:
        return device::launch(stream, grid, add_narrow_kernel<float16>, static_cast<float16*>(destination),
                              static_cast<const float16*>(source), count);
      default:
        throw InternalError("a sum is of float32 or narrower types");
    }
  }

  void cast(void* to, DType to_type, const void* from, DType from_type, int64_t count,
            device::Stream& stream) override {
    if (count == 0) return;
    switch (to_type) {
      case DType::float32:
        return launch_cast<float>(to, from, from_type, count, stream);
      case DType::bfloat16:
        return launch_cast<bfloat16>(to, from, from_type, count, stream);
      case DType::float16:
        return launch_cast<float16>(to, from, from_type, count, stream);
      default:
        throw InternalError("a cast is between float32 and narrower types");
    }
  }

  void round_with_feedback(void* to, DType to_type, const float* from, float* residuals, int64_t count,
                           device::Stream& stream) override {
    if (count == 0) return;
    switch (to_type) {
      case DType::bfloat16:
        return launch_feedback<bfloat16>(to, from, residuals, count, stream);
      case DType::float16:
        return launch_feedback<float16>(to, from, residuals, count, stream);
      default:
        throw InternalError("a rounding with feedback is to a type narrower than float32");
    }
  }

  void agree(const AgreementCall& call, device::Stream& stream) override {
    device::launch(stream, {.blocks = 1, .threads = 1}, agree_kernel, call.records, call.block_bytes,
                   call.ranks, call.compared, call.verdict);
  }

  void sum_squares(const NormCall& call, device::Stream& stream) override {
    launch_by_chunks(call.pieces, call.chunks, chunk_kernel, call.sums, stream);
  }

  void propose(const ProposeCall& call, device::Stream& stream) override { launch_propose(call, stream); }
  void ratios(const RatiosCall& call, device::Stream& stream) override { launch_ratios(call, stream); }

  void digest(const DigestCall& call, device::Stream& stream) override {
    launch_by_chunks(call.pieces, call.chunks, digest_kernel, call.digests, stream);
  }

  void conclude_norm(const NormCall& call, device::Stream& stream) override {
    device::launch(stream, {.blocks = 1, .threads = 1024}, conclude_kernel, call.sums, call.weight_chunks,
                   call.chunks, call.static_count, call.clip_norm, call.constants, call.verdict);
  }

  void update(const UpdateCall& call, device::Stream& stream) override {
    optim::visit_formula(call.optimizer, [&]<class Formula, int slots> {
      launch_update<Formula, slots>(shared_by_pieces(call), call.pieces, stream);
    });
    for (const UpdateCall::Matrix& matrix : call.matrices) launch_matrix(call, matrix, stream, *this);
  }
};

}  // namespace

std::unique_ptr<StepKernels> make_gpu_step_kernels() { return std::make_unique<GpuStepKernels>(); }

}  // namespace lockstep::run
