#include <limits>

#include "ops/attention_documents.h"
#include "ops/cuda/attention.h"

namespace lockstep::ops {
namespace {

// Attention for every type, head size and length, multiplied in float32 without tensor cores. A block of 16 x
// 16 threads owns a tile of rows and meets the others a tile at a time; thread (y, x) computes the scores of
// rows y, y + 16, ... and columns x, x + 16, ..., and sums columns x, x + 16, ... of its rows' results. Tiles
// are held as float32, padded with zeros; wider heads have shorter tiles, so that all fit into 100 KiB of
// shared memory.
constexpr int kSide = 16, kThreads = kSide * kSide;

template <int kTile, int kColumns>
struct Sizes {
  static constexpr int kRows = kTile / kSide;      // of a thread
  static constexpr int kWidth = kSide * kColumns;  // the widest head
  static constexpr int kStride = kWidth + 1,
                       kWeightStride = kTile + 1;  // odd: a column's rows lie in different banks
  static constexpr int kTileCount = kTile * kStride, kWeightCount = kTile * kWeightStride;
};

__device__ inline int thread_x() { return static_cast<int>(threadIdx.x) % kSide; }
__device__ inline int thread_y() { return static_cast<int>(threadIdx.x) / kSide; }

template <int kTile, int kColumns, class T>
__device__ inline void load_tile(float* to, const T* from, int64_t stride, int first,
                                 const AttentionCall<T>& call) {
  using S = Sizes<kTile, kColumns>;
  for (int i = static_cast<int>(threadIdx.x); i < kTile * S::kWidth; i += kThreads) {
    const int row = i / S::kWidth, column = i % S::kWidth;
    const bool inside = first + row < call.positions && column < call.head_size;
    to[row * S::kStride + column] = inside ? static_cast<float>(from[(first + row) * stride + column]) : 0.0f;
  }
}

/// c[i][j] = row y + 16 i of `a` times row x + 16 j of `b`.
template <int kTile, int kColumns>
__device__ inline void multiply_rows(float (&c)[kTile / kSide][kTile / kSide], const float* a, const float* b,
                                     int depth) {
  using S = Sizes<kTile, kColumns>;
  for (auto& row : c)
    for (float& value : row) value = 0;
  for (int d = 0; d < depth; ++d) {
    float left[S::kRows], right[S::kRows];
#pragma unroll
    for (int i = 0; i < S::kRows; ++i) {
      left[i] = a[(thread_y() + kSide * i) * S::kStride + d];
      right[i] = b[(thread_x() + kSide * i) * S::kStride + d];
    }
#pragma unroll
    for (int i = 0; i < S::kRows; ++i)
#pragma unroll
      for (int j = 0; j < S::kRows; ++j) c[i][j] = std::fma(left[i], right[j], c[i][j]);
  }
}

/// sum[i][j] += row y + 16 i of `weights` times column x + 16 j of `rows`.
template <int kTile, int kColumns>
__device__ inline void add_weighted(float (&sum)[kTile / kSide][kColumns], const float* weights,
                                    const float* rows) {
  using S = Sizes<kTile, kColumns>;
  for (int m = 0; m < kTile; ++m) {
    float left[S::kRows], right[kColumns];
#pragma unroll
    for (int i = 0; i < S::kRows; ++i) left[i] = weights[(thread_y() + kSide * i) * S::kWeightStride + m];
#pragma unroll
    for (int j = 0; j < kColumns; ++j) right[j] = rows[m * S::kStride + thread_x() + kSide * j];
#pragma unroll
    for (int i = 0; i < S::kRows; ++i)
#pragma unroll
      for (int j = 0; j < kColumns; ++j) sum[i][j] = std::fma(left[i], right[j], sum[i][j]);
  }
}

/// Dropout's factors of a tile of weights, [query, key] or, where rows are keys, [key, query]; 1 without
/// dropout.
template <int kTile, bool kRowsAreKeys, class T>
__device__ inline void fill_factors(float* factors, const AttentionCall<T>& call, const AttentionHead& head,
                                    int first_query, int first_key) {
  constexpr int kGroups = kTile / 4, kStride = kTile + 1;
  const AttentionDropout dropout(call, head);
  for (int i = static_cast<int>(threadIdx.x); i < kTile * kGroups; i += kThreads) {
    const int query = i / kGroups, group = i % kGroups;
    const uint32_t kept = call.dropout > 0 ? dropout.kept(first_query + query, first_key / 4 + group) : 15u;
    for (int k = 0; k < 4; ++k) {
      const int key = 4 * group + k;
      factors[kRowsAreKeys ? key * kStride + query : query * kStride + key] =
          (kept >> k & 1u) == 0 ? 0.0f : (call.dropout > 0 ? dropout.scale() : 1.0f);
    }
  }
}

/// Documents of one sample. Tiles that have none in common are left out. A parameter of the kernels: testing
/// a pointer instead takes so many registers that fewer blocks run together, also without documents.
template <bool kDivide>
class Documents {
 public:
  /// `sample`: in the micro-batch.
  template <class T>
  __device__ Documents(const AttentionCall<T>& call, unsigned sample)
      : of_(kDivide ? call.documents + int64_t{sample} * call.positions : nullptr),
        positions_(call.positions) {}

  // REQUIRES: kDivide; positions are those of the sample.
  __device__ bool has_one(int position) const { return of_[position] >= 0; }
  __device__ bool hide(int query, int key) const { return !of_one_document(of_[query], of_[key]); }
  /// Of the positions first ... first + kTile - 1. All threads of the block call it, for the same tile.
  template <int kTile>
  __device__ DocumentRange range_of(int first) const {
    const int lane = static_cast<int>(threadIdx.x) % device::kWarpSize;
    DocumentRange range;
    for (int i = lane; i < kTile; i += device::kWarpSize)
      if (first + i < positions_) range.add(of_[first + i]);
    for (int lanes = device::kWarpSize / 2; lanes > 0; lanes /= 2) {
      const int32_t first_of_other = __shfl_xor_sync(device::kFullWarp, range.first, lanes);
      range.add(DocumentRange{first_of_other, __shfl_xor_sync(device::kFullWarp, range.last, lanes)});
    }
    return range;
  }

 private:
  const int32_t* of_;
  int positions_;
};

template <class T, int kTile, int kColumns, bool kDivide>
__global__ void __launch_bounds__(kThreads)
    forward_kernel(AttentionCall<T> call, AttentionOrder order, float scale) {
  using S = Sizes<kTile, kColumns>;
  const AttentionOrder::Place block = order.of_block(blockIdx.x, blockIdx.y, blockIdx.z);
  if (!order.exists(block)) return;
  const AttentionHead head(call, block.unit);
  const int64_t channels = call.channels();
  const int stride = call.stride();
  float* const queries = device::dynamic_shared<float>();
  float* const met = queries + S::kTileCount;  // keys, then values
  float* const weights = met + S::kTileCount;
  const int first_query = static_cast<int>(block.tile) * kTile;
  const Documents<kDivide> documents(call, block.unit / static_cast<unsigned>(call.heads));
  DocumentRange own;
  if constexpr (kDivide) own = documents.template range_of<kTile>(first_query);

  float output[S::kRows][kColumns] = {}, maximum[S::kRows], sum[S::kRows] = {};
  for (float& value : maximum) value = -std::numeric_limits<float>::infinity();
  load_tile<kTile, kColumns>(queries, call.qkv + head.query, stride, first_query, call);
  for (int first_key = 0; first_key <= call.last_seen(first_query); first_key += kTile) {
    if (kDivide && !own.meets(documents.template range_of<kTile>(first_key))) continue;
    load_tile<kTile, kColumns>(met, call.qkv + head.key, stride, first_key, call);
    fill_factors<kTile, false>(weights, call, head, first_query, first_key);
    __syncthreads();
    float scores[S::kRows][S::kRows];
    multiply_rows<kTile, kColumns>(scores, queries, met, call.head_size);
    __syncthreads();
    load_tile<kTile, kColumns>(met, call.qkv + head.value, stride, first_key, call);
#pragma unroll
    for (int i = 0; i < S::kRows; ++i) {
      const int row = thread_y() + kSide * i;
      const auto seen = [&](int column) {
        return first_key + column <= call.last_seen(first_query + row) &&
               !(kDivide && first_query + row < call.positions &&
                 documents.hide(first_query + row, first_key + column));
      };
      float highest = maximum[i];
#pragma unroll
      for (int j = 0; j < S::kRows; ++j)
        if (seen(thread_x() + kSide * j)) highest = fmaxf(highest, scores[i][j]);
      for (int lanes = kSide / 2; lanes > 0; lanes /= 2)
        highest = fmaxf(highest, __shfl_xor_sync(device::kFullWarp, highest, lanes));
      // A query may see no key of the first tiles that its block meets.
      const float factor = kDivide && highest == -std::numeric_limits<float>::infinity()
                               ? 1.0f
                               : fast_exp(scale * (maximum[i] - highest)),
                  offset = scale * highest;
      maximum[i] = highest;
      sum[i] *= factor;
#pragma unroll
      for (int j = 0; j < S::kRows; ++j) {
        const int column = thread_x() + kSide * j;
        const float weight = seen(column) ? fast_exp(std::fma(scale, scores[i][j], -offset)) : 0.0f;
        sum[i] += weight;
        weights[row * S::kWeightStride + column] *= weight;
      }
#pragma unroll
      for (int j = 0; j < kColumns; ++j) output[i][j] *= factor;
    }
    __syncthreads();
    add_weighted<kTile, kColumns>(output, weights, met);
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < S::kRows; ++i) {
    const int at = first_query + thread_y() + kSide * i;
    for (int lanes = kSide / 2; lanes > 0; lanes /= 2)
      sum[i] += __shfl_xor_sync(device::kFullWarp, sum[i], lanes);
    if (at >= call.positions) continue;
    const bool left_out = kDivide && !documents.has_one(at);
    if (thread_x() == 0)
      call.log_sum_exp[head.row + at] = left_out ? 0.0f : scale * maximum[i] + std::log(sum[i]);
    for (int j = 0; j < kColumns; ++j)
      if (thread_x() + kSide * j < call.head_size)
        call.output[head.output + at * channels + thread_x() + kSide * j] =
            T(left_out ? 0.0f : output[i][j] / sum[i]);
  }
}

/// One half of backward, as attention_backward.cu describes both: a block owns keys and makes the gradients
/// of keys and values, or owns queries and makes theirs.
template <class T, int kTile, int kColumns, bool kOwnsKeys, bool kDivide>
__global__ void __launch_bounds__(kThreads)
    backward_kernel(AttentionCall<T> call, AttentionOrder order, float scale) {
  using S = Sizes<kTile, kColumns>;
  const AttentionOrder::Place block = order.of_block(blockIdx.x, blockIdx.y, blockIdx.z);
  if (!order.exists(block)) return;
  const int members = kOwnsKeys ? call.group : 1;  // heads of queries that the block meets or owns
  const unsigned first_unit = block.unit * static_cast<unsigned>(members);
  const int64_t channels = call.channels(), stride = call.stride();
  float* const owned = device::dynamic_shared<float>();
  float* const met = owned + 2 * S::kTileCount;
  float* const weights = met + 2 * S::kTileCount;
  float* const gradients = weights + S::kWeightCount;
  const auto load = [&](float* to, bool queries, const AttentionHead& head, int first) {
    load_tile<kTile, kColumns>(to, call.qkv + (queries ? head.query : head.key), stride, first, call);
    load_tile<kTile, kColumns>(to + S::kTileCount,
                               queries ? call.output_gradient + head.output : call.qkv + head.value,
                               queries ? channels : stride, first, call);
  };

  const int first_owned = static_cast<int>(block.tile) * kTile;
  float sums[kOwnsKeys ? 2 : 1][S::kRows][kColumns] = {};
  load(owned, !kOwnsKeys, AttentionHead(call, first_unit), first_owned);
  const int begin = kOwnsKeys && call.causal ? first_owned : 0,
            last = kOwnsKeys ? call.positions - 1 : call.last_seen(first_owned);
  const int tiles = (last - begin) / kTile + 1;
  const Documents<kDivide> documents(
      call, block.unit / static_cast<unsigned>(kOwnsKeys ? call.key_heads : call.heads));
  DocumentRange own;
  if constexpr (kDivide) own = documents.template range_of<kTile>(first_owned);
  for (int i = 0; i < members * tiles; ++i) {
    const AttentionHead head(call, first_unit + static_cast<unsigned>(i / tiles));
    const int first_met = begin + i % tiles * kTile;
    if (kDivide && !own.meets(documents.template range_of<kTile>(first_met))) continue;
    load(met, kOwnsKeys, head, first_met);
    const int first_query = kOwnsKeys ? first_met : first_owned,
              first_key = kOwnsKeys ? first_owned : first_met;
    fill_factors<kTile, kOwnsKeys>(weights, call, head, first_query, first_key);
    __syncthreads();
    float scores[S::kRows][S::kRows], products[S::kRows][S::kRows];
    multiply_rows<kTile, kColumns>(scores, owned, met, call.head_size);
    multiply_rows<kTile, kColumns>(products, owned + S::kTileCount, met + S::kTileCount, call.head_size);
#pragma unroll
    for (int i = 0; i < S::kRows; ++i)
#pragma unroll
      for (int j = 0; j < S::kRows; ++j) {
        const int row = thread_y() + kSide * i, column = thread_x() + kSide * j;
        const int at_query = first_query + (kOwnsKeys ? column : row),
                  at_key = first_key + (kOwnsKeys ? row : column);
        const int place = row * S::kWeightStride + column;
        float weight = 0, gradient = 0;
        if (at_key <= call.last_seen(at_query) && at_query < call.positions &&
            !(kDivide && documents.hide(at_query, at_key))) {
          const float offset = call.log_sum_exp[head.row + at_query], dot = call.dots[head.row + at_query];
          weight = fast_exp(std::fma(scale, scores[i][j], -offset));
          gradient = weight * std::fma(products[i][j], weights[place], -dot) * scale;
        }
        gradients[place] = gradient;
        weights[place] *= weight;
      }
    __syncthreads();
    add_weighted<kTile, kColumns>(sums[0], gradients, met);
    if constexpr (kOwnsKeys) add_weighted<kTile, kColumns>(sums[1], weights, met + S::kTileCount);
    __syncthreads();
  }
  const AttentionHead head(call, first_unit);
#pragma unroll
  for (int which = 0; which < (kOwnsKeys ? 2 : 1); ++which) {
    T* const to = call.qkv_gradient + (!kOwnsKeys ? head.query : which == 0 ? head.key : head.value);
#pragma unroll
    for (int i = 0; i < S::kRows; ++i)
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
        const int at = first_owned + thread_y() + kSide * i, column = thread_x() + kSide * j;
        if (at < call.positions && column < call.head_size) to[at * stride + column] = T(sums[which][i][j]);
      }
  }
}

device::Grid grid_of(const AttentionOrder& order, int floats) {
  return {.blocks = blocks_of(order),
          .threads = kThreads,
          .shared_bytes = static_cast<size_t>(floats) * sizeof(float)};
}

template <int kTile, int kColumns, class T>
void launch_forward(const AttentionCall<T>& call, device::Stream& stream) {
  using S = Sizes<kTile, kColumns>;
  const AttentionOrder order = order_of(call, kTile, false, HeaviestTiles::last);
  device::launch(stream, grid_of(order, 2 * S::kTileCount + S::kWeightCount),
                 call.documents == nullptr ? forward_kernel<T, kTile, kColumns, false>
                                           : forward_kernel<T, kTile, kColumns, true>,
                 call, order, call.scale());
}

template <int kTile, int kColumns, bool kOwnsKeys, class T>
void launch_half_of_backward(const AttentionCall<T>& call, device::Stream& stream) {
  using S = Sizes<kTile, kColumns>;
  const AttentionOrder order =
      order_of(call, kTile, kOwnsKeys, kOwnsKeys ? HeaviestTiles::first : HeaviestTiles::last);
  device::launch(stream, grid_of(order, 4 * S::kTileCount + 2 * S::kWeightCount),
                 call.documents == nullptr ? backward_kernel<T, kTile, kColumns, kOwnsKeys, false>
                                           : backward_kernel<T, kTile, kColumns, kOwnsKeys, true>,
                 call, order, call.scale());
}

template <int kTile, int kColumns, class T>
void launch_backward(const AttentionCall<T>& call, device::Stream& stream) {
  launch_half_of_backward<kTile, kColumns, true>(call, stream);
  launch_half_of_backward<kTile, kColumns, false>(call, stream);
}

}  // namespace

template <class T>
void general_attention_forward(const AttentionCall<T>& call, device::Stream& stream) {
  if (call.head_size <= 64) return launch_forward<64, 4>(call, stream);
  if (call.head_size <= 128) return launch_forward<32, 8>(call, stream);
  launch_forward<16, 16>(call, stream);
}

template <class T>
void general_attention_backward(const AttentionCall<T>& call, device::Stream& stream) {
  if (call.head_size <= 64) return launch_backward<64, 4>(call, stream);
  if (call.head_size <= 128) return launch_backward<32, 8>(call, stream);
  launch_backward<16, 16>(call, stream);
}

template void general_attention_forward(const AttentionCall<float>&, device::Stream&);
template void general_attention_forward(const AttentionCall<bfloat16>&, device::Stream&);
template void general_attention_forward(const AttentionCall<float16>&, device::Stream&);
template void general_attention_backward(const AttentionCall<float>&, device::Stream&);
template void general_attention_backward(const AttentionCall<bfloat16>&, device::Stream&);
template void general_attention_backward(const AttentionCall<float16>&, device::Stream&);

}  // namespace lockstep::ops
