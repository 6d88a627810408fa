#include <limits>

#include "ops/cuda/floats.h"
#include "ops/cuda/token_order.h"
#include "ops/parts.h"

namespace lockstep::ops {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / device::kWarpSize;
constexpr int kPacks = 2;  // of rows, read by a thread of forward before it writes
constexpr int kSegment =
    32;  // positions in the tokens' order that a warp sums: a lane each while it reads their tokens
constexpr int kAhead = 8;  // of these, read before they are added
constexpr int kRows = 32;  // of the table that a block finishes

/// Rows are read and written once, and no more of the table than is asked for. A token outside the vocabulary
/// has a row of NaN: a kernel cannot throw, and this shows in the loss.
template <class T, int N>
__global__ void __launch_bounds__(kThreads)
    look_up_kernel(T* y, const T* table, const int32_t* tokens, RowPacks rows, int64_t vocabulary) {
  device::Pack<T, N> packs[kPacks];
  const uint32_t first = blockIdx.x * kPacks * kThreads + threadIdx.x;
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    const uint32_t index = first + p * kThreads;
    if (index >= rows.packs) continue;
    const uint32_t row = index / rows.row_packs, in_row = index % rows.row_packs * N;
    const int32_t token = tokens[row];
    if (token >= 0 && token < vocabulary) {
      packs[p] = load_pack<N>(table + token * rows.row_elements + in_row);
    } else {
#pragma unroll
      for (int e = 0; e < N; ++e) packs[p].value[e] = T(std::numeric_limits<float>::quiet_NaN());
    }
  }
  // Packs of all rows follow each other without gaps.
#pragma unroll
  for (int p = 0; p < kPacks; ++p)
    if (const uint32_t index = first + p * kThreads; index < rows.packs)
      *reinterpret_cast<device::Pack<T, N>*>(y + int64_t{index} * N) = packs[p];
}

// The gradient of a row sums those of its token's positions in ascending order, however often the token
// occurs. Positions in the tokens' order are cut into segments. A warp sums a segment's runs of one token;
// those that lie within the segment are rows' gradients, those of a token that goes on beyond it are kept as
// parts:
//   part 0   of the token that the segment before ends with
//   part 1   of the token that the next segment begins with, unless it is also part 0's
// Then each row without positions is cleared, and those with parts add them up in order. So the gradients of
// the output are read once and the table is written once, whatever the tokens are.

struct TableGradient {
  TokenOrder order;
  int64_t count;  // of positions
  float* table;
  int64_t vocabulary, width;
  float* parts;  // [segments, 2, width]
  bool accumulate;
};

template <int N>
__device__ void put(float* to, float (&sums)[N], bool add) {
  if (add) {
    float old[N];
    load_floats(to, old);
#pragma unroll
    for (int e = 0; e < N; ++e) sums[e] += old[e];
  }
  store_floats(to, sums);
}

template <class T, int N>
__global__ void __launch_bounds__(kThreads)
    sum_segments_kernel(TableGradient g, const T* gradients, int64_t row_warps) {
  const int lane = static_cast<int>(threadIdx.x) % device::kWarpSize;
  const int64_t warp = int64_t{blockIdx.x} * kWarps + threadIdx.x / device::kWarpSize,
                segment = warp / row_warps, first = segment * kSegment;
  if (first >= g.count) return;
  const int64_t in_row = (warp % row_warps * device::kWarpSize + lane) * N;
  const bool in_table = in_row < g.width;
  const int size = g.count - first < kSegment ? static_cast<int>(g.count - first) : kSegment;
  const int32_t token_of_lane = lane < size ? g.order.tokens[first + lane] : 0;
  const int32_t position_of_lane = lane < size ? g.order.positions[first + lane] : 0;
  const int32_t before = first > 0 ? g.order.tokens[first - 1] : -1;
  const int32_t after = first + size < g.count ? g.order.tokens[first + size] : -1;

  float sums[N] = {};
  int32_t current = __shfl_sync(device::kFullWarp, token_of_lane, 0);
  bool at_head = true;  // the run began with the segment
  const auto finish = [&](bool at_tail) {
    if (current >= g.vocabulary || !in_table) return;
    const bool head = at_head && current == before, tail = at_tail && current == after;
    float* to =
        head || tail ? g.parts + (segment * 2 + (head ? 0 : 1)) * g.width : g.table + current * g.width;
    put(to + in_row, sums, g.accumulate && !head && !tail);
  };
  for (int begin = 0; begin < size; begin += kAhead) {
    device::Pack<T, N> packs[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int64_t position = __shfl_sync(device::kFullWarp, position_of_lane, begin + i);
      if (begin + i < size && in_table) packs[i] = load_pack<N>(gradients + position * g.width + in_row);
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int32_t token = __shfl_sync(device::kFullWarp, token_of_lane, begin + i);
      if (begin + i >= size) continue;
      if (token != current) {
        finish(false);
        current = token;
        at_head = false;
#pragma unroll
        for (int e = 0; e < N; ++e) sums[e] = 0;
      }
#pragma unroll
      for (int e = 0; e < N; ++e) sums[e] += static_cast<float>(packs[i].value[e]);
    }
  }
  finish(true);
}

/// The first place in the order whose token is `token` or a greater one.
__device__ int64_t lower_bound(const TableGradient& g, int64_t token) {
  int64_t begin = 0, end = g.count;
  while (begin < end) {
    const int64_t middle = (begin + end) / 2;
    if (g.order.tokens[middle] < token) {
      begin = middle + 1;
    } else {
      end = middle;
    }
  }
  return begin;
}

template <int N>
__global__ void __launch_bounds__(kThreads) finish_rows_kernel(TableGradient g) {
  __shared__ int64_t begins[kRows + 1];
  const int64_t first_row = int64_t{blockIdx.x} * kRows, rest = g.vocabulary - first_row;
  if (threadIdx.x <= kRows) begins[threadIdx.x] = lower_bound(g, first_row + threadIdx.x);
  __syncthreads();
  const auto row_packs = static_cast<uint32_t>(g.width / N);
  const uint32_t packs = static_cast<uint32_t>(rest < kRows ? rest : kRows) * row_packs;
  for (uint32_t index = threadIdx.x; index < packs; index += kThreads) {
    const uint32_t row = index / row_packs, in_row = index % row_packs * N;
    const int64_t begin = begins[row], end = begins[row + 1];
    const int64_t first = begin / kSegment, last = (end - 1) / kSegment;
    if (begin == end ? g.accumulate : first == last) continue;
    float sums[N] = {};
    for (int64_t segment = first; begin < end && segment <= last; segment += kAhead) {
      device::Pack<float, N> parts[kAhead];
#pragma unroll
      for (int i = 0; i < kAhead; ++i)
        if (segment + i <= last) {
          const int64_t part = (segment + i) * 2 + (segment + i == first ? 1 : 0);
          parts[i] = load_pack<N>(g.parts + part * g.width + in_row);
        }
#pragma unroll
      for (int i = 0; i < kAhead; ++i)
        if (segment + i <= last) {
#pragma unroll
          for (int e = 0; e < N; ++e) sums[e] += parts[i].value[e];
        }
    }
    put(g.table + (first_row + row) * g.width + in_row, sums, g.accumulate);
  }
}

class EmbeddingKernel : public Kernel {
 public:
  EmbeddingKernel(const Embedding& op, const TensorSpec& input, const KernelOptions& options)
      : op_(op), count_(input.shape.count() * options.batch) {}

  int64_t workspace_bytes(KernelPhase phase) const override {
    if (phase != KernelPhase::backward_weight) return 0;
    return parts_at() + segments() * 2 * op_.width * int64_t{sizeof(float)};
  }

  void forward(const KernelArguments& arguments, device::Stream& stream) override {
    const Tensor& y = arguments.outputs[0];
    with_element_type_and_pack(y.dtype, op_.width, [&]<class T, int N>(T, std::integral_constant<int, N>) {
      const RowPacks rows = row_packs_of(count_, op_.width, N);
      device::launch(
          stream,
          {.blocks = device::blocks_for(rows.packs, kThreads * kPacks, 0x7fffffff), .threads = kThreads},
          look_up_kernel<T, N>, y.as<T>(), arguments.parameters[0].as<const T>(),
          arguments.inputs[0].as<const int32_t>(), rows, op_.vocabulary);
    });
  }

  void backward_weight(const KernelArguments& arguments, device::Stream& stream) override {
    const Tensor& dy = arguments.output_gradients[0];
    auto* workspace = static_cast<std::byte*>(arguments.workspace);
    TableGradient gradient{.order = launch_token_order(stream, arguments.inputs[0].as<const int32_t>(),
                                                       count_, op_.vocabulary, workspace),
                           .count = count_,
                           .table = arguments.parameter_gradients[0].as<float>(),
                           .vocabulary = op_.vocabulary,
                           .width = op_.width,
                           .parts = reinterpret_cast<float*>(workspace + parts_at()),
                           .accumulate = arguments.accumulate};
    with_element_type_and_pack(dy.dtype, op_.width, [&]<class T, int N>(T, std::integral_constant<int, N>) {
      const int64_t row_warps = (op_.width + device::kWarpSize * N - 1) / (device::kWarpSize * N);
      device::launch(
          stream,
          {.blocks = device::blocks_for(segments() * row_warps, kWarps, 0x7fffffff), .threads = kThreads},
          sum_segments_kernel<T, N>, gradient, dy.as<const T>(), row_warps);
    });
    device::launch(stream,
                   {.blocks = device::blocks_for(op_.vocabulary, kRows, 0x7fffffff), .threads = kThreads},
                   op_.width % 4 == 0 ? finish_rows_kernel<4> : finish_rows_kernel<1>, gradient);
  }

 private:
  int64_t segments() const { return (count_ + kSegment - 1) / kSegment; }
  int64_t parts_at() const { return token_order_bytes(count_); }  // in the workspace

  Embedding op_;
  int64_t count_;  // of positions in a micro-batch
};

}  // namespace

template <>
std::unique_ptr<Kernel> make_gpu_kernel(const Embedding& op, Inputs inputs, const KernelOptions& options) {
  return std::make_unique<EmbeddingKernel>(op, inputs[0], options);
}

}  // namespace lockstep::ops
