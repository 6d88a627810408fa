#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lockstep/error.h"
#include "ops/cpu/loops/loops.h"
#include "ops/cpu/parallel.h"
#include "ops/cpu/rows.h"
#include "ops/parts.h"

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

bool counts(int32_t label, int64_t ignore_index) { return label >= 0 && label != ignore_index; }

/// log(sum(exp(logits))), through the largest logit, so that nothing overflows.
struct LogSumExp {
  float largest;
  double log_sum;  // of exp(logit - largest)
  explicit LogSumExp(const float* logits, int64_t classes) : largest(row_maximum(logits, classes)) {
    constexpr int64_t kPiece = 512;
    float sum = 0;
    for (int64_t begin = 0; begin < classes; begin += kPiece)
      sum += loops().exponential_sum(logits + begin, std::min(kPiece, classes - begin), largest);
    log_sum = std::log(static_cast<double>(sum));
  }
};

RowResult row_result(const float* logits, int32_t label, const LogSumExp& lse) {
  const double loss = static_cast<double>(lse.largest) - static_cast<double>(logits[label]) + lse.log_sum;
  const bool correct = !std::isnan(lse.log_sum) && logits[label] == lse.largest &&
                       std::find(logits, logits + label, lse.largest) == logits + label;
  return {loss, correct};
}

class SoftmaxCrossEntropyKernel : public Kernel {
 public:
  SoftmaxCrossEntropyKernel(const SoftmaxCrossEntropy& op, Inputs inputs, const KernelOptions& options)
      : ignore_index_(op.ignore_index),
        sizes_{options.batch, inputs[1].shape.count(), inputs[0].shape[-1]},
        loss_weight_(options.loss_weight),
        threads_(options.intra_op_threads) {}

  int64_t workspace_bytes(KernelPhase phase) const override {
    return phase == KernelPhase::forward ? sizes_.rows() * static_cast<int64_t>(sizeof(RowResult)) : 0;
  }

  void forward(const KernelArguments& arguments, device::Stream& stream) override {
    stream.launch([logits = arguments.inputs[0].as<const float>(),
                   labels = arguments.inputs[1].as<const int32_t>(),
                   log_sum_exp = arguments.auxiliary[0].as<float>(), metrics = arguments.metrics,
                   results = static_cast<RowResult*>(arguments.workspace), accumulate = arguments.accumulate,
                   first_sample = arguments.first_sample, constants = arguments.constants, all = sizes_,
                   ignore_index = ignore_index_, threads = threads_] {
      Sizes sizes = all;
      sizes.batch = counted_samples(*constants, first_sample, all.batch);
      std::fill(log_sum_exp + sizes.rows(), log_sum_exp + all.rows(), 0.0f);
      check_labels(labels, sizes, ignore_index, first_sample);
      parallel_for(threads, sizes.rows(), [=](int64_t row) {
        if (!counts(labels[row], ignore_index)) {
          log_sum_exp[row] = 0;
          return;
        }
        const float* row_logits = logits + row * sizes.classes;
        const LogSumExp lse(row_logits, sizes.classes);
        log_sum_exp[row] = static_cast<float>(static_cast<double>(lse.largest) + lse.log_sum);
        results[row] = row_result(row_logits, labels[row], lse);
      });
      if (!accumulate) std::fill(metrics, metrics + kMetricCount, 0.0);
      for (int64_t row = 0; row < sizes.rows(); ++row) {
        if (!counts(labels[row], ignore_index)) continue;
        metrics[kLossSum] += results[row].loss;
        metrics[kCount] += 1;
        metrics[kCorrect] += results[row].correct ? 1 : 0;
      }
    });
  }

  void backward_input(const KernelArguments& arguments, device::Stream& stream) override {
    if (arguments.input_gradients[0].data == nullptr) return;
    stream.launch(
        [logits = arguments.inputs[0].as<const float>(), labels = arguments.inputs[1].as<const int32_t>(),
         log_sum_exp = arguments.auxiliary[0].as<const float>(),
         dlogits = arguments.input_gradients[0].as<float>(), constants = arguments.constants,
         loss_weight = loss_weight_, sizes = sizes_, ignore_index = ignore_index_, threads = threads_] {
          const auto factor = static_cast<float>(loss_weight * constants->loss_scale);
          parallel_for(threads, sizes.rows(), [=](int64_t row) {
            const float* __restrict x = logits + row * sizes.classes;
            float* __restrict dx = dlogits + row * sizes.classes;
            if (!counts(labels[row], ignore_index)) {
              std::fill(dx, dx + sizes.classes, 0.0f);
              return;
            }
            const float lse = log_sum_exp[row];
            loops().scaled_exponentials(dx, x, sizes.classes, lse, factor);
            dx[labels[row]] = (fast_exp(x[labels[row]] - lse) - 1.0f) * factor;
          });
        });
  }

 private:
  static void check_labels(const int32_t* labels, const Sizes& sizes, int64_t ignore_index,
                           int64_t first_sample) {
    for (int64_t row = 0; row < sizes.rows(); ++row)
      if (counts(labels[row], ignore_index) && labels[row] >= sizes.classes)
        throw DataError(fmt::format(
            "softmax_cross_entropy: label {} of sample {} of the batch, position {}, is outside the {} "
            "classes of "
            "the logits; make the last layer as wide as the data has classes, or set ignore_index",
            labels[row], first_sample + row / sizes.positions, row % sizes.positions, sizes.classes));
  }

  int64_t ignore_index_;
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
