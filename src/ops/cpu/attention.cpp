#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "ops/cpu/dropout_factors.h"
#include "ops/cpu/parallel.h"
#include "ops/cpu/rows.h"
#include "ops/cpu/tile_product.h"
#include "ops/parts.h"

namespace lockstep::ops {
namespace {

// Attention by blocks of 64 queries and 64 keys, after Dao et al., "FlashAttention" (2022): no T×T matrix is
// kept. Forward holds the scores of one block of queries; backward computes the probabilities of each 64×64
// block again from the kept log-sum-exps. Each head of each sample is a piece of work of its own with a fixed
// order inside.
constexpr int64_t kBlock = 64;

int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

struct Sizes {
  int64_t batch = 0, positions = 0, heads = 0, head_size = 0;
  int64_t channels() const { return heads * head_size; }
  int64_t padded_positions() const { return round_up(positions, kLanes); }
  int64_t padded_head() const { return round_up(head_size, kLanes); }
  int64_t dropout_groups() const { return (positions + 3) / 4; }
  float scale() const { return 1.0f / std::sqrt(static_cast<float>(head_size)); }
};

/// What one call works with besides tensors.
struct Context {
  Sizes sizes;
  bool drops = false;
  DropoutMask mask;
};

/// One head of one sample, as a piece of a [T, row_stride] tensor.
struct HeadView {
  const float* data;
  int64_t row_stride;
};

/// to [T, padded head]: rows of a head, padded with zeros.
void pack_rows(float* to, HeadView from, const Sizes& sizes) {
  const int64_t width = sizes.padded_head();
  for (int64_t t = 0; t < sizes.positions; ++t) {
    std::memcpy(to + t * width, from.data + t * from.row_stride,
                static_cast<size_t>(sizes.head_size) * sizeof(float));
    std::fill(to + t * width + sizes.head_size, to + (t + 1) * width, 0.0f);
  }
}

/// to [head size, padded T]: the transpose, padded with zeros.
void pack_transposed(float* to, HeadView from, const Sizes& sizes) {
  const int64_t width = sizes.padded_positions();
  for (int64_t begin = 0; begin < width; begin += kLanes)
    for (int64_t d = 0; d < sizes.head_size; ++d)
      for (int64_t t = begin; t < begin + kLanes; ++t)
        to[d * width + t] = t < sizes.positions ? from.data[t * from.row_stride + d] : 0.0f;
}

/// Multiplies weights of row `query`, keys [first_key, first_key + count) by their dropout factors.
/// REQUIRES: first_key is a multiple of 4; count <= kBlock.
void drop_weights(float* weights, const Context& context, int64_t head, int64_t query, uint32_t sample,
                  int64_t first_key, int64_t count) {
  float factors[kBlock];
  const int64_t row = (head * context.sizes.positions + query) * context.sizes.dropout_groups();
  dropout_factors(context.mask, static_cast<uint32_t>(row + first_key / 4), sample, (count + 3) / 4, factors);
  for (int64_t i = 0; i < count; ++i) weights[i] *= factors[i];
}

/// Forward of one head. Workspace: keys transposed, values, scores of a block of queries, their results.
class HeadForward {
 public:
  static int64_t workspace_count(const Sizes& s) {
    return s.head_size * s.padded_positions() + s.positions * s.padded_head() +
           kBlock * s.padded_positions() + kBlock * s.padded_head();
  }

  HeadForward(const Context& context, float* workspace)
      : context_(context),
        sizes_(context.sizes),
        keys_(workspace),
        values_(keys_ + sizes_.head_size * sizes_.padded_positions()),
        scores_(values_ + sizes_.positions * sizes_.padded_head()),
        result_(scores_ + kBlock * sizes_.padded_positions()) {}

  void run(HeadView query, HeadView key, HeadView value, int64_t head, uint32_t sample, float* output,
           float* log_sum_exp) {
    pack_transposed(keys_, key, sizes_);
    pack_rows(values_, value, sizes_);
    for (int64_t first = 0; first < sizes_.positions; first += kBlock) {
      const int64_t rows = std::min(kBlock, sizes_.positions - first);
      compute_scores(query, first, rows);
      float inverse_sums[kBlock];
      normalize(first, rows, head, sample, log_sum_exp, inverse_sums);
      weigh_values(first, rows);
      for (int64_t row = 0; row < rows; ++row) {
        float* __restrict to = output + (first + row) * sizes_.channels();
        const float* __restrict from = result_ + row * sizes_.padded_head();
        for (int64_t d = 0; d < sizes_.head_size; ++d) to[d] = from[d] * inverse_sums[row];
      }
    }
  }

 private:
  /// Keys that the queries up to `last` see, rounded up to whole vectors.
  int64_t seen(int64_t last) const { return round_up(last + 1, kLanes); }

  void compute_scores(HeadView query, int64_t first, int64_t rows) {
    const int64_t width = sizes_.padded_positions();
    // A panel of keys stays in the first-level cache while all queries of the block meet it.
    for (int64_t key = 0; key < seen(first + rows - 1); key += 2 * kLanes)
      for (int64_t row = 0; row < rows; row += kTileRows) {
        const int64_t tile = std::min(kTileRows, rows - row);
        const int64_t columns = std::min(2 * kLanes, seen(first + row + tile - 1) - key);
        if (columns <= 0) continue;
        tile_product(tile, columns, sizes_.head_size,
                     {query.data + (first + row) * query.row_stride, query.row_stride, 1}, keys_ + key, width,
                     scores_ + row * width + key, width, false);
      }
  }

  /// Scores to unnormalised weights, in place; leaves 1 / their sums in `inverse_sums`. Loops over rows one
  /// after another rather than one loop: within a row each step waits for the one before it.
  void normalize(int64_t first, int64_t rows, int64_t head, uint32_t sample, float* log_sum_exp,
                 float* inverse_sums) {
    const int64_t width = sizes_.padded_positions();
    const float scale = sizes_.scale();
    float offsets[kBlock], sums[kBlock];
    for (int64_t row = 0; row < rows; ++row)
      offsets[row] = scale * row_maximum(scores_ + row * width, first + row + 1);
    for (int64_t row = 0; row < rows; ++row)
      sums[row] = weights_of_row(scores_ + row * width, first + row + 1, scale, offsets[row]);
    for (int64_t row = 0; row < rows; ++row) {
      log_sum_exp[first + row] = offsets[row] + std::log(sums[row]);
      inverse_sums[row] = 1.0f / sums[row];
    }
    for (int64_t row = 0; row < rows; ++row) {
      float* weights = scores_ + row * width;
      const int64_t count = first + row + 1;
      // Later keys that other queries of the tile see have weight 0.
      const int64_t tile_end = std::min(width, first + round_up(row + 1, kTileRows));
      for (int64_t key = round_up(count, kLanes); key < tile_end; ++key) weights[key] = 0;
      if (context_.drops)
        for (int64_t key = 0; key < count; key += kBlock)
          drop_weights(weights + key, context_, head, first + row, sample, key,
                       std::min(kBlock, count - key));
    }
  }

  /// exp(scale score - offset) in place, 0 for the lanes beyond `count`; returns their sum.
  static float weights_of_row(float* row, int64_t count, float scale, float offset) {
    Lanes sum{};
    for (int64_t i = 0; i < count; i += kLanes) {
      Lanes weights = map(fused(load(row + i), splat(scale), splat(-offset)), fast_exp);
      if (i + kLanes > count) weights = keep_first(weights, count - i, 0.0f);
      store(row + i, weights);
      sum += weights;
    }
    return fold_sum(sum);
  }

  void weigh_values(int64_t first, int64_t rows) {
    const int64_t width = sizes_.padded_positions(), head = sizes_.padded_head();
    for (int64_t key = 0; key <= first; key += kBlock)
      for (int64_t row = 0; row < rows; row += kTileRows) {
        const int64_t tile = std::min(kTileRows, rows - row);
        const int64_t inner = std::min(kBlock, first + row + tile - key);
        tile_product(tile, head, inner, {scores_ + row * width + key, width, 1}, values_ + key * head, head,
                     result_ + row * head, head, key > 0);
      }
  }

  const Context& context_;
  const Sizes& sizes_;
  float *keys_, *values_, *scores_, *result_;
};

/// Backward of one head. With weights P = exp(scale q k - log_sum_exp), dropout factors F and D = sum(dO O)
/// per query:
///   dV = (P F)^T dO, dS = P (F (dO V^T) - D) scale, dK = dS^T Q, dQ = dS K.
class HeadBackward {
 public:
  static int64_t workspace_count(const Sizes& s) {
    return 2 * s.head_size * s.padded_positions() + 6 * s.positions * s.padded_head() + s.positions +
           2 * kBlock * kBlock;
  }

  HeadBackward(const Context& context, float* workspace) : context_(context), sizes_(context.sizes) {
    const int64_t packed = sizes_.positions * sizes_.padded_head();
    const int64_t transposed = sizes_.head_size * sizes_.padded_positions();
    const auto take = [&](int64_t count) { return std::exchange(workspace, workspace + count); };
    weights_ = take(kBlock * kBlock);
    gradients_ = take(kBlock * kBlock);
    keys_transposed_ = take(transposed);
    values_transposed_ = take(transposed);
    queries_ = take(packed);
    keys_ = take(packed);
    output_gradients_ = take(packed);
    query_gradients_ = take(packed);
    key_gradients_ = take(packed);
    value_gradients_ = take(packed);
    dots_ = take(sizes_.positions);
  }

  void run(HeadView query, HeadView key, HeadView value, HeadView output, HeadView output_gradient,
           const float* log_sum_exp, int64_t head, uint32_t sample, float* input_gradient) {
    pack_transposed(keys_transposed_, key, sizes_);
    pack_transposed(values_transposed_, value, sizes_);
    pack_rows(queries_, query, sizes_);
    pack_rows(keys_, key, sizes_);
    pack_rows(output_gradients_, output_gradient, sizes_);
    for (int64_t t = 0; t < sizes_.positions; ++t)
      dots_[t] = row_sum(sizes_.head_size, [&](const auto& at) {
        return at(output.data + t * output.row_stride, 0.0f) *
               at(output_gradient.data + t * output_gradient.row_stride, 0.0f);
      });
    for (int64_t first_key = 0; first_key < sizes_.positions; first_key += kBlock)
      for (int64_t first_query = first_key; first_query < sizes_.positions; first_query += kBlock) {
        const Block block{first_query, std::min(kBlock, sizes_.positions - first_query), first_key,
                          std::min(kBlock, sizes_.positions - first_key)};
        compute_weights(block, log_sum_exp, head, sample);
        add_gradients(block);
      }
    const int64_t stride = 3 * sizes_.channels();
    unpack(query_gradients_, input_gradient, stride);
    unpack(key_gradients_, input_gradient + sizes_.channels(), stride);
    unpack(value_gradients_, input_gradient + 2 * sizes_.channels(), stride);
  }

 private:
  struct Block {
    int64_t first_query, queries, first_key, keys;
    bool diagonal() const { return first_query == first_key; }
    /// Keys of the block that its query `row` sees.
    int64_t seen(int64_t row) const { return diagonal() ? row + 1 : keys; }
  };

  /// Leaves P F in weights_ and dS in gradients_, both [queries, kBlock] with zeros where a query does not
  /// see a key.
  void compute_weights(const Block& block, const float* log_sum_exp, int64_t head, uint32_t sample) {
    const int64_t depth = sizes_.padded_head(), width = sizes_.padded_positions();
    for (int64_t row = 0; row < block.queries; row += kTileRows) {
      const int64_t tile = std::min(kTileRows, block.queries - row);
      const int64_t columns = round_up(block.seen(row + tile - 1), kLanes);
      const int64_t query = (block.first_query + row) * depth;
      tile_product(tile, columns, sizes_.head_size, {queries_ + query, depth, 1},
                   keys_transposed_ + block.first_key, width, weights_ + row * kBlock, kBlock, false);
      tile_product(tile, columns, sizes_.head_size, {output_gradients_ + query, depth, 1},
                   values_transposed_ + block.first_key, width, gradients_ + row * kBlock, kBlock, false);
    }
    const float scale = sizes_.scale();
    for (int64_t row = 0; row < block.queries; ++row) {
      const int64_t query = block.first_query + row, seen = block.seen(row);
      float* __restrict weights = weights_ + row * kBlock;
      float* __restrict gradients = gradients_ + row * kBlock;
      const float offset = log_sum_exp[query], dot = dots_[query];
      const int64_t columns = round_up(seen, kLanes);
      if (context_.drops) {
        float factors[kBlock];
        std::fill(factors, factors + kBlock, 1.0f);
        drop_weights(factors, context_, head, query, sample, block.first_key, seen);
        for (int64_t i = 0; i < columns; ++i) {
          const float weight = fast_exp(std::fma(scale, weights[i], -offset));
          gradients[i] = weight * std::fma(gradients[i], factors[i], -dot) * scale;
          weights[i] = weight * factors[i];
        }
      } else {
        for (int64_t i = 0; i < columns; ++i) {
          const float weight = fast_exp(std::fma(scale, weights[i], -offset));
          gradients[i] = weight * (gradients[i] - dot) * scale;
          weights[i] = weight;
        }
      }
      std::fill(weights + seen, weights + kBlock, 0.0f);
      std::fill(gradients + seen, gradients + kBlock, 0.0f);
    }
  }

  void add_gradients(const Block& block) {
    const int64_t depth = sizes_.padded_head();
    for (int64_t key = 0; key < block.keys; key += kTileRows) {
      const int64_t tile = std::min(kTileRows, block.keys - key);
      const int64_t skipped = block.diagonal() ? key : 0;  // queries before the tile's keys do not see them
      const int64_t query = (block.first_query + skipped) * depth, to = (block.first_key + key) * depth;
      const int64_t inner = block.queries - skipped;
      const bool accumulate = !block.diagonal();
      tile_product(tile, depth, inner, {weights_ + skipped * kBlock + key, 1, kBlock},
                   output_gradients_ + query, depth, value_gradients_ + to, depth, accumulate);
      tile_product(tile, depth, inner, {gradients_ + skipped * kBlock + key, 1, kBlock}, queries_ + query,
                   depth, key_gradients_ + to, depth, accumulate);
    }
    for (int64_t row = 0; row < block.queries; row += kTileRows) {
      const int64_t tile = std::min(kTileRows, block.queries - row);
      tile_product(tile, depth, block.seen(row + tile - 1), {gradients_ + row * kBlock, kBlock, 1},
                   keys_ + block.first_key * depth, depth,
                   query_gradients_ + (block.first_query + row) * depth, depth, block.first_key > 0);
    }
  }

  void unpack(const float* from, float* to, int64_t stride) const {
    for (int64_t t = 0; t < sizes_.positions; ++t)
      std::memcpy(to + t * stride, from + t * sizes_.padded_head(),
                  static_cast<size_t>(sizes_.head_size) * sizeof(float));
  }

  const Context& context_;
  const Sizes& sizes_;
  float *weights_, *gradients_, *keys_transposed_, *values_transposed_, *queries_, *keys_, *output_gradients_,
      *query_gradients_, *key_gradients_, *value_gradients_, *dots_;
};

class AttentionKernel : public Kernel {
 public:
  AttentionKernel(const Attention& op, const TensorSpec& input, const KernelOptions& options)
      : dropout_(options.training ? op.dropout : 0.0f),
        sizes_{options.batch, input.shape[0], op.heads, input.shape[1] / 3 / op.heads},
        options_(options) {}

  int64_t workspace_bytes(KernelPhase phase) const override {
    const int64_t threads = std::max(1, options_.intra_op_threads);
    switch (phase) {
      case KernelPhase::forward:
        return threads * forward_count() * static_cast<int64_t>(sizeof(float));
      case KernelPhase::backward_input:
        return threads * backward_count() * static_cast<int64_t>(sizeof(float));
      case KernelPhase::backward_weight:
        return 0;
    }
    return 0;
  }

  void forward(const KernelArguments& arguments, device::Stream& stream) override {
    stream.launch(
        [this, qkv = arguments.inputs[0].as<const float>(), output = arguments.outputs[0].as<float>(),
         log_sum_exp = arguments.auxiliary[0].as<float>(), constants = arguments.constants,
         workspace = static_cast<float*>(arguments.workspace), first_sample = arguments.first_sample] {
          const Context context = make_context(constants);
          for_each_head(workspace, forward_count(), [&](int64_t sample, int64_t head, float* own) {
            const Head h = place_of(sample, head);
            HeadForward(context, own)
                .run(query_of(qkv, h), key_of(qkv, h), value_of(qkv, h), head,
                     static_cast<uint32_t>(first_sample + sample), output + h.output, log_sum_exp + h.row);
          });
        });
  }

  void backward_input(const KernelArguments& arguments, device::Stream& stream) override {
    if (arguments.input_gradients[0].data == nullptr) return;
    stream.launch(
        [this, qkv = arguments.inputs[0].as<const float>(), output = arguments.outputs[0].as<const float>(),
         log_sum_exp = arguments.auxiliary[0].as<const float>(),
         output_gradient = arguments.output_gradients[0].as<const float>(),
         input_gradient = arguments.input_gradients[0].as<float>(), constants = arguments.constants,
         workspace = static_cast<float*>(arguments.workspace), first_sample = arguments.first_sample] {
          const Context context = make_context(constants);
          for_each_head(workspace, backward_count(), [&](int64_t sample, int64_t head, float* own) {
            const Head h = place_of(sample, head);
            const int64_t channels = sizes_.channels();
            HeadBackward(context, own)
                .run(query_of(qkv, h), key_of(qkv, h), value_of(qkv, h), {output + h.output, channels},
                     {output_gradient + h.output, channels}, log_sum_exp + h.row, head,
                     static_cast<uint32_t>(first_sample + sample), input_gradient + h.input);
          });
        });
  }

 private:
  /// Offsets of one head of one sample.
  struct Head {
    int64_t input;   // of its query in the input
    int64_t output;  // in the output
    int64_t row;     // in the log-sum-exps
  };

  int64_t forward_count() const { return round_up(HeadForward::workspace_count(sizes_), kLanes); }
  int64_t backward_count() const { return round_up(HeadBackward::workspace_count(sizes_), kLanes); }

  Head place_of(int64_t sample, int64_t head) const {
    const int64_t row = sample * sizes_.positions, column = head * sizes_.head_size;
    return {row * 3 * sizes_.channels() + column, row * sizes_.channels() + column,
            (sample * sizes_.heads + head) * sizes_.positions};
  }
  HeadView query_of(const float* qkv, Head h) const { return {qkv + h.input, 3 * sizes_.channels()}; }
  HeadView key_of(const float* qkv, Head h) const {
    return {qkv + h.input + sizes_.channels(), 3 * sizes_.channels()};
  }
  HeadView value_of(const float* qkv, Head h) const {
    return {qkv + h.input + 2 * sizes_.channels(), 3 * sizes_.channels()};
  }

  Context make_context(const StepConstants* constants) const {
    Context context{.sizes = sizes_, .drops = dropout_ > 0};
    if (context.drops) context.mask = make_dropout_mask(dropout_, options_.op_number, *constants);
    return context;
  }

  /// Calls work(sample, head, workspace) for every head; each thread has `workspace_count` floats of its own.
  template <class Work>
  void for_each_head(float* workspace, int64_t workspace_count, const Work& work) const {
    const int64_t threads = std::max(1, options_.intra_op_threads), units = sizes_.batch * sizes_.heads;
    parallel_for(static_cast<int>(threads), threads, [&](int64_t thread) {
      for (int64_t unit = units * thread / threads; unit < units * (thread + 1) / threads; ++unit)
        work(unit / sizes_.heads, unit % sizes_.heads, workspace + thread * workspace_count);
    });
  }

  float dropout_;
  Sizes sizes_;
  KernelOptions options_;
};

}  // namespace

template <>
std::unique_ptr<Kernel> make_cpu_kernel(const Attention& op, Inputs inputs, const KernelOptions& options) {
  return std::make_unique<AttentionKernel>(op, inputs[0], options);
}

}  // namespace lockstep::ops
