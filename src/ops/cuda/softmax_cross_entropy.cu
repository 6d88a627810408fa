#include <cmath>
#include <limits>

#include "ops/cuda/floats.h"
#include "ops/parts.h"
#include "ops/soft_target.h"

namespace lockstep::ops {
namespace {

constexpr float kLog2E = 1.44269504f;
constexpr int kRowThreads = 512;        // of a block that has one row
constexpr int kWarpsThreads = 256;      // of a block whose warps have a row each
constexpr int64_t kWarpClasses = 2048;  // rows up to here are a warp's each, longer ones a block's
constexpr int kValues = 16;             // of a row that a thread loads before it computes
constexpr float kNone = -std::numeric_limits<float>::infinity();

struct Sizes {
  int64_t rows, positions;  // positions of one sample
  int classes;
  int64_t ignore_index;
  float smoothing;
};

/// The labels of all rows.
struct Labels {
  const int32_t *labels, *mixtures;  // mixtures: null if there are none
  __device__ SoftTarget of(int64_t row) const {
    return {labels[row], mixtures == nullptr ? nullptr : mixtures + 2 * row};
  }
};

/// What one row adds to the metrics.
struct RowTerm {
  double loss;
  int32_t counted, correct;
};

/// Multiples of 2^-30 are finer than float32 probabilities tell, and doubles add them without error as long
/// as a sum stays below 8 million: then it depends neither on the order nor on how a batch is cut into
/// micro-batches.
__device__ inline double on_grid(double loss) { return std::rint(loss * 0x1p30) * 0x1p-30; }

/// A largest value and the sum of 2^((x - largest) log2 e): what is known of a softmax's denominator.
/// `largest` begins as a number, so that no difference of infinities arises; it is never NaN, the sum is
/// wherever a value was.
struct Denominator {
  float largest = -std::numeric_limits<float>::max(), sum = 0;

  template <int N>
  __device__ void add(const float (&x)[N]) {
    float larger = largest;
#pragma unroll
    for (int i = 0; i < N; ++i) larger = x[i] > larger ? x[i] : larger;
    float added = 0;
#pragma unroll
    for (int i = 0; i < N; ++i) added += device::fast_exp2((x[i] - larger) * kLog2E);
    sum = std::fma(sum, device::fast_exp2((largest - larger) * kLog2E), added);
    largest = larger;
  }
  /// The sum for a value that is at least as large.
  __device__ float sum_below(float larger) const {
    return sum * device::fast_exp2((largest - larger) * kLog2E);
  }
};

/// The threads that share a row: a warp, or the block.
template <bool kWarp>
constexpr int kThreads = kWarp ? kWarpsThreads : kRowThreads;
template <bool kWarp>
struct RowGroup {
  static constexpr int kSize = kWarp ? device::kWarpSize : kRowThreads;
  int thread;
  int64_t row;
  __device__ RowGroup()
      : thread(static_cast<int>(threadIdx.x) % kSize),
        row(static_cast<int64_t>(blockIdx.x) * (kThreads<kWarp> / kSize) +
            static_cast<int>(threadIdx.x) / kSize) {}
};
template <bool kWarp>
device::Grid row_grid(int64_t rows) {
  return {.blocks = device::blocks_for(rows, kThreads<kWarp> / RowGroup<kWarp>::kSize, INT32_MAX),
          .threads = kThreads<kWarp>};
}

/// Joins what the group's threads found, in a fixed order; every thread gets the results. `before` is a
/// maximum, `total` a sum.
template <bool kWarp>
__device__ inline void join(Denominator& all, float& before, float& total) {
  const float largest = device::warp_max(all.largest);
  all = {largest, device::warp_sum(all.sum_below(largest))};
  before = device::warp_max(before);
  total = device::warp_sum(total);
  if constexpr (!kWarp) {
    constexpr int kWarps = kRowThreads / device::kWarpSize;
    __shared__ Denominator of_warps[kWarps];
    __shared__ float before_of_warps[kWarps], total_of_warps[kWarps];
    const int thread = static_cast<int>(threadIdx.x);
    if (thread % device::kWarpSize == 0) {
      of_warps[thread / device::kWarpSize] = all;
      before_of_warps[thread / device::kWarpSize] = before;
      total_of_warps[thread / device::kWarpSize] = total;
    }
    __syncthreads();
    for (int i = 0; i < kWarps; ++i) {
      all.largest = of_warps[i].largest > all.largest ? of_warps[i].largest : all.largest;
      before = before_of_warps[i] > before ? before_of_warps[i] : before;
    }
    all.sum = total = 0;
    for (int i = 0; i < kWarps; ++i) {
      all.sum += of_warps[i].sum_below(all.largest);
      total += total_of_warps[i];
    }
  }
}

/// What a thread of a row makes of its classes: kValues of every piece, N side by side from `first` on and
/// then again after those of the row's other threads.
template <class T, int N, int kGroup>
struct RowScan {
  int first, answer;
  bool smooths;
  Denominator denominator{};
  float before = kNone;  // the largest logit of a class below the answer
  float total = 0;       // of all logits; only if it smooths

  /// kWhole: the piece is not cut by the row's end.
  template <bool kWhole>
  __device__ void piece(const T* x, int begin, int classes) {
    constexpr int kPacks = kValues / N;
    const T* from = x + begin + first;
    const int left = classes - begin - first;
    device::Pack<T, N> packs[kPacks];
#pragma unroll
    for (int k = 0; k < kPacks; ++k)
      if (kWhole || k * kGroup * N < left) packs[k] = load_pack<N>(from + k * kGroup * N);
    float values[kValues];
#pragma unroll
    for (int k = 0; k < kPacks; ++k)
#pragma unroll
      for (int i = 0; i < N; ++i)
        values[k * N + i] = kWhole || k * kGroup * N < left ? static_cast<float>(packs[k].value[i]) : kNone;
    if (smooths) {
#pragma unroll
      for (int i = 0; i < kValues; ++i) total += kWhole || i / N * kGroup * N < left ? values[i] : 0.0f;
    }
    if (begin < answer) {  // in few of a row's pieces, on the average half of them
      const int below = answer - begin - first;
#pragma unroll
      for (int i = 0; i < kValues; ++i) {
        const bool larger = i / N * kGroup * N + i % N < below && values[i] > before;
        before = larger ? values[i] : before;
      }
    }
    denominator.add(values);
  }
};

/// Of the gradient of a row.
struct RowGradient {
  int32_t first, second;
  TargetWeights weights;
  bool counts;
  float log_sum_exp, factor;
  int classes;

  __device__ RowGradient(const SoftTarget& target, const Sizes& sizes, bool counted, float lse, float of_loss)
      : first(target.first),
        second(target.second),
        weights(target.weights(sizes.smoothing, sizes.classes)),
        counts(counted),
        log_sum_exp(lse),
        factor(of_loss),
        classes(sizes.classes) {}

  __device__ float of(float logit, int c) const {
    const float probability = device::fast_exp2((logit - log_sum_exp) * kLog2E);
    const float weight = c == first ? weights.first : c == second ? weights.second : weights.other;
    return (probability - weight) * factor;
  }

  /// (softmax - weights of the label) times the loss's weight. Reads the logits and writes their gradient
  /// once, which may be in their place. Nothing is summed here, so a row's middle may be taken in packs
  /// wherever it begins.
  template <class T, int kGroup>
  __device__ void write(const T* x, T* dx, int thread) const {
    constexpr int N = kPackElements<T>, kPacks = 4;
    const auto one = [&](int c) { dx[c] = static_cast<T>(counts ? of(static_cast<float>(x[c]), c) : 0.0f); };
    // Both tensors begin on 16 bytes, so their rows meet such borders together.
    const int misplaced = static_cast<int>(reinterpret_cast<uintptr_t>(x) % 16 / sizeof(T));
    const int to_border = (N - misplaced) % N, head = to_border < classes ? to_border : classes;
    const int packs = (classes - head) / N, tail = head + packs * N;
    for (int c = thread; c < head; c += kGroup) one(c);
    for (int first = thread; first < packs; first += kPacks * kGroup) {
      device::Pack<T, N> pack[kPacks];
#pragma unroll
      for (int k = 0; k < kPacks; ++k)
        if (const int p = first + k * kGroup; counts && p < packs) pack[k] = load_pack<N>(x + head + p * N);
#pragma unroll
      for (int k = 0; k < kPacks; ++k) {
        const int c = head + (first + k * kGroup) * N;
        if (c >= tail) continue;
        float result[N] = {};
        if (counts) {
#pragma unroll
          for (int i = 0; i < N; ++i) result[i] = of(static_cast<float>(pack[k].value[i]), c + i);
        }
        store_floats<N>(dx + c, result);
      }
    }
    for (int c = tail + thread; c < classes; c += kGroup) one(c);
  }
};

__device__ inline float gradient_factor(double loss_weight, const StepConstants& constants) {
  return static_cast<float>(loss_weight * constants.loss_scale);
}

/// The log-sum-exp and the metrics' term of each row that counts. kGradient: the gradient of its logits, too,
/// for which they are read a second time; it may take their place. A row kept in shared memory for that was
/// hardly faster (docs/gpu-results.md).
///
/// Which classes a thread adds up does not depend on where the row begins in memory, or a row's loss would
/// depend on its place in the micro-batch. So rows that do not all begin on 16 bytes are read element by
/// element, neighbouring threads side by side: kValues of them on their way per thread are as many bytes as
/// it takes.
template <class T, int N, bool kWarp, bool kGradient>
__global__ void __launch_bounds__(kThreads<kWarp>)
    forward_kernel(const T* logits, Labels labels, Sizes sizes, double loss_weight,
                   const StepConstants* constants, int64_t first_sample, float* log_sum_exp, RowTerm* terms,
                   T* dlogits) {
  const RowGroup<kWarp> group;
  if (group.row >= sizes.rows) return;
  const SoftTarget target = labels.of(group.row);
  const int64_t counted = counted_samples(*constants, first_sample, sizes.rows / sizes.positions);
  const bool counts = target.counts(sizes.ignore_index) && group.row < counted * sizes.positions;
  const T* x = logits + group.row * sizes.classes;
  RowGradient gradient(target, sizes, counts, 0, 0);
  if (!counts) {
    if constexpr (kGradient)
      gradient.template write<T, group.kSize>(x, dlogits + group.row * sizes.classes, group.thread);
    if (group.thread == 0) {
      log_sum_exp[group.row] = 0;
      terms[group.row] = {};
    }
    return;
  }
  constexpr int kPiece = group.kSize * kValues;
  const bool smooths = sizes.smoothing != 0;
  RowScan<T, N, group.kSize> scan{group.thread * N, target.main(), smooths};
  int begin = 0;
  for (; begin + kPiece <= sizes.classes; begin += kPiece) scan.template piece<true>(x, begin, sizes.classes);
  if (begin < sizes.classes) scan.template piece<false>(x, begin, sizes.classes);
  // There is nobody here to whom a label that is no class could be told: the loss and all gradients of its
  // row are NaN.
  const bool is_class = target.is_among(sizes.classes);
  const auto logit_of = [&](int32_t c) {
    return is_class ? static_cast<float>(x[c]) : std::numeric_limits<float>::quiet_NaN();
  };
  const float of_first = logit_of(target.first), of_second = logit_of(target.second),
              of_answer = logit_of(target.main());
  Denominator& all = scan.denominator;
  float before = scan.before, total = scan.total;
  join<kWarp>(all, before, total);

  const double log_sum = std::log(static_cast<double>(all.sum));
  const double lse = static_cast<double>(all.largest) + log_sum;
  gradient.log_sum_exp = is_class ? static_cast<float>(lse) : of_first;
  if constexpr (kGradient) {
    if constexpr (kWarp)
      __syncwarp();  // all have read the label's logits; of a block, join() has seen to that
    gradient.factor = gradient_factor(loss_weight, *constants);
    gradient.template write<T, group.kSize>(x, dlogits + group.row * sizes.classes, group.thread);
  }
  if (group.thread != 0) return;
  log_sum_exp[group.row] = gradient.log_sum_exp;
  // Of equal logits the lowest class is the guess.
  RowTerm& term = terms[group.row];
  const double weighted = target.weighted_logit(of_first, of_second, total, sizes.smoothing, sizes.classes);
  term.loss = on_grid(static_cast<double>(all.largest) - weighted + log_sum);
  term.counted = 1;
  term.correct = all.sum == all.sum && of_answer == all.largest && before < of_answer ? 1 : 0;
}

constexpr int kSumThreads = 1024;

/// Reads 16 bytes of each row, next to nothing beside its logits. A block for each virtual replica, of
/// `rows`.
__global__ void __launch_bounds__(kSumThreads)
    metrics_kernel(const RowTerm* terms, int64_t rows, bool accumulate, double* metrics) {
  terms += blockIdx.x * rows;
  metrics += blockIdx.x * kMetricCount;
  __shared__ double scratch[3][device::kWarpSize + 1];
  double loss = 0, counted = 0, correct = 0;
#pragma unroll 4
  for (int64_t row = threadIdx.x; row < rows; row += kSumThreads) {
    loss += terms[row].loss;
    counted += terms[row].counted;
    correct += terms[row].correct;
  }
  loss = device::block_sum(loss, scratch[0]);
  counted = device::block_sum(counted, scratch[1]);
  correct = device::block_sum(correct, scratch[2]);
  if (threadIdx.x != 0) return;
  if (!accumulate)
    for (int i = 0; i < kMetricCount; ++i) metrics[i] = 0;
  metrics[kLossSum] += loss;
  metrics[kCount] += counted;
  metrics[kCorrect] += correct;
}

template <class T, bool kWarp>
__global__ void __launch_bounds__(kThreads<kWarp>)
    backward_kernel(const T* logits, Labels labels, const float* log_sum_exp, Sizes sizes, double loss_weight,
                    const StepConstants* constants, T* dlogits) {
  const RowGroup<kWarp> group;
  if (group.row >= sizes.rows) return;
  const SoftTarget target = labels.of(group.row);
  const bool counts = target.counts(sizes.ignore_index);
  const RowGradient gradient(target, sizes, counts, counts ? log_sum_exp[group.row] : 0.0f,
                             gradient_factor(loss_weight, *constants));
  const int64_t first = group.row * sizes.classes;
  gradient.template write<T, group.kSize>(logits + first, dlogits + first, group.thread);
}

class SoftmaxCrossEntropyKernel : public Kernel {
 public:
  SoftmaxCrossEntropyKernel(const SoftmaxCrossEntropy& op, Inputs inputs, const KernelOptions& options)
      : sizes_{options.batch * inputs[1].shape.count(), inputs[1].shape.count(),
               static_cast<int>(inputs[0].shape[-1]), op.ignore_index, op.label_smoothing},
        replicas_(options.virtual_replicas),
        loss_weight_(options.loss_weight),
        gradient_in_forward_(options.fused.gradient_in_forward),
        dtype_(options.compute) {}

  int64_t workspace_bytes(KernelPhase phase) const override {
    return phase == KernelPhase::forward ? sizes_.rows * static_cast<int64_t>(sizeof(RowTerm)) : 0;
  }

  void forward(const KernelArguments& arguments, device::Stream& stream) override {
    const bool gradient = gradient_in_forward_;
    with_element_type_and_pack(dtype_, sizes_.classes,
                               [&]<class T, int N>(T, std::integral_constant<int, N>) {
                                 const bool warp = sizes_.classes <= kWarpClasses;
                                 if (warp && gradient) start_forward<T, N, true, true>(arguments, stream);
                                 if (warp && !gradient) start_forward<T, N, true, false>(arguments, stream);
                                 if (!warp && gradient) start_forward<T, N, false, true>(arguments, stream);
                                 if (!warp && !gradient) start_forward<T, N, false, false>(arguments, stream);
                               });
    device::launch(stream, {.blocks = static_cast<unsigned>(replicas_), .threads = kSumThreads},
                   metrics_kernel, static_cast<const RowTerm*>(arguments.workspace), sizes_.rows / replicas_,
                   arguments.accumulate, arguments.metrics);
  }

  void backward_input(const KernelArguments& arguments, device::Stream& stream) override {
    if (arguments.input_gradients[0].data == nullptr) return;
    with_element_type(dtype_, [&]<class T>(T) {
      const auto start = [&](const device::Grid& grid, auto* kernel) {
        device::launch(stream, grid, kernel, arguments.inputs[0].as<const T>(), labels_of(arguments),
                       arguments.auxiliary[0].as<const float>(), sizes_, loss_weight_, arguments.constants,
                       arguments.input_gradients[0].as<T>());
      };
      if (sizes_.classes <= kWarpClasses)
        start(row_grid<true>(sizes_.rows), backward_kernel<T, true>);
      else
        start(row_grid<false>(sizes_.rows), backward_kernel<T, false>);
    });
  }

 private:
  static Labels labels_of(const KernelArguments& arguments) {
    const bool mixes = arguments.inputs.size() == 3;
    return {arguments.inputs[1].as<const int32_t>(),
            mixes ? arguments.inputs[2].as<const int32_t>() : nullptr};
  }

  template <class T, int N, bool kWarp, bool kGradient>
  void start_forward(const KernelArguments& arguments, device::Stream& stream) const {
    device::launch(stream, row_grid<kWarp>(sizes_.rows), forward_kernel<T, N, kWarp, kGradient>,
                   arguments.inputs[0].as<const T>(), labels_of(arguments), sizes_, loss_weight_,
                   arguments.constants, arguments.first_sample, arguments.auxiliary[0].as<float>(),
                   static_cast<RowTerm*>(arguments.workspace),
                   kGradient ? arguments.input_gradients[0].as<T>() : nullptr);
  }

  Sizes sizes_;
  int replicas_;
  double loss_weight_;
  bool gradient_in_forward_;
  DType dtype_;
};

}  // namespace

template <>
std::unique_ptr<Kernel> make_gpu_kernel(const SoftmaxCrossEntropy& op, Inputs inputs,
                                        const KernelOptions& options) {
  return std::make_unique<SoftmaxCrossEntropyKernel>(op, inputs, options);
}

}  // namespace lockstep::ops
