#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/vector_math.h"
#include "lockstep/error.h"
#include "ops/cpu/loops/loops.h"
#include "ops/cpu/parallel.h"
#include "ops/parts.h"
#include "ops/soft_target.h"

namespace lockstep::ops {
namespace {

struct Sizes {
  int64_t batch = 0, positions = 0, classes = 0;  // positions of one sample
  int64_t rows() const { return batch * positions; }
};

/// What one position adds to the metrics; rows are summed in order after all have been computed.
struct RowResult {
  double loss;
  bool correct;
};

constexpr int64_t kPiece = 512;  // of a row that is summed in float32

/// The labels of all rows, and what is made of them.
struct Labels {
  const int32_t *labels, *mixtures;  // mixtures: null if there are none
  int64_t ignore_index, classes;
  float smoothing;

  SoftTarget of(int64_t row) const {
    return {labels[row], mixtures == nullptr ? nullptr : mixtures + 2 * row};
  }
  bool counts(int64_t row) const { return of(row).counts(ignore_index); }
};

double sum_of(const float* logits, int64_t classes) {
  double sum = 0;
  for (int64_t begin = 0; begin < classes; begin += kPiece)
    sum += loops().row_sum(logits + begin, std::min(kPiece, classes - begin));
  return sum;
}

/// log(sum(exp(logits))), through the largest logit, so that nothing overflows.
struct LogSumExp {
  float largest;
  double log_sum;  // of exp(logit - largest)
  explicit LogSumExp(const float* logits, int64_t classes) : largest(loops().row_maximum(logits, classes)) {
    float sum = 0;
    for (int64_t begin = 0; begin < classes; begin += kPiece)
      sum += loops().exponential_sum(logits + begin, std::min(kPiece, classes - begin), largest);
    log_sum = std::log(static_cast<double>(sum));
  }
};

RowResult row_result(const float* logits, const SoftTarget& target, const Labels& labels,
                     const LogSumExp& lse) {
  const double sum = labels.smoothing == 0 ? 0 : sum_of(logits, labels.classes);
  const double weighted = target.weighted_logit(logits[target.first], logits[target.second], sum,
                                                labels.smoothing, labels.classes);
  const int32_t answer = target.main();
  const bool correct = !std::isnan(lse.log_sum) && logits[answer] == lse.largest &&
                       std::find(logits, logits + answer, lse.largest) == logits + answer;
  return {static_cast<double>(lse.largest) - weighted + lse.log_sum, correct};
}

/// (softmax - weights of the label) times `factor`.
void row_gradient(const float* __restrict x, const SoftTarget& target, const Labels& labels,
                  float log_sum_exp, float factor, float* __restrict dx) {
  const TargetWeights weights = target.weights(labels.smoothing, labels.classes);
  loops().scaled_exponentials(dx, x, labels.classes, log_sum_exp, factor);
  if (weights.other != 0) {
    const float spread = weights.other * factor;
    for (int64_t c = 0; c < labels.classes; ++c) dx[c] -= spread;
  }
  const auto set = [&](int32_t c, float weight) { dx[c] = (fast_exp(x[c] - log_sum_exp) - weight) * factor; };
  if (target.second != target.first) set(target.second, weights.second);
  set(target.first, weights.first);
}

class SoftmaxCrossEntropyKernel : public Kernel {
 public:
  SoftmaxCrossEntropyKernel(const SoftmaxCrossEntropy& op, Inputs inputs, const KernelOptions& options)
      : ignore_index_(op.ignore_index),
        smoothing_(op.label_smoothing),
        sizes_{options.batch, inputs[1].shape.count(), inputs[0].shape[-1]},
        loss_weight_(options.loss_weight),
        threads_(options.intra_op_threads) {}

  int64_t workspace_bytes(KernelPhase phase) const override {
    return phase == KernelPhase::forward ? sizes_.rows() * static_cast<int64_t>(sizeof(RowResult)) : 0;
  }

  void forward(const KernelArguments& arguments, device::Stream& stream) override {
    stream.launch([logits = arguments.inputs[0].as<const float>(), labels = labels_of(arguments),
                   log_sum_exp = arguments.auxiliary[0].as<float>(), metrics = arguments.metrics,
                   results = static_cast<RowResult*>(arguments.workspace), accumulate = arguments.accumulate,
                   first_sample = arguments.first_sample, constants = arguments.constants, all = sizes_,
                   threads = threads_] {
      Sizes sizes = all;
      sizes.batch = counted_samples(*constants, first_sample, all.batch);
      std::fill(log_sum_exp + sizes.rows(), log_sum_exp + all.rows(), 0.0f);
      check_labels(labels, sizes, first_sample);
      parallel_for(threads, sizes.rows(), [=](int64_t row) {
        if (!labels.counts(row)) {
          log_sum_exp[row] = 0;
          return;
        }
        const float* row_logits = logits + row * sizes.classes;
        const LogSumExp lse(row_logits, sizes.classes);
        log_sum_exp[row] = static_cast<float>(static_cast<double>(lse.largest) + lse.log_sum);
        results[row] = row_result(row_logits, labels.of(row), labels, lse);
      });
      if (!accumulate) std::fill(metrics, metrics + kMetricCount, 0.0);
      for (int64_t row = 0; row < sizes.rows(); ++row) {
        if (!labels.counts(row)) continue;
        metrics[kLossSum] += results[row].loss;
        metrics[kCount] += 1;
        metrics[kCorrect] += results[row].correct ? 1 : 0;
      }
    });
  }

  void backward_input(const KernelArguments& arguments, device::Stream& stream) override {
    if (arguments.input_gradients[0].data == nullptr) return;
    stream.launch([logits = arguments.inputs[0].as<const float>(), labels = labels_of(arguments),
                   log_sum_exp = arguments.auxiliary[0].as<const float>(),
                   dlogits = arguments.input_gradients[0].as<float>(), constants = arguments.constants,
                   loss_weight = loss_weight_, sizes = sizes_, threads = threads_] {
      const auto factor = static_cast<float>(loss_weight * constants->loss_scale);
      parallel_for(threads, sizes.rows(), [=](int64_t row) {
        float* dx = dlogits + row * sizes.classes;
        if (!labels.counts(row))
          std::fill(dx, dx + sizes.classes, 0.0f);
        else
          row_gradient(logits + row * sizes.classes, labels.of(row), labels, log_sum_exp[row], factor, dx);
      });
    });
  }

 private:
  Labels labels_of(const KernelArguments& arguments) const {
    const bool mixes = arguments.inputs.size() == 3;
    return {.labels = arguments.inputs[1].as<const int32_t>(),
            .mixtures = mixes ? arguments.inputs[2].as<const int32_t>() : nullptr,
            .ignore_index = ignore_index_,
            .classes = sizes_.classes,
            .smoothing = smoothing_};
  }

  static void check_labels(const Labels& labels, const Sizes& sizes, int64_t first_sample) {
    for (int64_t row = 0; row < sizes.rows(); ++row) {
      const SoftTarget target = labels.of(row);
      if (!target.counts(labels.ignore_index) || target.is_among(sizes.classes)) continue;
      const std::string place = fmt::format("sample {} of the batch, position {},",
                                            first_sample + row / sizes.positions, row % sizes.positions);
      if (!target.has_share)
        throw DataError(fmt::format(
            "softmax_cross_entropy: the second class of {} has a share of {}; expected from 0 to 2^24 = {}",
            place, labels.mixtures[2 * row + 1], kWholeShare));
      throw DataError(fmt::format(
          "softmax_cross_entropy: label {} of {} is outside the {} classes of the logits; make the last "
          "layer as wide as the data has classes, or set ignore_index",
          std::max(target.first, target.second), place, sizes.classes));
    }
  }

  int64_t ignore_index_;
  float smoothing_;
  Sizes sizes_;
  double loss_weight_;
  int threads_;
};

}  // namespace

template <>
std::unique_ptr<Kernel> make_cpu_kernel(const SoftmaxCrossEntropy& op, Inputs inputs,
                                        const KernelOptions& options) {
  return std::make_unique<SoftmaxCrossEntropyKernel>(op, inputs, options);
}

}  // namespace lockstep::ops
