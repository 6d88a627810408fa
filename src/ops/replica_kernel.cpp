#include "ops/replica_kernel.h"

#include <array>
#include <utility>
#include <vector>

#include "base/ensure.h"
#include "lockstep/error.h"
#include "ops/replica_fold.h"

namespace lockstep::ops {
namespace {

int64_t whole_lines(int64_t bytes) { return (bytes + 63) / 64 * 64; }

/// One list of tensors of a call, as the kernel of one replica sees it: the op's own, and those of fused
/// neighbours. All calls of a phase have tensors of the same shapes, so that these are made once.
class Slices {
 public:
  explicit Slices(int replicas) : replicas_(replicas) {}

  /// Points to the memory of one of the replicas. `stacked` says of which tensors the first dimension is that
  /// of replicas, not of samples.
  template <class IsStacked>
  std::span<const Tensor> take(std::span<const Tensor> whole, int replica, const IsStacked& stacked) {
    while (tensors_.size() < whole.size()) add(whole[tensors_.size()], stacked(tensors_.size()));
    for (size_t i = 0; i < whole.size(); ++i)
      tensors_[i].data = whole[i].data == nullptr
                             ? nullptr
                             : static_cast<std::byte*>(whole[i].data) + replica * tensors_[i].size_bytes();
    return {tensors_.data(), whole.size()};
  }

 private:
  void add(const Tensor& whole, bool stacked) {
    std::vector<int64_t> dims = whole.shape.dims();
    ensure(!dims.empty() && dims[0] % replicas_ == 0, "virtual replicas have equal parts of each tensor");
    if (stacked)
      dims.erase(dims.begin());
    else
      dims[0] /= replicas_;
    tensors_.push_back({nullptr, Shape(std::move(dims)), whole.dtype});
  }

  int replicas_;
  std::vector<Tensor> tensors_;
};

class ReplicaKernel : public Kernel {
 public:
  ReplicaKernel(OpSignature signature, const KernelOptions& options, std::unique_ptr<Kernel> kernel,
                Addition add)
      : signature_(std::move(signature)),
        replicas_(options.virtual_replicas),
        samples_(options.batch / options.virtual_replicas),
        kernel_(std::move(kernel)),
        add_(std::move(add)) {
    for (const ParameterSpec& parameter : signature_.parameters) {
      gradients_.push_back({nullptr, parameter.shape, DType::float32});
      slot_bytes_ += whole_lines(gradients_.back().size_bytes());
    }
  }

  int64_t workspace_bytes(KernelPhase phase) const override {
    const int64_t own = whole_lines(kernel_->workspace_bytes(phase));
    return phase == gradient_phase() ? own + (fold_slots(replicas_) - 1) * slot_bytes_ : own;
  }

  void prepare(device::Device& device) override { kernel_->prepare(device); }

  void forward(const KernelArguments& arguments, device::Stream& stream) override {
    for (int replica = 0; replica < replicas_; ++replica)
      kernel_->forward(arguments_of(KernelPhase::forward, replica, arguments), stream);
  }

  void backward_input(const KernelArguments& arguments, device::Stream& stream) override {
    run(KernelPhase::backward_input, arguments, stream,
        [&](const KernelArguments& one) { kernel_->backward_input(one, stream); });
  }

  void backward_weight(const KernelArguments& arguments, device::Stream& stream) override {
    run(KernelPhase::backward_weight, arguments, stream,
        [&](const KernelArguments& one) { kernel_->backward_weight(one, stream); });
  }

 private:
  /// In which gradients of parameters are made.
  KernelPhase gradient_phase() const {
    return signature_.backward == BackwardForm::joint ? KernelPhase::backward_input
                                                      : KernelPhase::backward_weight;
  }

  KernelArguments arguments_of(KernelPhase phase, int replica, const KernelArguments& whole) {
    Lists& lists = lists_[static_cast<size_t>(phase)];
    const auto by_sample = [](size_t) { return false; };
    KernelArguments one = whole;
    one.inputs = lists.inputs.take(whole.inputs, replica, by_sample);
    one.outputs = lists.outputs.take(whole.outputs, replica, by_sample);
    one.auxiliary = lists.auxiliary.take(whole.auxiliary, replica,
                                         [&](size_t i) { return !signature_.auxiliary[i].per_sample; });
    one.output_gradients = lists.output_gradients.take(whole.output_gradients, replica, by_sample);
    one.input_gradients = lists.input_gradients.take(whole.input_gradients, replica, by_sample);
    if (whole.metrics != nullptr) one.metrics = whole.metrics + replica * kMetricCount;
    one.first_sample = whole.first_sample + replica * samples_;
    return one;
  }

  template <class Call>
  void run(KernelPhase phase, const KernelArguments& arguments, device::Stream& stream, const Call& call) {
    if (phase != gradient_phase() || gradients_.empty()) {
      for (int replica = 0; replica < replicas_; ++replica) call(arguments_of(phase, replica, arguments));
      return;
    }
    ensure(!arguments.accumulate, "gradients of several virtual replicas are complete");
    const auto make = [&](int replica, int slot) {
      KernelArguments one = arguments_of(phase, replica, arguments);
      for (size_t i = 0; i < gradients_.size(); ++i) gradients_[i].data = place(arguments, phase, slot, i);
      one.parameter_gradients = gradients_;
      call(one);
    };
    const auto add = [&](int slot) {
      for (size_t i = 0; i < gradients_.size(); ++i)
        if (float* const to = place(arguments, phase, slot, i))
          add_(to, place(arguments, phase, slot + 1, i), gradients_[i].count(), stream);
    };
    fold_replicas(replicas_, make, add);
  }

  /// Slot 0 is where the result belongs; the others lie behind the kernel's own workspace. Null for what is
  /// not wanted.
  float* place(const KernelArguments& arguments, KernelPhase phase, int slot, size_t gradient) const {
    float* result = arguments.parameter_gradients[gradient].as<float>();
    if (slot == 0 || result == nullptr) return result;
    int64_t offset = whole_lines(kernel_->workspace_bytes(phase)) + (slot - 1) * slot_bytes_;
    for (size_t i = 0; i < gradient; ++i) offset += whole_lines(gradients_[i].size_bytes());
    return reinterpret_cast<float*>(static_cast<std::byte*>(arguments.workspace) + offset);
  }

  OpSignature signature_;
  int replicas_;
  int64_t samples_;  // of a replica
  std::unique_ptr<Kernel> kernel_;
  Addition add_;
  /// What a phase is called with, which is not the same in all of them.
  struct Lists {
    explicit Lists(int replicas)
        : inputs(replicas),
          outputs(replicas),
          auxiliary(replicas),
          output_gradients(replicas),
          input_gradients(replicas) {}
    Slices inputs, outputs, auxiliary, output_gradients, input_gradients;
  };
  std::array<Lists, 3> lists_{Lists(replicas_), Lists(replicas_), Lists(replicas_)};  ///< by KernelPhase
  std::vector<Tensor> gradients_;                                                     // of parameters
  int64_t slot_bytes_ = 0;
};

}  // namespace

bool sums_over_samples(const OpSignature& signature) {
  return !signature.parameters.empty() || signature.is_loss;
}

KernelOptions options_of_one(const KernelOptions& options) {
  require(options.batch % options.virtual_replicas == 0, "virtual replicas of a micro-batch are equal parts");
  KernelOptions one = options;
  one.batch /= options.virtual_replicas;
  one.virtual_replicas = 1;
  return one;
}

std::unique_ptr<Kernel> make_replica_kernel(const Op& op, Inputs inputs, const KernelOptions& options,
                                            std::unique_ptr<Kernel> kernel_of_one, Addition add) {
  return std::make_unique<ReplicaKernel>(infer(op, inputs), options, std::move(kernel_of_one),
                                         std::move(add));
}

}  // namespace lockstep::ops
