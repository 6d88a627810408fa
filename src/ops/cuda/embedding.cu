#include <limits>

#include "ops/cuda/elements.h"
#include "ops/cuda/kernels.h"
#include "ops/cuda/token_order.h"

namespace lockstep {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarpSize;
constexpr int kPacks = 2;  // of rows, read by a thread of forward before it writes
constexpr int kSegment =
    32;  // positions in the tokens' order that a warp sums: a lane each while it reads their tokens
constexpr int kAhead = 8;  // of these, read before they are added
constexpr int kRows = 32;  // of the table that a block finishes

/// Rows are read and written once, and no more of the table than is asked for. A token outside the vocabulary
/// has a row of NaN: a kernel cannot throw, and this shows in the loss.
template <class T>
__global__ void __launch_bounds__(kThreads)
    look_up_kernel(T* y, const T* table, const int32_t* tokens, RowPacks rows, int64_t vocabulary) {
  ElementPack<T> packs[kPacks];
  int64_t at[kPacks], count[kPacks];
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    const uint32_t index = (blockIdx.x * kPacks + p) * kThreads + threadIdx.x;
    count[p] = 0;
    if (index >= rows.packs) continue;
    const uint32_t row = index / rows.row_packs;
    const int64_t in_row = int64_t{index % rows.row_packs} * kPackElements<T>;
    const int32_t token = tokens[row];
    at[p] = row * rows.row_elements + in_row;
    count[p] = rows.row_elements - in_row;
    if (token >= 0 && token < vocabulary) {
      packs[p] = load_elements(table + token * rows.row_elements + in_row, count[p], rows.packed);
    } else {
#pragma unroll
      for (int e = 0; e < kPackElements<T>; ++e)
        packs[p].value[e] = T(std::numeric_limits<float>::quiet_NaN());
    }
  }
#pragma unroll
  for (int p = 0; p < kPacks; ++p)
    if (count[p] > 0) store_elements(y + at[p], packs[p], count[p], rows.packed);
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

/// to[0, count) = sums, or += them. REQUIRES: `packed` only where `to` is aligned.
template <int N>
__device__ void put(float* to, const float (&sums)[N], int64_t count, bool packed, bool add) {
#pragma unroll
  for (int e = 0; e < N; e += kPackElements<float>) {
    ElementPack<float> pack;
#pragma unroll
    for (int i = 0; i < kPackElements<float>; ++i) pack.value[i] = sums[e + i];
    if (add) {
      const ElementPack<float> old = load_elements(to + e, count - e, packed);
#pragma unroll
      for (int i = 0; i < kPackElements<float>; ++i) pack.value[i] += old.value[i];
    }
    store_elements(to + e, pack, count - e, packed);
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    sum_segments_kernel(TableGradient g, const T* gradients, int64_t row_warps) {
  constexpr int V = kPackElements<T>;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int64_t warp = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarpSize, segment = warp / row_warps,
                first = segment * kSegment;
  if (first >= g.count) return;
  const int64_t in_row = (warp % row_warps * kWarpSize + lane) * V, row_count = g.width - in_row;
  const bool packed = g.width % V == 0;
  const int size = g.count - first < kSegment ? static_cast<int>(g.count - first) : kSegment;
  const int32_t token_of_lane = lane < size ? g.order.tokens[first + lane] : 0;
  const int32_t position_of_lane = lane < size ? g.order.positions[first + lane] : 0;
  const int32_t before = first > 0 ? g.order.tokens[first - 1] : -1;
  const int32_t after = first + size < g.count ? g.order.tokens[first + size] : -1;

  float sums[V] = {};
  int32_t current = __shfl_sync(kFullWarp, token_of_lane, 0);
  bool at_head = true;  // the run began with the segment
  const auto finish = [&](bool at_tail) {
    if (current >= g.vocabulary) return;
    const int part = at_head && current == before ? 0 : (at_tail && current == after ? 1 : -1);
    if (part >= 0) {
      put(g.parts + (segment * 2 + part) * g.width + in_row, sums, row_count, packed, false);
    } else {
      put(g.table + current * g.width + in_row, sums, row_count, packed, g.accumulate);
    }
  };
  for (int begin = 0; begin < size; begin += kAhead) {
    ElementPack<T> packs[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int64_t position = __shfl_sync(kFullWarp, position_of_lane, begin + i);
      if (begin + i < size)
        packs[i] = load_elements(gradients + position * g.width + in_row, row_count, packed);
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int32_t token = __shfl_sync(kFullWarp, token_of_lane, begin + i);
      if (begin + i >= size) continue;
      if (token != current) {
        finish(false);
        current = token;
        at_head = false;
#pragma unroll
        for (int e = 0; e < V; ++e) sums[e] = 0;
      }
#pragma unroll
      for (int e = 0; e < V; ++e) sums[e] += static_cast<float>(packs[i].value[e]);
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

__global__ void __launch_bounds__(kThreads) finish_rows_kernel(TableGradient g) {
  constexpr int V = kPackElements<float>;
  __shared__ int64_t begins[kRows + 1];
  const int64_t first_row = int64_t{blockIdx.x} * kRows;
  if (threadIdx.x <= kRows) begins[threadIdx.x] = lower_bound(g, first_row + threadIdx.x);
  __syncthreads();
  const bool packed = g.width % V == 0;
  const int64_t row_packs = (g.width + V - 1) / V, rest = g.vocabulary - first_row;
  const auto packs = static_cast<uint32_t>((rest < kRows ? rest : kRows) * row_packs);
  for (uint32_t index = threadIdx.x; index < packs; index += kThreads) {
    const auto row = index / static_cast<uint32_t>(row_packs),
               pack = index % static_cast<uint32_t>(row_packs);
    const int64_t begin = begins[row], end = begins[row + 1], in_row = int64_t{pack} * V,
                  count = g.width - in_row;
    float* to = g.table + (first_row + row) * g.width + in_row;
    float sums[V] = {};
    if (begin == end) {
      if (!g.accumulate) put(to, sums, count, packed, false);
      continue;
    }
    const int64_t first = begin / kSegment, last = (end - 1) / kSegment;
    if (first == last) continue;
    for (int64_t segment = first; segment <= last; segment += kAhead) {
      ElementPack<float> parts[kAhead];
#pragma unroll
      for (int i = 0; i < kAhead; ++i)
        if (segment + i <= last) {
          const int64_t part = (segment + i) * 2 + (segment + i == first ? 1 : 0);
          parts[i] = load_elements(g.parts + part * g.width + in_row, count, packed);
        }
#pragma unroll
      for (int i = 0; i < kAhead; ++i)
        if (segment + i <= last) {
#pragma unroll
          for (int e = 0; e < V; ++e) sums[e] += parts[i].value[e];
        }
    }
    put(to, sums, count, packed, g.accumulate);
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

  void forward(const KernelArguments& arguments, Stream& stream) override {
    const Tensor& y = arguments.outputs[0];
    with_element_type(y.dtype, [&]<class T>(T) {
      const RowPacks rows = row_packs_of<T>(count_, op_.width);
      launch(stream, {.blocks = blocks_for(rows.packs, kThreads * kPacks, 0x7fffffff), .threads = kThreads},
             look_up_kernel<T>, y.as<T>(), arguments.parameters[0].as<const T>(),
             arguments.inputs[0].as<const int32_t>(), rows, op_.vocabulary);
    });
  }

  void backward_weight(const KernelArguments& arguments, Stream& stream) override {
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
    with_element_type(dy.dtype, [&]<class T>(T) {
      const int64_t warp_elements = kWarpSize * kPackElements<T>,
                    row_warps = (op_.width + warp_elements - 1) / warp_elements;
      launch(stream, {.blocks = blocks_for(segments() * row_warps, kWarps, 0x7fffffff), .threads = kThreads},
             sum_segments_kernel<T>, gradient, dy.as<const T>(), row_warps);
    });
    launch(stream, {.blocks = blocks_for(op_.vocabulary, kRows, 0x7fffffff), .threads = kThreads},
           finish_rows_kernel, gradient);
  }

 private:
  int64_t segments() const { return (count_ + kSegment - 1) / kSegment; }
  int64_t parts_at() const { return token_order_bytes(count_); }  // in the workspace

  Embedding op_;
  int64_t count_;  // of positions in a micro-batch
};

}  // namespace

std::unique_ptr<Kernel> make_gpu_kernel(const Embedding& op, Inputs inputs, const KernelOptions& options) {
  return std::make_unique<EmbeddingKernel>(op, inputs[0], options);
}

}  // namespace lockstep
