#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#pragma GCC visibility push(default)
namespace lockstep {

// The options of every op, as a user writes them in a config or passes them to ModelBuilder. Each struct has
// a name, and visit(), which calls `v(field_name, field)` for each option in order; text, comparison and
// hashing use it. Shapes in comments are those of one sample; the batch is a further first dimension.

/// y = x W^T + b over the last dimension: [..., in] -> [..., units]. Parameters weight [units, in], bias
/// [units].
struct Linear {
  static constexpr std::string_view kName = "linear";
  int64_t units = 0;
  bool bias = true;
  // What parameters begin at. By default weight and bias are uniform in ±1/sqrt(in) (Kaiming, a=sqrt 5). One
  // of the next three says otherwise of the weight; the bias then begins at 0, or as bias_init_std says.
  float init_std = 0;        ///< standard deviation of the weight's normal init
  float init_range = 0;      ///< the weight is uniform in ±init_range
  bool zero_weight = false;  ///< the weight is 0
  float bias_init_std = 0;   ///< standard deviation of the bias's normal init
  template <class V>
  void visit(V&& v) {
    v("units", units);
    v("bias", bias);
    v("init_std", init_std);
    v("init_range", init_range);
    v("zero_weight", zero_weight);
    v("bias_init_std", bias_init_std);
  }
  bool operator==(const Linear&) const = default;
};

/// Cross-correlation, [H, W, C] -> [H', W', channels], H' = (H + 2 padding - dilation (kernel - 1) - 1) /
/// stride + 1. Group g makes channels g channels / groups and following of the input's channels g C / groups
/// and following. Parameters weight [channels, kernel, kernel, C / groups], bias [channels].
struct Conv2d {
  static constexpr std::string_view kName = "conv2d";
  int64_t channels = 0;
  int64_t kernel = 0;
  int64_t stride = 1;
  int64_t padding = 0;
  bool bias = true;
  int64_t groups = 1;    ///< divides C and channels
  int64_t dilation = 1;  ///< pixels from one place of the kernel to the next
  /// Standard deviation of the weight's normal init, with which the bias starts at 0; 0: both are uniform in
  /// ±1/sqrt(kernel² C / groups) (Kaiming, a=sqrt 5).
  float init_std = 0;
  template <class V>
  void visit(V&& v) {
    v("channels", channels);
    v("kernel", kernel);
    v("stride", stride);
    v("padding", padding);
    v("bias", bias);
    v("groups", groups);
    v("dilation", dilation);
    v("init_std", init_std);
  }
  bool operator==(const Conv2d&) const = default;
};

enum class PoolKind : int { max, average };

/// [H, W, C] -> [H', W', C]. Padding is ignored: an average divides by the number of the window's elements
/// within the image.
struct Pool2d {
  static constexpr std::string_view kName = "pool2d";
  PoolKind kind = PoolKind::max;
  int64_t kernel = 0;
  int64_t stride = 0;  ///< 0: the same as kernel
  int64_t padding = 0;
  /// An average divides by the window's elements in the image; if true, by all of the window's elements, as
  /// PyTorch does by default. REQUIRES: false for a maximum.
  bool count_include_pad = false;
  template <class V>
  void visit(V&& v) {
    v("kind", kind);
    v("kernel", kernel);
    v("stride", stride);
    v("padding", padding);
    v("count_include_pad", count_include_pad);
  }
  bool operator==(const Pool2d&) const = default;
};

/// Mean over height and width: [H, W, C] -> [C].
struct GlobalPool2d {
  static constexpr std::string_view kName = "global_pool2d";
  template <class V>
  void visit(V&&) {}
  bool operator==(const GlobalPool2d&) const = default;
};

enum class UpsampleKind : int { nearest, bilinear };

/// Resizes images, [H, W, C] -> [H', W', C], with the rules of PyTorch's interpolate: either by `scale`, to
/// floor(H scale) and floor(W scale) pixels, or to `height` and `width`. Pixel i of the output lies at
/// i / scale of the input (nearest, rounded down), at (i + 1/2) / scale - 1/2 (bilinear), or, with
/// align_corners, where the centers of both images' corner pixels coincide. As in PyTorch, a side that keeps
/// its size is copied whatever the scale, and `nearest` reads pixel i / 2 if a side becomes twice as long.
struct Upsample2d {
  static constexpr std::string_view kName = "upsample2d";
  UpsampleKind kind = UpsampleKind::nearest;
  double scale = 0;    ///< of both sides; 0: height and width say the size
  int64_t height = 0;  ///< 0: scale says the size
  int64_t width = 0;
  bool align_corners = false;  ///< REQUIRES: false for nearest
  template <class V>
  void visit(V&& v) {
    v("kind", kind);
    v("scale", scale);
    v("height", height);
    v("width", width);
    v("align_corners", align_corners);
  }
  bool operator==(const Upsample2d&) const = default;
};

/// Normalizes over all dimensions but the last, per micro-batch. Parameters weight, bias [C]. Statistics
/// running_mean, running_var [C] change once per optimizer step: running += momentum (mean over micro-batches
/// - running).
struct BatchNorm {
  static constexpr std::string_view kName = "batch_norm";
  float momentum = 0.1f;
  float epsilon = 1e-5f;
  bool zero_weight = false;  ///< weight starts at 0 instead of 1, so that a residual block is the identity
  template <class V>
  void visit(V&& v) {
    v("momentum", momentum);
    v("epsilon", epsilon);
    v("zero_weight", zero_weight);
  }
  bool operator==(const BatchNorm&) const = default;
};

/// Normalizes over the last dimension. Parameters weight [C] and, with bias, bias [C].
struct LayerNorm {
  static constexpr std::string_view kName = "layer_norm";
  float epsilon = 1e-5f;
  bool bias = true;
  template <class V>
  void visit(V&& v) {
    v("epsilon", epsilon);
    v("bias", bias);
  }
  bool operator==(const LayerNorm&) const = default;
};

/// Divides by the root mean square over the last dimension: y = x / sqrt(mean(x²) + epsilon) weight.
/// Parameter weight [C].
struct RmsNorm {
  static constexpr std::string_view kName = "rms_norm";
  float epsilon = 1e-5f;
  template <class V>
  void visit(V&& v) {
    v("epsilon", epsilon);
  }
  bool operator==(const RmsNorm&) const = default;
};

/// Rows of a table: int32 [...] -> [..., width]. Parameter weight [vocabulary, width], N(0, init_std) or, if
/// init_range is not 0, uniform in ±init_range.
struct Embedding {
  static constexpr std::string_view kName = "embedding";
  int64_t vocabulary = 0;
  int64_t width = 0;
  float init_std = 0.02f;
  float init_range = 0;
  template <class V>
  void visit(V&& v) {
    v("vocabulary", vocabulary);
    v("width", width);
    v("init_std", init_std);
    v("init_range", init_range);
  }
  bool operator==(const Embedding&) const = default;
};

/// Adds a learned vector per position: [T, C] -> [T, C], T <= positions. Parameter weight [positions, C].
struct PositionEmbedding {
  static constexpr std::string_view kName = "position_embedding";
  int64_t positions = 0;
  float init_std = 0.02f;
  template <class V>
  void visit(V&& v) {
    v("positions", positions);
    v("init_std", init_std);
  }
  bool operator==(const PositionEmbedding&) const = default;
};

/// Rotary positions after Su et al., "RoFormer" (2021), in the layout of Llama: [T, C] -> [T, C], C a
/// multiple of head_size D. In each of the first `heads` heads of position t, elements i and i + D / 2 are
/// turned by the angle t theta^(-2 i / D); the heads behind them, such as an attention's values, stay as they
/// are.
///
/// With a scaling_factor F, frequencies f are scaled as in Llama 3.1: a pair that makes fewer than
/// low_frequency_factor turns within original_positions turns F times more slowly, one that makes more than
/// high_frequency_factor turns stays, and between them the share of the unscaled frequency rises evenly.
struct RotaryEmbedding {
  static constexpr std::string_view kName = "rotary_embedding";
  int64_t head_size = 0;
  int64_t heads = 0;  ///< 0: all that the input has
  float theta = 10000;
  float scaling_factor = 0;         ///< 0: frequencies are not scaled
  float low_frequency_factor = 1;   ///< below high_frequency_factor
  float high_frequency_factor = 4;  ///< of Llama 3.1, like all defaults here
  int64_t original_positions = 8192;
  template <class V>
  void visit(V&& v) {
    v("head_size", head_size);
    v("heads", heads);
    v("theta", theta);
    v("scaling_factor", scaling_factor);
    v("low_frequency_factor", low_frequency_factor);
    v("high_frequency_factor", high_frequency_factor);
    v("original_positions", original_positions);
  }
  bool operator==(const RotaryEmbedding&) const = default;
};

/// Multi-head self-attention without its linear layers: [T, (heads + 2 key_value_heads) D] (query, key, value
/// side by side, each split into heads of D channels) -> [T, heads D]. Computes softmax(q k^T / sqrt(D) +
/// causal mask) v, with `dropout` on the attention weights; heads / key_value_heads neighboring queries share
/// a head of keys and values. Keeps [heads, T] log-sum-exps for the backward pass, never a T×T tensor.
///
/// Optional further inputs, in any order: mask [T], and documents int32 [T]. A position where the mask is 0,
/// or the document is negative, is left out: nobody sees it, and its output is 0. A position sees only those
/// of its own document.
struct Attention {
  static constexpr std::string_view kName = "attention";
  int64_t heads = 0;
  float dropout = 0;
  int64_t key_value_heads = 0;  ///< divides heads; 0: the same as heads
  bool causal = true;           ///< false: every position sees all of the sample
  template <class V>
  void visit(V&& v) {
    v("heads", heads);
    v("dropout", dropout);
    v("key_value_heads", key_value_heads);
    v("causal", causal);
  }
  bool operator==(const Attention&) const = default;
};

/// A layer of an LSTM as PyTorch computes it: [T, C] -> [T, units], from states of zeros; with bidirectional,
/// the same from the last position to the first beside it: [T, 2 units]. With gates i, f, g and o, one after
/// another in the weights' rows, z = W_ih x + b_ih + W_hh h + b_hh, c = sigmoid(z_f) c + sigmoid(z_i)
/// tanh(z_g), h = sigmoid(z_o) tanh(c). Parameters weight_ih [4 units, C], weight_hh [4 units, units],
/// bias_ih, bias_hh [4 units], uniform in ±1/sqrt(units), and those of the other direction, which end in
/// "_reverse".
///
/// Optional second input: mask [T]. A position where it is 0 is left out, in both directions: its output is
/// 0, and the states pass it unchanged.
struct Lstm {
  static constexpr std::string_view kName = "lstm";
  int64_t units = 0;
  bool bidirectional = false;
  template <class V>
  void visit(V&& v) {
    v("units", units);
    v("bidirectional", bidirectional);
  }
  bool operator==(const Lstm&) const = default;
};

enum class SequencePoolKind : int { mean, last, ends };

/// One vector of a sequence: [T, C] -> [C]. mean: of its positions. last: the last position. ends: the first
/// half of the channels at the last position, and the second half at the first one, which are the last states
/// of both directions of an LSTM. Optional second input: mask [T]; positions where it is 0 do not count, and
/// if none counts, the result is 0.
struct SequencePool {
  static constexpr std::string_view kName = "sequence_pool";
  SequencePoolKind kind = SequencePoolKind::mean;
  template <class V>
  void visit(V&& v) {
    v("kind", kind);
  }
  bool operator==(const SequencePool&) const = default;
};

/// Zeroes each element with probability `rate` and scales the others by 1 / (1 - rate). The identity in
/// evaluation.
struct Dropout {
  static constexpr std::string_view kName = "dropout";
  float rate = 0.5f;
  template <class V>
  void visit(V&& v) {
    v("rate", rate);
  }
  bool operator==(const Dropout&) const = default;
};

struct Relu {
  static constexpr std::string_view kName = "relu";
  template <class V>
  void visit(V&&) {}
  bool operator==(const Relu&) const = default;
};
enum class GeluKind : int { tanh, erf };

/// tanh: 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x³))), as GPT-2 uses it. erf: 0.5 x (1 + erf(x / sqrt 2)),
/// of which that is an approximation; PyTorch's default.
struct Gelu {
  static constexpr std::string_view kName = "gelu";
  GeluKind kind = GeluKind::tanh;
  template <class V>
  void visit(V&& v) {
    v("kind", kind);
  }
  bool operator==(const Gelu&) const = default;
};
/// x sigmoid(x), also called swish.
struct Silu {
  static constexpr std::string_view kName = "silu";
  template <class V>
  void visit(V&&) {}
  bool operator==(const Silu&) const = default;
};
struct Sigmoid {
  static constexpr std::string_view kName = "sigmoid";
  template <class V>
  void visit(V&&) {}
  bool operator==(const Sigmoid&) const = default;
};
struct Tanh {
  static constexpr std::string_view kName = "tanh";
  template <class V>
  void visit(V&&) {}
  bool operator==(const Tanh&) const = default;
};

/// Sum of two tensors of the same shape.
struct Add {
  static constexpr std::string_view kName = "add";
  template <class V>
  void visit(V&&) {}
  bool operator==(const Add&) const = default;
};

/// Product of two tensors of the same shape, element by element.
struct Multiply {
  static constexpr std::string_view kName = "multiply";
  template <class V>
  void visit(V&&) {}
  bool operator==(const Multiply&) const = default;
};

/// Passes one value to two readers. The graph inserts it wherever a value is used again; users never write
/// it. Its backward is the sum of both gradients.
struct Fork {
  static constexpr std::string_view kName = "fork";
  template <class V>
  void visit(V&&) {}
  bool operator==(const Fork&) const = default;
};

/// [...] -> [product].
struct Flatten {
  static constexpr std::string_view kName = "flatten";
  template <class V>
  void visit(V&&) {}
  bool operator==(const Flatten&) const = default;
};

/// Same elements, other dimensions: `shape` is a comma list such as "7,7,16"; one entry may be -1.
struct Reshape {
  static constexpr std::string_view kName = "reshape";
  std::string shape;
  template <class V>
  void visit(V&& v) {
    v("shape", shape);
  }
  bool operator==(const Reshape&) const = default;
};

/// Two or more tensors one after another along dimension `axis` of a sample, in which alone they may differ;
/// negative: counted from the last one, which is -1.
struct Concatenate {
  static constexpr std::string_view kName = "concatenate";
  int64_t axis = -1;
  template <class V>
  void visit(V&& v) {
    v("axis", axis);
  }
  bool operator==(const Concatenate&) const = default;
};

/// Elements [begin, end) along dimension `axis` of a sample. Negative axes, and ends, are counted from the
/// last; an end of 0 is behind it.
struct Slice {
  static constexpr std::string_view kName = "slice";
  int64_t axis = 0;
  int64_t begin = 0;
  int64_t end = 0;
  template <class V>
  void visit(V&& v) {
    v("axis", axis);
    v("begin", begin);
    v("end", end);
  }
  bool operator==(const Slice&) const = default;
};

/// Dimensions of a sample in another order: dimension k of the output is dimension order[k] of the input.
/// `order` is a comma list such as "2,0,1".
struct Transpose {
  static constexpr std::string_view kName = "transpose";
  std::string order;
  template <class V>
  void visit(V&& v) {
    v("order", order);
  }
  bool operator==(const Transpose&) const = default;
};

/// A learned vector before a sequence, such as a class token: [T, C] -> [T + 1, C]. Parameter weight [1, C].
struct PrependToken {
  static constexpr std::string_view kName = "prepend_token";
  float init_std = 0;  ///< of the normal initialization; 0: zeros
  template <class V>
  void visit(V&& v) {
    v("init_std", init_std);
  }
  bool operator==(const PrependToken&) const = default;
};

/// A number of a custom op, by name.
struct CustomAttribute {
  std::string name;
  double value = 0;
  bool operator==(const CustomAttribute&) const = default;
};

/// An op that the program has registered under `name` (lockstep/custom_op.h).
struct Custom {
  static constexpr std::string_view kName = "custom";
  std::string name;
  std::vector<CustomAttribute> attribute;
  template <class V>
  void visit(V&& v) {
    v("name", name);
    v("attribute", attribute);
  }
  bool operator==(const Custom&) const = default;
};

/// Shares of a label that is a mixture are whole numbers of these parts: 2^24 is all of it.
inline constexpr int32_t kWholeShare = 1 << 24;

/// Logits [..., classes] and labels int32 [...] -> metrics (see kMetricCount in ops/op.h). Positions with
/// label `ignore_index`, or with any negative label, are ignored.
///
/// Optional third input: mixtures int32 [..., 2], a second class and its share of the label in units of
/// 1 / kWholeShare. The first class has the rest. A position is ignored if a class with a share is. An answer
/// is right if it is the class with the larger share; of equal shares, the first class.
struct SoftmaxCrossEntropy {
  static constexpr std::string_view kName = "softmax_cross_entropy";
  int64_t ignore_index = -1;
  /// Share of each label that is spread evenly over all classes, from 0 to 1; in evaluations, too.
  float label_smoothing = 0;
  template <class V>
  void visit(V&& v) {
    v("ignore_index", ignore_index);
    v("label_smoothing", label_smoothing);
  }
  bool operator==(const SoftmaxCrossEntropy&) const = default;
};

/// Prediction [...] and target float32 [...] of the same shape -> metrics; the mean runs over samples and
/// elements.
struct MeanSquaredError {
  static constexpr std::string_view kName = "mean_squared_error";
  template <class V>
  void visit(V&&) {}
  bool operator==(const MeanSquaredError&) const = default;
};

/// The table of all ops. Only ops in it can be used, and tests cover each of them.
using Op = std::variant<Linear, Conv2d, Pool2d, GlobalPool2d, Upsample2d, BatchNorm, LayerNorm, RmsNorm,
                        Embedding, PositionEmbedding, RotaryEmbedding, Attention, Lstm, SequencePool, Dropout,
                        Relu, Gelu, Silu, Sigmoid, Tanh, Add, Multiply, Fork, Flatten, Reshape, Concatenate,
                        Slice, Transpose, PrependToken, Custom, SoftmaxCrossEntropy, MeanSquaredError>;

inline std::string_view name_of(const Op& op) {
  return std::visit([](const auto& o) { return o.kName; }, op);
}

}  // namespace lockstep
#pragma GCC visibility pop
