#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "net/oracle/op_parts.h"

namespace lockstep::net {
namespace {

/// One head of one sample: softmax weights, and where its queries, keys and values lie.
class Head {
 public:
  Head(const Attention& op, const OpCall& call, int64_t sample, int64_t head)
      : call_(call),
        heads_(op.heads),
        key_heads_(op.key_value_heads == 0 ? op.heads : op.key_value_heads),
        positions_(call.input_shapes[0][0]),
        width_(call.input_shapes[0][1]),
        size_(width_ / (heads_ + 2 * key_heads_)),
        causal_(op.causal),
        sample_(sample),
        head_(head) {}

  int64_t size() const { return size_; }
  int64_t positions() const { return positions_; }
  double scale() const { return 1 / std::sqrt(static_cast<double>(size_)); }
  /// part: 0 query, 1 key, 2 value.
  int64_t at(int part, int64_t position, int64_t d) const {
    const int64_t key_head = head_ / (heads_ / key_heads_);
    const int64_t column = part == 0 ? head_ : heads_ + (part - 1) * key_heads_ + key_head;
    return (sample_ * positions_ + position) * width_ + column * size_ + d;
  }
  int64_t output_at(int64_t position, int64_t d) const {
    return ((sample_ * positions_ + position) * heads_ + head_) * size_ + d;
  }
  /// How many keys `query` sees.
  int64_t seen(int64_t query) const { return causal_ ? query + 1 : positions_; }
  /// Whether marks let `query` see `key`: a mask leaves positions out, and documents do not see each other.
  bool may_see(int64_t query, int64_t key) const {
    for (size_t i = 1; i < call_.inputs.size(); ++i) {
      const double a = (*call_.inputs[i])[sample_ * positions_ + query],
                   b = (*call_.inputs[i])[sample_ * positions_ + key];
      if (call_.input_types[i] == DType::int32 ? a < 0 || a != b : a == 0 || b == 0) return false;
    }
    return true;
  }
  /// Weights of the keys that `query` sees, before dropout: all 0 if marks hide every one.
  Values weights(int64_t query) const {
    const Values& x = *call_.inputs[0];
    Values scores;
    for (int64_t key = 0; key < seen(query); ++key) {
      double score = 0;
      for (int64_t d = 0; d < size_; ++d) score += x[at(0, query, d)] * x[at(1, key, d)];
      scores.push_back(may_see(query, key) ? score * scale() : -std::numeric_limits<double>::infinity());
    }
    const double most = *std::max_element(scores.begin(), scores.end());
    if (most == -std::numeric_limits<double>::infinity()) return Values(scores.size());
    double sum = 0;
    for (double& score : scores) sum += score = std::exp(score - most);
    for (double& score : scores) score /= sum;
    return scores;
  }
  /// Rows of keys are padded to a multiple of four in the numbering of random numbers.
  double factor(const Values& factors, int64_t query, int64_t key) const {
    const int64_t row = (positions_ + 3) / 4 * 4;
    return factors[((sample_ * heads_ + head_) * positions_ + query) * row + key];
  }

 private:
  const OpCall& call_;
  int64_t heads_, key_heads_, positions_, width_, size_;
  bool causal_;
  int64_t sample_, head_;
};

Values attention_factors(const Attention& op, const OpCall& call) {
  const int64_t positions = call.input_shapes[0][0];
  return dropout_factors(op.dropout, call, op.heads * positions * ((positions + 3) / 4 * 4));
}

void head_backward(const Head& head, const Values& factors, const OpCall& call, const Values& dy,
                   Values& dx) {
  const Values& x = *call.inputs[0];
  for (int64_t query = 0; query < head.positions(); ++query) {
    const Values weights = head.weights(query);
    Values slopes(weights.size());  // of the weights, dropout included
    double mean = 0;
    for (int64_t key = 0; key < head.seen(query); ++key) {
      const double factor = head.factor(factors, query, key);
      for (int64_t d = 0; d < head.size(); ++d) {
        const double g = dy[head.output_at(query, d)];
        slopes[key] += factor * g * x[head.at(2, key, d)];
        dx[head.at(2, key, d)] += factor * weights[key] * g;
      }
      mean += weights[key] * slopes[key];
    }
    for (int64_t key = 0; key < head.seen(query); ++key) {
      const double score = weights[key] * (slopes[key] - mean) * head.scale();
      for (int64_t d = 0; d < head.size(); ++d) {
        dx[head.at(0, query, d)] += score * x[head.at(1, key, d)];
        dx[head.at(1, key, d)] += score * x[head.at(0, query, d)];
      }
    }
  }
}

}  // namespace

Values forward_of(const Attention& op, const OpCall& call) {
  const Values factors = attention_factors(op, call);
  Values y(static_cast<size_t>(call.samples * call.output_shape.count()));
  for (int64_t s = 0; s < call.samples; ++s)
    for (int64_t h = 0; h < op.heads; ++h) {
      const Head head(op, call, s, h);
      for (int64_t query = 0; query < head.positions(); ++query) {
        const Values weights = head.weights(query);
        for (int64_t key = 0; key < head.seen(query); ++key)
          for (int64_t d = 0; d < head.size(); ++d)
            y[head.output_at(query, d)] +=
                head.factor(factors, query, key) * weights[key] * (*call.inputs[0])[head.at(2, key, d)];
      }
    }
  return y;
}

OpGradients backward_of(const Attention& op, const OpCall& call, const Values& dy) {
  const Values factors = attention_factors(op, call);
  Values dx(call.inputs[0]->size());
  for (int64_t s = 0; s < call.samples; ++s)
    for (int64_t h = 0; h < op.heads; ++h) head_backward(Head(op, call, s, h), factors, call, dy, dx);
  OpGradients gradients{{dx}, {}};
  gradients.inputs.resize(call.inputs.size());  // nothing flows into marks
  return gradients;
}

namespace {

/// Radians from one position to the next.
double frequency_of(const RotaryEmbedding& op, int64_t pair) {
  const double frequency = std::pow(static_cast<double>(op.theta),
                                    -2 * static_cast<double>(pair) / static_cast<double>(op.head_size));
  if (op.scaling_factor == 0) return frequency;
  const double turns = static_cast<double>(op.original_positions) * frequency / (2 * std::numbers::pi);
  const double low = op.low_frequency_factor, high = op.high_frequency_factor;
  const double scaled = frequency / static_cast<double>(op.scaling_factor);
  if (turns <= low) return scaled;
  if (turns >= high) return frequency;
  return std::lerp(scaled, frequency, (turns - low) / (high - low));
}

/// Turns by the angles of positions, or back.
Values turned(const RotaryEmbedding& op, const OpCall& call, Values x, double direction) {
  const int64_t positions = call.input_shapes[0][0], width = call.input_shapes[0][1], half = op.head_size / 2;
  const int64_t heads = op.heads == 0 ? width / op.head_size : op.heads;
  for (int64_t row = 0; row < call.rows(); ++row)
    for (int64_t head = 0; head < heads; ++head)
      for (int64_t i = 0; i < half; ++i) {
        const double angle = direction * static_cast<double>(row % positions) * frequency_of(op, i);
        const int64_t at = row * width + head * op.head_size + i;
        const double a = x[at], b = x[at + half];
        x[at] = a * std::cos(angle) - b * std::sin(angle);
        x[at + half] = b * std::cos(angle) + a * std::sin(angle);
      }
  return x;
}

}  // namespace

Values forward_of(const RotaryEmbedding& op, const OpCall& call) {
  return turned(op, call, *call.inputs[0], 1);
}
OpGradients backward_of(const RotaryEmbedding& op, const OpCall& call, const Values& dy) {
  return {{turned(op, call, dy, -1)}, {}};
}

namespace {

/// Of each class, its part of a row's label; empty if the row is ignored.
Values parts_of_label(const SoftmaxCrossEntropy& op, const OpCall& call, int64_t row) {
  const auto classes = static_cast<size_t>(call.input_shapes[0][-1]);
  const bool mixes = call.inputs.size() > 2;
  const double share = mixes ? (*call.inputs[2])[2 * row + 1] / kWholeShare : 0;
  Values parts(classes, op.label_smoothing / static_cast<double>(classes));
  for (const auto& [label, part] : {std::pair((*call.inputs[1])[row], 1 - share),
                                    std::pair(mixes ? (*call.inputs[2])[2 * row] : 0.0, share)}) {
    if (part == 0) continue;
    if (label < 0 || label == static_cast<double>(op.ignore_index)) return {};
    parts[static_cast<size_t>(label)] += part * (1 - static_cast<double>(op.label_smoothing));
  }
  return parts;
}

}  // namespace

Values forward_of(const SoftmaxCrossEntropy& op, const OpCall& call) {
  const int64_t classes = call.input_shapes[0][-1];
  const Values& logits = *call.inputs[0];
  double sum = 0, count = 0;
  for (int64_t row = 0; row < call.rows(); ++row) {
    const Values parts = parts_of_label(op, call, row);
    if (parts.empty()) continue;
    const auto first = logits.begin() + row * classes;
    const double most = *std::max_element(first, first + classes);
    double exponentials = 0;
    for (int64_t c = 0; c < classes; ++c) exponentials += std::exp(first[c] - most);
    for (int64_t c = 0; c < classes; ++c) sum += parts[c] * (most + std::log(exponentials) - first[c]);
    count += 1;
  }
  return {sum, count};
}

OpGradients backward_of(const SoftmaxCrossEntropy& op, const OpCall& call) {
  const int64_t classes = call.input_shapes[0][-1];
  const Values& logits = *call.inputs[0];
  Values dx(logits.size());
  for (int64_t row = 0; row < call.rows(); ++row) {
    const Values parts = parts_of_label(op, call, row);
    if (parts.empty()) continue;
    const auto first = logits.begin() + row * classes;
    const double most = *std::max_element(first, first + classes);
    double exponentials = 0;
    for (int64_t c = 0; c < classes; ++c) exponentials += std::exp(first[c] - most);
    for (int64_t c = 0; c < classes; ++c)
      dx[row * classes + c] = std::exp(first[c] - most) / exponentials - parts[c];
  }
  OpGradients gradients{{dx}, {}};
  gradients.inputs.resize(call.inputs.size());
  return gradients;
}

}  // namespace lockstep::net
