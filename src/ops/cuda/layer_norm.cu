#include <optional>

#include "base/ensure.h"
#include "ops/cuda/column_reduction.h"
#include "ops/cuda/norm_backward_kernel.h"
#include "ops/cuda/norm_column_sum.h"
#include "ops/cuda/norm_forward_kernel.h"
#include "ops/cuda/replica_sum.h"
#include "ops/parts.h"

namespace lockstep::ops {
namespace {

struct FinishParameters {
  float *dweight, *dbias;  // [virtual replicas, width]; no bias: null
  int64_t width;
  bool accumulate;

  __device__ void operator()(int64_t c, const SumPair<double>& sums) const {
    const int64_t at = blockIdx.y * width + c;
    add_or_set(dweight[at], sums.first, accumulate);
    if (dbias != nullptr) add_or_set(dbias[at], sums.second, accumulate);
  }
};

/// What distinguishes the kinds of norms.
struct NormForm {
  float epsilon;
  bool centered;  // rows have means, which the first auxiliary tensor holds
  bool bias;
};

class NormKernel : public Kernel {
 public:
  NormKernel(const NormForm& form, const TensorSpec& input, const KernelOptions& options)
      : form_(form),
        fused_(options.fused),
        dtype_(options.compute),
        replicas_(options.virtual_replicas),
        rows_(input.shape.count() / input.shape[-1] * (options.batch / options.virtual_replicas)),
        width_(input.shape[-1]) {
    if (fused_.bias_before) bias_sum_.emplace(rows_, width_, dtype_, replicas_);
  }

  /// Partial sums, and of several virtual replicas the gradients of each.
  int64_t workspace_bytes(KernelPhase phase) const override {
    if (phase != KernelPhase::backward_input) return 0;
    const int64_t gradients = replicas_ == 1 ? 0 : 2 * replicas_ * width_ * size_of(DType::float32);
    return partial_bytes() + whole_packs(gradients) + (bias_sum_ ? bias_sum_->workspace_bytes() : 0);
  }

  void forward(const KernelArguments& arguments, device::Stream& stream) override {
    with_element_type_and_pack(dtype_, width_, [&]<class T, int N>(T, std::integral_constant<int, N>) {
      // Short rows in few registers, so that more of them are under way; odd ones do not deserve kernels of
      // their own.
      if (width_ > kNormWarpWidth)
        launch_forward<T, N, kForwardValues / N, false>(arguments, stream);
      else if (N > 1 && width_ <= 256)
        launch_forward<T, N, (N > 1 ? 8 : 32) / N, true>(arguments, stream);
      else if (N > 1 && width_ <= 512)
        launch_forward<T, N, (N > 1 ? 16 : 32) / N, true>(arguments, stream);
      else
        launch_forward<T, N, 32 / N, true>(arguments, stream);
    });
  }

  void backward_input(const KernelArguments& arguments, device::Stream& stream) override {
    const NormLayout layout(width_, kNormBackwardValues);
    const int64_t blocks = norm_backward_blocks(rows_, width_);
    auto* partials = static_cast<SumPair<float>*>(arguments.workspace);
    void* const of_bias = sums_bias(arguments) ? bias_workspace(arguments) : nullptr;
    with_element_type_and_pack(dtype_, width_, [&]<class T, int N>(T, std::integral_constant<int, N>) {
      const NormBackwardArguments<T> a{
          arguments.inputs[0].as<const T>(),
          arguments.output_gradients[0].as<const T>(),
          arguments.parameters[0].as<const float>(),
          means_of<const float>(arguments),
          inverses_of<const float>(arguments),
          arguments.input_gradients[0].as<T>(),
          fused_.fork_before ? arguments.output_gradients[1].as<const T>() : nullptr,
          partials,
          static_cast<float*>(of_bias),
          rows_,
          static_cast<int>(width_)};
      if (layout.threads > 512)
        launch_backward<T, N, kNormBackwardValues / N, kMostNormThreads>(a, layout, stream);
      else if (!layout.by_warps)
        launch_backward<T, N, kNormBackwardValues / N, 512>(a, layout, stream);
      else if (N > 1 && width_ <= 256)
        launch_backward<T, N, (N > 1 ? 8 : 32) / N, device::kWarpSize>(a, layout, stream);
      else if (N > 1 && width_ <= 768)
        launch_backward<T, N, (N > 1 ? 24 : 32) / N, device::kWarpSize>(a, layout, stream);
      else
        launch_backward<T, N, 32 / N, device::kWarpSize>(a, layout, stream);
    });
    finish(arguments, partials, static_cast<int>(blocks), stream);
    if (of_bias != nullptr)
      bias_sum_->finish(arguments.parameter_gradients.back().as<float>(), arguments.accumulate, of_bias,
                        stream);
  }

 private:
  static constexpr int kForwardValues = 16;  // that a thread of a block's row keeps in registers

  template <class T, int N, int kPacks, bool kWarp>
  void launch_forward(const KernelArguments& arguments, device::Stream& stream) const {
    const NormLayout layout(width_, kForwardValues);
    device::launch(stream,
                   {.blocks = device::blocks_for(replicas_ * rows_, layout.groups_per_block, INT32_MAX),
                    .threads = layout.threads},
                   fused_.add_before ? norm_forward_kernel<T, N, kPacks, kWarp, true>
                                     : norm_forward_kernel<T, N, kPacks, kWarp, false>,
                   NormForwardArguments<T>{arguments.inputs[0].as<const T>(),
                                           fused_.add_before ? arguments.inputs[1].as<const T>() : nullptr,
                                           fused_.add_before ? arguments.outputs[1].as<T>() : nullptr,
                                           arguments.parameters[0].as<const float>(),
                                           form_.bias ? arguments.parameters[1].as<const float>() : nullptr,
                                           arguments.outputs[0].as<T>(), means_of<float>(arguments),
                                           inverses_of<float>(arguments), replicas_ * rows_,
                                           static_cast<int>(width_), form_.epsilon});
  }

  template <class T, int N, int kPacks, int kGroup>
  void launch_backward(const NormBackwardArguments<T>& a, const NormLayout& layout,
                       device::Stream& stream) const {
    size_t shared_bytes = layout.by_warps ? static_cast<size_t>(width_) * sizeof(SumPair<float>) : 0;
    if (a.dx_partials != nullptr)
      shared_bytes += DxSums<N, kPacks, kGroup == device::kWarpSize>::shared_bytes();
    device::launch(stream,
                   {.blocks = dim3(static_cast<unsigned>(norm_backward_blocks(rows_, width_)),
                                   static_cast<unsigned>(replicas_)),
                    .threads = layout.threads,
                    .shared_bytes = shared_bytes},
                   norm_backward_kernel<T, N, kPacks, kGroup>, a);
  }

  void finish(const KernelArguments& arguments, const SumPair<float>* partials, int blocks,
              device::Stream& stream) const {
    float *dweight = arguments.parameter_gradients[0].as<float>(),
          *dbias = form_.bias ? arguments.parameter_gradients[1].as<float>() : nullptr;
    if (replicas_ == 1)
      return fold_columns(stream, partials, blocks, width_,
                          FinishParameters{dweight, dbias, width_, arguments.accumulate});
    ensure(!arguments.accumulate, "gradients of several virtual replicas are complete");
    auto* const each =
        reinterpret_cast<float*>(static_cast<std::byte*>(arguments.workspace) + partial_bytes());
    float* const each_bias = dbias == nullptr ? nullptr : each + replicas_ * width_;
    fold_columns(stream, partials, blocks, width_, FinishParameters{each, each_bias, width_, false},
                 replicas_);
    sum_replicas(each, width_, replicas_, width_, dweight, stream);
    if (dbias != nullptr) sum_replicas(each_bias, width_, replicas_, width_, dbias, stream);
  }

  template <class F>
  F* means_of(const KernelArguments& arguments) const {
    return form_.centered ? arguments.auxiliary[0].as<F>() : nullptr;
  }
  template <class F>
  F* inverses_of(const KernelArguments& arguments) const {
    return arguments.auxiliary[form_.centered ? 1 : 0].as<F>();
  }

  static int64_t whole_packs(int64_t bytes) { return (bytes + 15) / 16 * 16; }
  int64_t partial_bytes() const {
    return whole_packs(replicas_ * norm_backward_blocks(rows_, width_) * width_ *
                       static_cast<int64_t>(sizeof(SumPair<float>)));
  }
  /// Whether a linear layer's bias has its gradient summed here.
  bool sums_bias(const KernelArguments& arguments) const {
    return bias_sum_ && arguments.parameter_gradients.size() > (form_.bias ? 2u : 1u);
  }
  void* bias_workspace(const KernelArguments& arguments) const {
    return static_cast<std::byte*>(arguments.workspace) +
           (workspace_bytes(KernelPhase::backward_input) - bias_sum_->workspace_bytes());
  }

  NormForm form_;
  FusedNeighbors fused_;
  DType dtype_;
  int replicas_;
  int64_t rows_;  ///< of a virtual replica
  int64_t width_;
  std::optional<NormColumnSum> bias_sum_;  ///< of a linear layer before it, if this kernel may sum it
};

}  // namespace

template <>
std::unique_ptr<Kernel> make_gpu_kernel(const LayerNorm& op, Inputs inputs, const KernelOptions& options) {
  return std::make_unique<NormKernel>(NormForm{op.epsilon, true, op.bias}, inputs[0], options);
}

template <>
std::unique_ptr<Kernel> make_gpu_kernel(const RmsNorm& op, Inputs inputs, const KernelOptions& options) {
  return std::make_unique<NormKernel>(NormForm{op.epsilon, false, false}, inputs[0], options);
}

}  // namespace lockstep::ops
